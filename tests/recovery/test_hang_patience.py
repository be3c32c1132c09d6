"""A hang is named early and acted on late, so that a pause costs a healthy job nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.recovery.hang_patience import HangPatience
from tests.recovery.fakes import hang

S = 10**9
PATIENCE_S = 120.0


def pausing(rank=0, **changes):
    return hang(rank, certain=False, **changes)


def acted_at(patience, times_s, hangs, *, can_resume=True):
    """The first of these times at which the patience lets the job be stopped."""
    for at_s in times_s:
        if patience.look(hangs, int(at_s * S), can_resume=can_resume) is not None:
            return at_s
    return None


def test_a_hang_that_cannot_end_by_itself_is_acted_on_at_once_and_once():
    patience = HangPatience(PATIENCE_S)
    assert patience.look([hang(3)], 5 * S, can_resume=False).subject == "3"
    assert patience.look([hang(3)], 6 * S, can_resume=False) is None


def test_a_hang_that_may_be_a_pause_is_acted_on_after_the_patience():
    patience = HangPatience(PATIENCE_S)
    assert acted_at(patience, range(10, 300), [pausing()]) == 10 + PATIENCE_S


def test_without_a_checkpoint_a_possible_pause_never_stops_the_job():
    patience = HangPatience(PATIENCE_S)
    assert acted_at(patience, range(0, 86_400, 60), [pausing()], can_resume=False) is None
    assert patience.pending.act_at_ns is None
    assert "no checkpoint" in patience.pending.why


def test_what_is_waited_for_says_until_when():
    patience = HangPatience(PATIENCE_S)
    patience.look([pausing(7)], 10 * S, can_resume=True)
    assert patience.pending.row() == {
        "rank": 7,
        "since_ns": 10 * S,
        "act_at_ns": int((10 + PATIENCE_S) * S),
        "why": "The job may only pause. It is restarted if it does not move within 120 s.",
    }


@given(st.integers(1, 10_000))
def test_a_job_that_paused_before_is_given_twice_that_time(pause_s):
    patience = HangPatience(PATIENCE_S)
    patience.look([pausing()], 0, can_resume=True)
    patience.look([], pause_s * S, can_resume=True)  # it moved again by itself
    start = 2 * pause_s
    patience.look([pausing()], start * S, can_resume=True)
    waits_s = (patience.pending.act_at_ns - patience.pending.since_ns) / S
    assert waits_s == max(PATIENCE_S, 2 * pause_s)


def test_a_possible_pause_that_turns_out_certain_is_acted_on_at_once():
    patience = HangPatience(PATIENCE_S)
    assert patience.look([pausing()], 0, can_resume=True) is None
    assert patience.look([pausing(), hang(1, confidence=0.5)], S, can_resume=True).subject == "1"


def test_a_stop_of_the_job_is_no_pause_that_ended_by_itself():
    patience = HangPatience(PATIENCE_S)
    patience.look([pausing()], 0, can_resume=True)
    patience.forget()
    patience.look([], 500 * S, can_resume=True)
    assert (patience.pending, patience.longest_pause_ns) == (None, 0)


@pytest.mark.parametrize("pause_s", [5, 20, 60])
def test_pauses_of_a_healthy_job_never_stop_it(pause_s):
    patience = HangPatience(PATIENCE_S)
    for begin in range(0, 1000, 100):
        assert acted_at(patience, range(begin, begin + pause_s), [pausing()]) is None
        patience.look([], (begin + pause_s) * S, can_resume=True)
