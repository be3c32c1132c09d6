"""Inferred phases: one after the other, never nested in each other, never counted twice."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.rank.auto.segments import Segments
from tests.collectors.rank.watched import Watched


@pytest.fixture
def segments(watched):
    return Segments(watched.handle)


def test_a_switch_ends_one_segment_and_begins_the_next(watched, segments):
    segments.switch("data")
    assert watched.open() == ["data"]
    segments.switch("forward")
    segments.switch("")
    assert watched.open() == []
    assert watched.spans() == [("data", ""), ("forward", "")]


def test_an_interruption_resumes_what_it_interrupted(watched, segments):
    segments.switch("forward")
    with segments.interrupt("checkpoint"):
        assert watched.open() == ["checkpoint"]
    assert watched.open() == ["forward"]
    segments.switch("")
    assert [name for name, _ in watched.spans()] == ["forward", "checkpoint", "forward"]


def test_what_begins_inside_an_interruption_stays_when_it_ends(watched, segments):
    segments.switch("forward")
    with segments.interrupt("checkpoint"):
        segments.switch("data")
    assert watched.open() == ["data"]


def test_an_error_passes_through_an_interruption_and_the_segment_resumes(watched, segments):
    segments.switch("forward")
    with pytest.raises(ValueError, match="theirs"), segments.interrupt("data"):
        raise ValueError("theirs")
    assert watched.open() == ["forward"]


def test_a_phase_inside_a_segment_knows_it_as_its_parent(watched, segments):
    segments.switch("forward")
    with watched.handle.phase("attention"):
        pass
    segments.switch("")
    assert watched.spans() == [("attention", "forward"), ("forward", "")]


def test_a_phase_that_lies_around_segments_shows_again_when_they_end(watched, segments):
    with watched.handle.phase("epoch"):
        segments.switch("forward")
        assert watched.open() == ["epoch", "forward"]
        segments.switch("")
        assert watched.open() == ["epoch"]
    assert watched.spans() == [("forward", "epoch"), ("epoch", "")]


def test_a_segment_that_ends_below_a_phase_leaves_the_phase_open(watched, segments):
    segments.switch("forward")
    with watched.handle.phase("step"):
        segments.switch("backward")
        assert watched.open() == ["step", "backward"]
        segments.switch("")
        assert watched.open() == ["step"]
    assert watched.open() == []


def test_a_segment_outlives_the_phase_in_which_it_began(watched, segments):
    with watched.handle.phase("epoch"):
        segments.switch("forward")
    segments.switch("")
    assert watched.open() == []
    with watched.handle.phase("next"):
        assert watched.open() == ["next"]


def test_a_phase_of_the_script_wins(watched, segments):
    segments.switch("forward")
    segments.turn_off("forward")
    assert watched.open() == []
    segments.switch("forward")
    assert watched.open() == []
    assert watched.spans() == []


def test_nothing_begins_inside_a_phase_that_stands_for_a_segment(watched, segments):
    backward = segments.marked("backward", watched.handle.phase("backward"))
    segments.switch("forward")
    with backward:
        segments.switch("optimizer")
        assert watched.open() == ["backward"]
    assert watched.open() == ["optimizer"]
    assert watched.spans() == [("forward", ""), ("backward", "")]


def test_what_was_expected_is_recorded_only_as_what_it_turns_out_to_be(watched, segments):
    segments.expect("forward")
    assert watched.open() == ["forward"]
    segments.expect("optimizer")
    segments.confirm("optimizer")
    segments.expect("optimizer")
    segments.confirm("forward")
    assert watched.open() == ["forward"]
    segments.switch("")
    assert watched.spans() == [("optimizer", ""), ("forward", "")]


def test_a_backward_that_the_script_marks_confirms_the_forward_before_it(watched, segments):
    segments.expect("forward")
    with segments.marked("backward", watched.handle.phase("backward")):
        segments.expect("optimizer")
        segments.confirm("optimizer")
    assert watched.spans() == [("forward", ""), ("backward", "")]


def test_forward_begins_behind_the_data_that_the_script_marks(watched, segments):
    with segments.marked("data", watched.handle.phase("data")):
        assert watched.open() == ["data"]
    assert watched.open() == ["forward"]


def test_another_thread_moves_nothing_and_its_interruption_has_its_own_lane(watched, segments):
    segments.switch("forward")

    def other():
        segments.switch("data")
        with segments.interrupt("checkpoint"):
            pass

    thread = threading.Thread(target=other, name="writer")
    thread.start()
    thread.join()
    assert watched.open() == ["forward"]
    spans = watched.reader.drain()[0]
    assert [watched.reader.names[s["lane"]] for s in spans] == ["writer"]


def test_a_forked_child_records_nothing(watched, segments):
    watched.handle.state = None
    segments.switch("forward")
    with segments.interrupt("checkpoint"):
        pass
    assert segments.current == ""


MOVES = st.lists(
    st.sampled_from(
        ["data", "forward", "backward", "", "expect", "confirm", "push", "pop", "interrupt", "mark"]
    ),
    max_size=40,
)


@given(MOVES)
def test_segments_never_overlap_and_no_phase_stays_open(moves):
    watched = Watched()
    segments = Segments(watched.handle)
    left = []
    for move in moves:
        if move in ("push", "interrupt", "mark"):
            phase = watched.handle.phase("user")
            span = {
                "push": phase,
                "interrupt": segments.interrupt("checkpoint"),
                "mark": segments.marked("optimizer", phase),
            }[move]
            span.__enter__()
            left.append(span)
        elif move == "pop":
            if left:
                left.pop().__exit__(None, None, None)
        elif move == "expect":
            segments.expect("forward")
        elif move == "confirm":
            segments.confirm("optimizer")
        else:
            segments.switch(move)
    while left:
        left.pop().__exit__(None, None, None)
    segments.switch("")
    assert watched.open() == []
    assert watched.errors == 0
    names = watched.reader.names
    rows = [s for s in watched.reader.drain()[0] if names[s["name"]] != "user"]
    ordered = sorted((int(s["start"]), int(s["end"])) for s in rows)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ordered))
