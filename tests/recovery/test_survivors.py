"""When processes of survivors are kept, and what is written down about them."""

import asyncio

import pytest

from pulsetrain.protocol.messages import Stop
from pulsetrain.recovery import faults, survivors
from pulsetrain.recovery.launch import launch
from pulsetrain.recovery.transitions import Action, Phase
from tests.recovery.builders import S
from tests.recovery.test_actions import FakeNode, crashed, do, job_of
from tests.recovery.test_launch import Launcher


def stopping(fault=None, **policy):
    job = job_of(FakeNode("a"), FakeNode("b"), **policy)
    if fault is None:
        crashed(job)
    else:
        job.begin_recovery(fault)
    job.phase = Phase.SUSPENDING
    return job


def test_a_failed_rank_starts_anew_and_the_others_are_asked_to_stay():
    job = stopping(survivor_wake_s=7.0)
    do(Action.SUSPEND, job)
    [stop] = job.members.nodes["b"].commands
    assert (stop.keep, stop.wake_s, stop.fresh) == (True, 7.0, (0,))


def test_a_fault_without_a_rank_leaves_nobody_out():
    job = stopping(faults.evicted("b", "fan", "ada", 0, S))
    command = survivors.stop_command(job, "r")
    assert (command.keep, command.fresh) == (True, ())


def test_a_launch_that_failed_keeps_nothing():
    job = stopping(faults.launch_failed("b", "no memory", 0, S))
    assert survivors.stop_command(job, "r") == Stop(id=1, reason="r", wake_s=3.0)


def test_a_job_that_is_pre_empted_keeps_nothing():
    job = stopping()
    job.phase = Phase.PREEMPTING
    assert not survivors.stop_command(job, "r").keep


@pytest.mark.parametrize(("policy", "stepped"), [({"survivor_wake_s": 0.0}, True), ({}, False)])
def test_nothing_is_kept_after_an_attempt_without_a_step_or_where_nobody_wants_it(policy, stepped):
    job = stopping(**policy)
    job.attempt.first_step_done = stepped
    assert survivors.why_none(job)
    assert not survivors.stop_command(job, "r").keep


def test_it_is_written_down_who_stayed_and_why_the_others_did_not():
    a, b = Launcher("a", start={"kept": [1], "not_kept": {"0": "it is at fault"}}), Launcher("b")
    job = job_of(a, b)
    crashed(job)
    asyncio.run(launch(job))
    event = job.services.journal.last("survivors")
    assert event["detail"] == {
        "kept": [1],
        "started_anew": {"0": "it is at fault"},
        "none_kept": "",
    }


def test_it_is_written_down_why_nobody_could_stay():
    a, b = Launcher("a"), Launcher("b")
    job = job_of(a, b)
    crashed(job)
    job.phase, job.attempt.first_step_done = Phase.SUSPENDING, False
    do(Action.SUSPEND, job)
    asyncio.run(launch(job))
    event = job.services.journal.last("survivors")
    assert event["detail"]["none_kept"] == "the attempt before has done no step"


def test_a_first_launch_has_no_survivors():
    job = job_of(Launcher("a", start={"kept": [], "not_kept": {}}), Launcher("b"))
    asyncio.run(launch(job))
    assert "survivors" not in job.services.journal.kinds()
