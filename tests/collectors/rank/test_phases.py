"""Phases: nesting, categories, threads, and exceptions that pass through."""

from __future__ import annotations

import threading

import pytest

from pulsetrain.collectors.rank.phases import DEFAULT_CATEGORY, category_number
from pulsetrain.records.schema import CATEGORIES


def test_nested_phases_know_their_parent_and_show_while_open(watched):
    h = watched.handle
    with h.phase("backward"):
        with h.phase("inner"):
            assert watched.open() == ["backward", "inner"]
        assert watched.open() == ["backward"]
    assert watched.open() == []
    assert watched.spans() == [("inner", "backward"), ("backward", "")]


def test_a_phase_may_be_inside_itself_and_deeper_than_the_status_page(watched):
    h = watched.handle

    def descend(depth: int) -> None:
        if depth:
            with h.phase("recursive"):
                descend(depth - 1)

    descend(40)
    assert watched.spans() == [("recursive", "recursive")] * 39 + [("recursive", "")]
    assert watched.open() == []
    assert watched.errors == 0


def test_an_exception_passes_through_and_closes_the_phase(watched):
    with pytest.raises(KeyError), watched.handle.phase("forward"):
        raise KeyError("theirs")
    assert watched.open() == []
    assert watched.spans() == [("forward", "")]


def test_default_and_given_categories(watched):
    h = watched.handle
    for name, category in (("forward", None), ("data", None), ("mine", None), ("shuffle", "communication")):
        with h.phase(name, category):
            pass
    assert list(watched.reader.drain()[0]["category"]) == [0, 2, 4, 1]


def test_a_wrong_category_is_counted_and_not_raised(watched):
    with watched.handle.phase("x", "nonsense"):
        pass
    assert watched.spans() == []
    assert watched.errors == 1


def test_leaving_out_of_order_is_counted_and_not_raised(watched):
    phase = watched.handle.phase("forward")
    phase.__exit__(None, None, None)
    assert watched.errors == 1
    with phase:
        pass
    assert watched.spans() == [("forward", "")]


def test_another_thread_has_a_lane_of_its_own_and_leaves_the_stack_alone(watched):
    h = watched.handle

    def work() -> None:
        with h.phase("data"):
            assert watched.open() == ["forward"]

    with h.phase("forward"):
        thread = threading.Thread(target=work, name="prefetch")
        thread.start()
        thread.join()
    spans = watched.reader.drain()[0]
    names = watched.reader.names
    assert [(names[s["name"]], names[s["lane"]], names[s["parent"]]) for s in spans] == [
        ("data", "prefetch", ""),
        ("forward", "host", ""),
    ]


@pytest.mark.parametrize(
    ("name", "lane"),
    [
        ("Thread-7", "Thread"),
        ("Thread-7 (save)", "Thread (save)"),
        ("ThreadPoolExecutor-12_3", "ThreadPoolExecutor_3"),
        ("Dummy-4", "Dummy"),
        ("loader-7", "loader-7"),
    ],
)
def test_a_lane_leaves_out_the_running_number_of_a_thread_without_a_name(watched, name, lane):
    def work() -> None:
        with watched.handle.phase("checkpoint"):
            pass

    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
    names = watched.reader.names
    assert [names[s["lane"]] for s in watched.reader.drain()[0]] == [lane]


def test_thousands_of_threads_and_phases_leave_room_for_the_names_of_groups(watched):
    h = watched.handle

    def save() -> None:
        with h.phase("checkpoint"):
            pass

    for i in range(3000):
        thread = threading.Thread(target=save, name=f"saver {i}")
        thread.start()
        thread.join()
        with h.phase(f"batch {i}"):
            pass
    ring = h.state.ring
    ring.add_group(ring.name_group("tp"), [0, 1])
    assert [group.name for group in watched.reader.status().groups] == ["tp"]
    operation = ring.intern("all_reduce")
    assert watched.reader.names[operation] == "all_reduce"
    with h.phase("optimizer"):
        assert watched.open() == ["optimizer"]
    assert watched.errors == 1
    assert len(h._phases) <= 1024


def test_every_default_category_is_one_of_the_records():
    assert set(DEFAULT_CATEGORY.values()) <= set(CATEGORIES)
    assert CATEGORIES[category_number("no such phase", None)] == "other"
    with pytest.raises(ValueError, match="not in tuple"):
        category_number("forward", "nonsense")


def test_spans_carry_the_microbatch_until_it_is_over(watched):
    state = watched.handle.state
    state.enter_microbatch(3)
    with watched.handle.phase("forward"):
        pass
    state.enter_microbatch(-1)
    with watched.handle.phase("forward"):
        pass
    assert list(watched.reader.drain()[0]["microbatch"]) == [3, -1]
