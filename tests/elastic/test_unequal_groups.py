"""Inactive ranks, process groups and packed domains, against published vectors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.unequal_groups import active_ranks, inactive_ranks, pack_domains, process_groups


def test_replicas_with_fewer_failures_rest_their_highest_healthy_ranks():
    inactive = inactive_ranks({0: [2, 5], 1: [1]}, 8)
    assert inactive.spares == 2
    assert inactive.by_replica == {0: (2, 5), 1: (1, 7)}
    assert active_ranks(inactive, 1, 8) == (0, 2, 3, 4, 5, 6)
    assert active_ranks(inactive, 2, 8) == tuple(range(8))  # an unaffected replica goes on whole


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, 7), max_size=7)))
def test_affected_replicas_end_with_one_degree_and_no_failed_rank(failed):
    inactive = inactive_ranks(failed, 8)
    for replica, ranks in failed.items():
        working = active_ranks(inactive, replica, 8)
        assert not set(working) & ranks
        assert len(working) == (8 - inactive.spares if ranks else 8)


@pytest.mark.parametrize("failed", [{0: [8]}, {0: range(8)}])
def test_ranks_that_do_not_exist_or_none_left_are_refused(failed):
    with pytest.raises(UsageError, match="failed ranks"):
        inactive_ranks(failed, 8)


def test_groups_of_a_packed_pair_of_replicas():
    groups = process_groups([2, 4])
    assert groups.tensor == ((0, 1), (2, 3, 4, 5))
    assert groups.data == ((0, 2), (1, 3), (4,), (5,))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_every_rank_is_in_one_group_of_each_kind(degrees):
    groups = process_groups(degrees)
    for kind in (groups.tensor, groups.data):
        assert sorted(rank for group in kind for rank in group) == list(range(sum(degrees)))
    assert sum(len(group) == len(degrees) for group in groups.data) >= min(degrees)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=24), st.integers(1, 5))
def test_degraded_domains_are_in_as_few_replicas_as_can_be(failed, per_replica):
    replicas, idle = pack_domains(failed, per_replica, 8)
    used = [domain for replica in replicas for domain in replica.domains]
    assert sorted([*used, *idle]) == list(range(len(failed)))
    degraded = sum(count > 0 for count in failed) - sum(failed[domain] > 0 for domain in idle)
    assert sum(replica.degree < 8 for replica in replicas) == -(-degraded // per_replica)
    assert [r.degree for r in replicas] == sorted(r.degree for r in replicas)
    for replica in replicas:
        assert replica.degree == 8 - max(failed[domain] for domain in replica.domains)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=12), st.randoms(use_true_random=False))
def test_renaming_domains_changes_no_degree(failed, random):
    shuffled = random.sample(failed, len(failed))
    assert [r.degree for r in pack_domains(failed, 2, 8)[0]] == [
        r.degree for r in pack_domains(shuffled, 2, 8)[0]
    ]
