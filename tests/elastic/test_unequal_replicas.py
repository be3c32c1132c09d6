"""What a rank of a job with replicas of unequal size is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.unequal_replicas import UnequalReplicas

degrees = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(degrees, st.integers(0, 40), st.integers(0, 40))
def test_replicas_share_units_and_samples_without_gap_or_overlap(degrees, units, samples):
    ranks = [UnequalReplicas(degrees=degrees, rank=rank) for rank in range(sum(degrees))]
    for replica, degree in enumerate(degrees):
        mine = [rank for rank in ranks if rank.replica == replica]
        assert [rank.local_rank for rank in mine] == list(range(degree))
        assert sorted(unit for rank in mine for unit in rank.held(units)) == list(range(units))
        assert len({rank.samples(samples) for rank in mine}) == 1
    firsts = [rank for rank in ranks if rank.local_rank == 0]
    assert [sample for rank in firsts for sample in rank.samples(samples)] == list(range(samples))


def test_the_agent_says_the_degrees():
    said = {"WORLD_SIZE": "7", "RANK": "6", "PULSETRAIN_REPLICA_DEGREES": "4,3"}
    rank = UnequalReplicas.of_environment(4, said)
    assert (rank.degrees, rank.replica, rank.local_rank, rank.first_rank) == ((4, 3), 1, 2, 4)


def test_replicas_are_whole_where_nobody_says_more():
    assert UnequalReplicas.of_environment(2, {"WORLD_SIZE": "6", "RANK": "1"}).degrees == (2, 2, 2)


@pytest.mark.parametrize(
    "environ",
    [
        {"WORLD_SIZE": "7"},
        {"WORLD_SIZE": "7", "PULSETRAIN_REPLICA_DEGREES": "4,4"},
        {"WORLD_SIZE": "7", "PULSETRAIN_REPLICA_DEGREES": "5,2"},
    ],
    ids=["ranks are left over", "more than there are", "above the degree"],
)
def test_degrees_that_do_not_fit_are_refused(environ):
    with pytest.raises(UsageError, match="allowed"):
        UnequalReplicas.of_environment(4, environ)


def test_a_rank_that_no_replica_has_is_refused():
    with pytest.raises(UsageError, match="rank 7: allowed: 0 to 6"):
        UnequalReplicas(degrees=(4, 3), rank=7)
