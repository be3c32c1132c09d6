"""How many nodes a job may run on, and who stays where when that changes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.world_sizes import WorldSizes, resize
from tests.recovery.builders import hello, world

numbers = st.integers(1, 30)


def names(members):
    return [member.node for member in members]


@given(numbers, numbers, numbers, st.integers(0, 60))
def test_a_size_is_a_multiple_of_the_unit_between_least_and_most(least, most, unit, nodes):
    try:
        sizes = WorldSizes(least=least, most=most, unit=unit)
    except UsageError:
        assert not [n for n in range(least, most + 1) if n % unit == 0]
        return
    allowed = [n for n in range(least, most + 1) if n % unit == 0]
    assert sizes.fit(nodes) == max([n for n in allowed if n <= nodes], default=0)
    assert (sizes.smallest, sizes.largest) == (allowed[0], allowed[-1])
    assert sizes.elastic == (len(allowed) > 1)


def test_an_agent_that_names_no_minimum_has_a_fixed_size():
    sizes = WorldSizes.of(hello(nnodes=4))
    assert (sizes.fit(3), sizes.fit(9), sizes.elastic, str(sizes)) == (0, 4, False, "4")
    assert str(WorldSizes.of(hello(nnodes=4, min_nnodes=2, node_unit=2))) == "2:4 in units of 2"


@pytest.mark.parametrize(
    "wrong",
    [
        {"least": 3, "most": 2},
        {"least": 0, "most": 2},
        {"least": 3, "most": 3, "unit": 2},
        {"least": 4, "most": 8, "unit": 4, "unit_least": 5},
        {"least": 1, "most": 8, "unit": 4, "unit_least": -1},
    ],
)
def test_sizes_that_allow_nothing_are_refused(wrong):
    with pytest.raises(UsageError, match="allowed"):
        WorldSizes(**wrong)


ANY = WorldSizes(least=1, most=8)


@given(st.integers(1, 8), st.sets(st.integers(0, 7)), st.integers(0, 4))
def test_survivors_keep_their_order_and_ranks_have_no_gaps(size, lost, standbys):
    before = world(*"abcdefgh")
    healthy = [m.node for m in before if m.node_rank not in lost]
    after = resize(before, size, healthy, [hello(n) for n in "zyxw"[:standbys]], ANY)
    assert names(after) == [*healthy, *sorted("zyxw"[:standbys])][:size]
    assert [m.node_rank for m in after] == list(range(len(after)))


UNEQUAL = WorldSizes(least=4, most=8, unit=4, unit_least=3)


def test_a_unit_that_may_go_on_without_some_nodes_allows_more_sizes():
    assert [UNEQUAL.fit(nodes) for nodes in range(3, 10)] == [0, 4, 4, 6, 7, 8, 8]
    assert (UNEQUAL.smallest, UNEQUAL.largest, UNEQUAL.elastic) == (4, 8, True)
    assert str(UNEQUAL) == "4:8 in units of 4, of 3 at least"


def test_an_agent_says_how_few_nodes_a_unit_may_have():
    assert WorldSizes.of(hello(nnodes=8, min_nnodes=4, node_unit=4, node_unit_min=3)) == UNEQUAL


@pytest.mark.parametrize(
    ("lost", "order"), [("c", "efghabd"), ("f", "abcdegh"), ("cf", "abdegh"), ("cd", "efghab")]
)
def test_the_fullest_unit_comes_first_so_that_others_keep_their_replica(lost, order):
    healthy = [name for name in "abcdefgh" if name not in lost]
    after = resize(world(*"abcdefgh"), len(healthy), healthy, [], UNEQUAL)
    assert names(after) == list(order)
    assert [m.node_rank for m in after] == list(range(len(healthy)))


def test_a_node_that_returns_completes_the_unit_that_lacks_one():
    before = world(*"efghabd")
    after = resize(before, 8, list("efghabd"), [hello("c")], UNEQUAL)
    assert names(after) == list("efghabdc")


def test_whole_units_keep_the_order_that_they_had():
    whole = WorldSizes(least=4, most=8, unit=4)
    healthy = [name for name in "abcdefgh" if name != "c"]
    before = world(*"abcdefgh")
    assert resize(before, 4, healthy, [], whole) == resize(before, 4, healthy, [], ANY)


def test_a_world_of_many_thousand_nodes_is_put_together_in_a_moment():
    before, sizes = (
        world(*(f"n{i}" for i in range(6000))),
        WorldSizes(least=4, most=6000, unit=4, unit_least=3),
    )
    began_s = time.process_time()
    after = resize(before, 5999, [m.node for m in before[1:]], [], sizes)
    assert time.process_time() - began_s < 1.0
    assert len(after) == 5999
