"""When a job shrinks and when it grows."""

import pytest

from pulsetrain.recovery.resizing import Nodes, Resizing, larger_size, shrinking_cost_s, size_now
from pulsetrain.recovery.world_sizes import WorldSizes

OF_FOUR = Resizing(sizes=WorldSizes(least=2, most=6), size=4)


@pytest.mark.parametrize(
    ("nodes", "waited_s", "size"),
    [
        (Nodes(available=4), 0.0, 4),
        (Nodes(available=9), 0.0, 6),
        (Nodes(available=3), 2.9, 0),
        (Nodes(available=3), 3.0, 3),
        (Nodes(available=3, checked=1), 3.0, 0),
        (Nodes(available=3, checked=1), 9.0, 3),
        (Nodes(available=1), 1e9, 0),
    ],
)
def test_a_job_that_stands_takes_what_is_there_and_waits_before_it_shrinks(nodes, waited_s, size):
    assert size_now(OF_FOUR, nodes, waited_s=waited_s, wait_s=3.0) == size


@pytest.mark.parametrize(("available", "size"), [(3, 0), (4, 0), (5, 5), (8, 6)])
def test_a_running_job_grows_to_what_is_there_and_never_shrinks(available, size):
    assert larger_size(OF_FOUR, available) == size


def test_a_size_that_was_refused_is_passed_over_for_one_that_may_divide():
    resizing = Resizing.of(WorldSizes(least=1, most=4))
    resizing.refused[3] = "seen: saved as (4,), wanted as (3,)"
    assert [resizing.fit(nodes) for nodes in (4, 3, 2, 1)] == [4, 2, 2, 1]
    assert [resizing.refusal(size) for size in (3, 2)] == ["seen: saved as (4,), wanted as (3,)", ""]


def test_state_that_fits_none_of_several_sizes_is_not_tried_with_others():
    resizing = Resizing.of(WorldSizes(least=1, most=6))
    resizing.refused |= {5: "not 5", 4: "not 4", 3: "not 3"}
    assert resizing.fit(5) == 5
    assert [resizing.refusal(size) for size in (4, 2)] == ["not 4", "not 3"]


def test_a_node_that_comes_and_goes_is_waited_for_longer_each_time():
    resizing, waits = Resizing.of(WorldSizes(least=1, most=2)), []
    resizing.changed(1, 0.0)
    for at in (10.0, 20.0, 30.0):
        waits.append(resizing.grow_after_s(2.0))
        resizing.changed(2, at)
        resizing.changed(1, at + 5.0)
    assert waits == [2.0, 4.0, 8.0]
    resizing.changed(2, 100.0)
    resizing.changed(1, 1000.0)
    assert resizing.grow_after_s(2.0) == 2.0
    resizing.short_lived = 50
    assert resizing.grow_after_s(2.0) == 600.0


def test_shrinking_costs_a_stop_now_and_one_when_the_job_grows_again():
    assert shrinking_cost_s(4.0) == 8.0
