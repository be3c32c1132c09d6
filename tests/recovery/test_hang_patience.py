"""A hang is named early and acted on late, so that a pause costs a healthy job nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.hangs.condition import MAY_PAUSE
from pulsetrain.recovery.hang_patience import VOLUNTARY, HangPatience
from tests.recovery.fakes import hang as observed

S = 10**9
PATIENCE_S = 120.0


def hang(rank=0, **fields):
    """A hang. Fields that an observation does not have are part of its evidence."""
    confidence = fields.pop("confidence", 0.9)
    return observed(rank, confidence=confidence, details=fields)


def pausing(rank=0, **fields):
    return hang(rank, **({"certain": False} | fields))


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


@pytest.mark.parametrize(
    ("evidence", "acts_s"),
    [
        ({"condition": "waits"}, 1_800.0),
        ({"condition": "waits", "timeout_ns": 600 * S, "stall_ns": 0}, 605.0),
        ({"condition": "still"}, PATIENCE_S),
    ],
)
def test_a_pause_is_given_torchs_own_time_where_no_restart_has_shown_that_it_goes_on(evidence, acts_s):
    patience = HangPatience(PATIENCE_S, 600.0)
    for at_s in range(2_000):
        seen = {**evidence, **({"stall_ns": at_s * S} if "stall_ns" in evidence else {})}
        if patience.look([pausing(**seen)], at_s * S, can_resume=True, proven=False) is not None:
            break
    assert at_s == pytest.approx(acts_s, abs=1)


def test_what_is_waited_for_says_until_when():
    patience = HangPatience(PATIENCE_S)
    patience.look([pausing(7)], 10 * S, can_resume=True)
    assert patience.pending.row() == {
        "rank": 7,
        "since_ns": 10 * S,
        "act_at_ns": int((10 + PATIENCE_S) * S),
        "action": "restart",
        "why": "The job may only pause. It is restarted if it does not move within 120 s.",
        "condition": "",
        "place": "",
        "decisions": ["wait", "now"],
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


@pytest.mark.parametrize("condition", ["waits", "slow_phase", "unknown"])
def test_a_rank_that_may_well_go_on_is_given_more_time_than_one_that_does_nothing(condition):
    times = range(0, 2000)
    assert acted_at(HangPatience(45, 600), times, [pausing(condition="still")]) == 45
    assert acted_at(HangPatience(45, 600), times, [pausing(condition=condition)]) == 600


def test_time_spent_in_a_wait_does_not_count_against_a_rank_that_stands_still_afterwards():
    patience = HangPatience(45, 600)
    assert acted_at(patience, range(300), [pausing(condition="waits")]) is None
    assert acted_at(patience, range(300, 900), [pausing(condition="still")]) == 345


def test_pauses_are_learned_by_place():
    patience = HangPatience(45)
    patience.look([pausing(place="evaluate")], 0, can_resume=True)
    patience.look([], 90 * S, can_resume=True)
    assert acted_at(patience, range(100, 900), [pausing(place="save")]) == 145
    patience.forget()
    assert acted_at(patience, range(200, 900), [pausing(place="evaluate")]) == 380


def test_a_hang_that_is_hidden_for_a_moment_goes_on():
    patience = HangPatience(45)
    patience.look([pausing()], 10 * S, can_resume=True)
    for at_s in range(11, 18):
        patience.look([], at_s * S, can_resume=True, quiet_ns=at_s * S)
    assert patience.longest_pause_ns == 0
    assert acted_at(patience, range(18, 900), [pausing()]) == 55


def test_a_hang_that_is_hidden_for_long_is_forgotten_and_no_pause():
    patience = HangPatience(45)
    patience.look([pausing()], 10 * S, can_resume=True)
    patience.look([], 30 * S, can_resume=True, quiet_ns=30 * S)
    assert (patience.pending, patience.longest_pause_ns) == (None, 0)


def test_a_pause_that_was_never_named_counts_too():
    hangs = [pausing(usual_ns=100 * S)]
    assert acted_at(HangPatience(45), range(900), hangs) == 200


def test_a_restart_that_led_to_the_same_place_makes_the_next_one_wait_longer():
    patience = HangPatience(45)
    assert acted_at(patience, range(900), [pausing(place="index")]) == 45
    patience.forget()
    assert acted_at(patience, range(1000, 3000), [pausing(place="index")]) == 1000 + 4 * 45
    patience.forget()
    assert acted_at(patience, range(4000, 9000), [pausing(place="other")]) == 4045


def test_nobody_waits_longer_than_the_group_itself():
    hangs = [pausing(condition="waits", timeout_ns=100 * S, stall_ns=10 * S)]
    patience = HangPatience(45, 600)
    patience.look(hangs, 10 * S, can_resume=True)
    assert patience.pending.act_at_ns == 105 * S
    assert "own timeout" in patience.pending.why


def test_what_is_named_sooner_than_others_is_not_acted_on_sooner():
    waits = {"condition": "device", "looked_at_ns": 300 * S}
    assert acted_at(HangPatience(45, 600), range(2000), [pausing(**waits)]) == 900
    patience = HangPatience(45, 600)
    patience.look([pausing(**waits, timeout_ns=100 * S, stall_ns=60 * S)], 60 * S, can_resume=True)
    assert patience.pending.act_at_ns == (60 + 300) * S
    assert acted_at(HangPatience(45, 600), range(2000), [pausing(**waits)], can_resume=False) is None


def test_a_held_gil_that_is_named_in_the_start_is_waited_for_as_any_pause_there():
    held = {"condition": "held_gil", "starting": True, "looked_at_ns": 60 * S}
    assert acted_at(HangPatience(45, 600), range(2000), [pausing(**held)]) == 660
    assert acted_at(HangPatience(45, 600), range(2000), [pausing(**held)], can_resume=False) is None


def test_a_loop_without_a_checkpoint_is_given_minutes():
    loop = [hang(condition="loop")]
    assert acted_at(HangPatience(45), range(900), loop) == 0
    assert acted_at(HangPatience(45), range(900), loop, can_resume=False) == 300


def test_a_loop_that_is_not_yet_certain_is_watched_and_not_called_a_pause():
    patience = HangPatience(45)
    patience.look([pausing(condition="loop")], 0, can_resume=False)
    assert patience.pending.act_at_ns is None
    assert "watched" in patience.pending.why


def test_a_held_gil_at_the_same_place_after_a_restart_is_given_more_time():
    held = [hang(condition="held_gil", place="licence (train.py:3)")]
    patience = HangPatience(45)
    assert acted_at(patience, range(900), held) == 0
    patience.forget()
    assert acted_at(patience, range(900), held) == 4 * 45
    patience.forget()
    assert acted_at(patience, range(900), [hang(condition="frozen", place="licence (train.py:3)")]) == 0


@pytest.mark.parametrize("condition", ["still", "waits"])
def test_time_in_which_the_hub_stood_still_is_no_patience(condition):
    patience, held = HangPatience(45, 600), [pausing(condition=condition)]
    assert acted_at(patience, range(100, 104), held) is None
    assert acted_at(patience, range(2000, 2003), held) is None
    left_s = (45 if condition == "still" else 600) - 4
    assert acted_at(patience, range(2003, 3000), held) == pytest.approx(1999 + left_s, abs=3)


def test_a_pause_that_is_over_when_the_hub_goes_on_restarts_nothing():
    patience = HangPatience(45, 600)
    assert acted_at(patience, range(100, 104), [pausing(condition="still")]) is None
    assert acted_at(patience, [2000], [pausing(condition="still")]) is None
    assert acted_at(patience, range(2001, 2020), []) is None
    assert patience.pending is None


def test_a_person_who_says_wait_is_obeyed_whatever_is_found():
    patience = HangPatience(45)
    patience.wait(1000 * S, "ann")
    assert acted_at(patience, range(900), [hang()]) is None
    assert patience.pending.why == "ann said to wait. Then the job is restarted."
    assert acted_at(patience, range(900, 2000), [hang()]) == 1000


def test_a_new_hub_obeys_a_person_who_said_wait_and_waits_longer_where_a_hang_came_again():
    before = HangPatience(45)
    assert acted_at(before, range(100), [pausing(condition="still", place="f")]) == 45
    before.wait(1000 * S, "ann")
    patience = HangPatience(45)
    patience.recall(before.kept())
    assert acted_at(patience, range(200, 900), [hang()]) is None
    assert acted_at(patience, range(900, 1100), [hang()]) == 1000
    patience.forget()
    assert acted_at(patience, range(1100, 1500), [pausing(condition="still", place="f")]) == 1100 + 4 * 45


@pytest.mark.parametrize(
    ("step", "later_s", "recalled", "waits_s"),
    [
        (1005, 200, False, 45),
        (1005, 200, True, 45),
        (9, 200, False, 4 * 45),  # the restart went back, and the job has not come much further
        (-1, 200, True, 4 * 45),
        (9, 90_000, False, 45),
    ],
)
def test_restarts_at_a_place_that_the_job_has_left_behind_count_no_more(step, later_s, recalled, waits_s):
    still = [pausing(condition="still", place="f")]
    patience = HangPatience(45)
    patience.look([], 0, can_resume=True, step=5)
    for at_s in range(46):
        patience.look(still, at_s * S, can_resume=True, step=5)
    memory = patience.kept()
    assert memory.restarts == {"f": 1}
    patience.forget()
    if recalled:
        patience = HangPatience(45)
        patience.recall(memory)
    patience.look([], later_s * S, can_resume=True, step=step)
    patience.look(still, later_s * S, can_resume=True, step=step)
    assert patience.pending.act_at_ns - patience.pending.since_ns == waits_s * S


def test_another_run_of_that_name_does_not_get_what_a_hub_recalled():
    before = HangPatience(45)
    before.wait(1000 * S, "ann")
    patience = HangPatience(45)
    patience.recall(before.kept())
    patience.forget_another_run()
    assert patience.look([hang()], 10 * S, can_resume=True) is not None
    before.forget_another_run()
    assert before.look([hang()], 10 * S, can_resume=True) is None


def test_a_clock_that_is_set_does_not_end_the_time_that_a_person_said_to_wait():
    patience = HangPatience(45)
    patience.look([], 100 * S, can_resume=True)
    patience.wait(1000 * S, "ann")
    assert patience.look([hang()], 5000 * S, can_resume=True) is None
    assert acted_at(patience, range(5001, 6000), [hang()]) == 1000 + 4900


def test_a_person_who_says_now_need_not_wait():
    patience = HangPatience(45)
    patience.look([pausing(3)], 0, can_resume=False)
    assert patience.now().subject == "3"
    assert patience.now() is None
    assert patience.pending is None


def test_there_is_nothing_to_do_now_without_a_hang():
    assert HangPatience(45).now() is None


def test_a_network_of_which_only_ranks_are_silent_may_be_slow():
    """A rank's sockets are counted nowhere: a large gather over a slow network looks the same."""
    for evidence, at_s in (
        ({}, 600),
        ({"links": [["a", "b"]]}, PATIENCE_S),
        ({"traffic_stopped_s": 20}, PATIENCE_S),
    ):
        patience = HangPatience(PATIENCE_S, 600.0)
        assert acted_at(patience, range(0, 900), [pausing(condition="network", **evidence)]) == at_s


@pytest.mark.parametrize("condition", ["waits", "spin"])
@pytest.mark.parametrize(
    ("timeout_s", "chosen", "at_s"),
    [(600, False, 600), (1800, False, 600), (1800, True, 1800), (7200, True, 7200), (0, False, 600)],
)
def test_a_timeout_that_somebody_chose_says_how_long_a_pause_may_be(condition, timeout_s, chosen, at_s):
    patience = HangPatience(PATIENCE_S, 600.0)
    found = [pausing(condition=condition, timeout_ns=timeout_s * S, timeout_chosen=chosen, stall_ns=0)]
    assert acted_at(patience, range(0, 9000, 10), found) == at_s


@pytest.mark.parametrize("condition", ["loop", "held_gil"])
def test_what_a_job_survived_before_is_waited_for_also_where_it_looks_certain(condition):
    patience = HangPatience(PATIENCE_S)
    found = [hang(condition=condition, place="sort (a.py:3)", usual_ns=60 * S)]
    assert acted_at(patience, range(0, 300), found) == 120


def test_what_is_told_as_a_possible_pause_is_waited_for_as_one():
    assert {*VOLUNTARY} == {*MAY_PAUSE}
