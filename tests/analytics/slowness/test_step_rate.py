"""Longer steps are noticed from heartbeats alone, and uneven ones cost a look now and then."""

from __future__ import annotations

import random

import pytest

from pulsetrain.analytics.slowness.step_rate import AGAIN_S, STILL_S, StepRate


def heartbeats(rate, step_s, seconds, began_s=0.0, done=0.0):
    """One each second. Returns when it ended, how many steps were done then, and when it was suspicious."""
    suspicious = []
    for second in range(1, seconds + 1):
        now_s, done = began_s + second, done + 1 / step_s()
        rate.note(int(done), now_s)
        if rate.suspicious(now_s):
            suspicious.append(second)
    return began_s + seconds, done, suspicious


@pytest.mark.parametrize("step_s", [0.07, 0.1, 0.2])
@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_longer_steps_are_noticed_after_a_few_heartbeats(step_s, factor):
    rate = StepRate()
    now_s, done, before = heartbeats(rate, lambda: step_s, 60)
    suspicious = heartbeats(rate, lambda: factor * step_s, 10, now_s, done)[2]
    assert before == []
    assert suspicious[0] <= 3


@pytest.mark.parametrize("step_s", [0.02, 0.13, 0.9, 3.0])
def test_even_steps_are_never_suspicious(step_s):
    draw = random.Random(1)
    rate = StepRate()
    assert heartbeats(rate, lambda: step_s * draw.uniform(0.98, 1.02), 300)[2] == []


def test_what_was_looked_into_is_not_said_again_soon_unless_it_gets_worse():
    rate = StepRate()
    now_s, done, _ = heartbeats(rate, lambda: 0.1, 60)
    now_s, done, first = heartbeats(rate, lambda: 0.15, 12, now_s, done)
    worse = heartbeats(rate, lambda: 0.3, 8, now_s, done)[2]
    assert 1 <= len(first) <= 2
    assert worse
    assert len(worse) <= 4


def test_steps_that_were_as_usual_for_a_while_may_become_suspicious_again():
    rate = StepRate()
    now_s, done, _ = heartbeats(rate, lambda: 0.1, 60)
    now_s, done, first = heartbeats(rate, lambda: 0.17, 8, now_s, done)
    now_s, done, between = heartbeats(rate, lambda: 0.1, 12, now_s, done)
    again = heartbeats(rate, lambda: 0.15, 6, now_s, done)[2]
    assert (bool(first), between, bool(again)) == (True, [], True)


def test_steps_that_stand_still_are_suspicious():
    rate = StepRate()
    now_s, _, _ = heartbeats(rate, lambda: 0.1, 60)
    assert not rate.suspicious(now_s + 1.0)
    assert rate.suspicious(now_s + STILL_S + 0.1)


def test_nothing_is_usual_before_some_windows_have_passed():
    rate = StepRate()
    assert not rate.known
    heartbeats(rate, lambda: 0.1, 5)
    assert not rate.known
    assert not rate.suspicious(5.0)


@pytest.mark.parametrize("every_s", [8, 12, 20])
def test_pauses_that_come_again_and_again_are_looked_into_now_and_then(every_s):
    rate, seconds, done, suspicious = StepRate(), 600, 0, []
    for second in range(1, seconds + 1):
        done += 1 if second % every_s == 0 else 10  # it saves or evaluates then
        rate.note(done, float(second))
        if rate.suspicious(float(second)):
            suspicious.append(second)
    assert suspicious
    assert len(suspicious) <= seconds / AGAIN_S + 4
