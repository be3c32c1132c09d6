"""When `pulsetrain status --watch` prints again."""

from __future__ import annotations

import contextlib

import pytest

from pulsetrain.core.errors import AuthError, Unavailable
from pulsetrain.terminal.changes import changes, essence
from tests.terminal.answers import HANG, NODES, PENDING, job, status

LOOP = {"process": "hub", "node": "", "loop": "controller", "stale": False, "failures": 0, "age_s": 0.1}


class Stop(Exception):
    """Ends a watch."""


def asking(answers):
    """A hub that gives these answers, one after the other."""
    left = list(answers)

    def ask():
        if not left:
            raise Stop
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def watched(*answers):
    """What a watch says while the hub gives these answers."""
    seen, slept = [], []
    watch = changes(asking(answers), period_s=3.0, sleep=slept.append)
    with contextlib.suppress(Stop):
        for each in watch:
            seen.append(each)  # noqa: PERF402 - what came before the end counts
    assert slept == [3.0] * len(answers)
    return seen


SAME = (
    {"step": 1235},
    {"median_step_s": 0.9},
    {"nodes": [{**n, "last_heartbeat_age_s": 9.0, "gauges": {"x": 1}} for n in NODES]},
)
DIFFERENT = (
    {"attempt": 2},
    {"verdict": {"state": "slow", "sentence": "S."}},
    {"findings": [HANG]},
    {"pending_hang": PENDING},
    {"nodes": NODES[:2]},
    {"nodes": [NODES[0] | {"state": "evicted"}, *NODES[1:]]},
    {"recoveries": [{}]},
)


@pytest.mark.parametrize("changed", SAME, ids=lambda c: next(iter(c)))
def test_progress_is_no_news(changed):
    assert len(watched(status(job()), status(job(**changed)))) == 1


@pytest.mark.parametrize("changed", DIFFERENT, ids=lambda c: next(iter(c)))
def test_what_a_person_acts_on_is_news(changed):
    assert len(watched(status(job()), status(job(**changed)))) == 2


def test_a_decision_to_wait_is_news_and_a_countdown_is_not():
    later = PENDING | {"act_at_ns": PENDING["act_at_ns"] + 1}
    never = PENDING | {"act_at_ns": None}
    answers = [status(job(pending_hang=hang)) for hang in (PENDING, later, never)]
    assert watched(*answers) == [answers[0], answers[2]]


def test_jobs_and_stuck_loops_that_come_and_go_are_news():
    first = status(job())
    assert len(watched(first, status(job(), job("bert")), first)) == 3
    assert len(watched(first, status(job(), past=[job("old")]))) == 2
    assert essence(first | {"loops": [LOOP]}) == essence(first)
    assert essence(first | {"loops": [LOOP | {"stale": True}]}) != essence(first)


def test_a_hub_that_goes_away_is_said_once_and_its_return_too():
    away = Unavailable("hub h does not answer")
    seen = watched(status(job()), away, Unavailable("again"), status(job()))
    assert seen[1] is away
    assert seen[2]["jobs"][0]["job"] == "gpt"
    assert len(seen) == 3


def test_a_hub_that_never_answered_ends_the_watch():
    with pytest.raises(Unavailable):
        watched(Unavailable("away"))


def test_a_refused_token_ends_the_watch():
    with pytest.raises(AuthError):
        watched(status(job()), AuthError("wrong token"))
