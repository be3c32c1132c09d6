"""Events of a job one by one, and what happens when an action raises."""

import asyncio

import pytest

from pulsetrain.recovery import actions, faults
from pulsetrain.recovery.job_loop import JobLoop
from pulsetrain.recovery.transitions import Action, Event, Phase
from tests.recovery.builders import S, rank_exit
from tests.recovery.test_actions import FakeNode, job_of


@pytest.fixture
def done(monkeypatch):
    """Actions that were carried out; those in `broken` raise once."""

    class Done(list):
        broken = frozenset()

    done = Done()

    async def carry_out(action, job):
        done.append(action)
        if action in done.broken:
            done.broken = done.broken - {action}
            raise RuntimeError("broken")
        return {Action.SUSPEND: Event.STOPPED, Action.CHECK: Event.QUORUM}.get(action)

    monkeypatch.setattr(actions, "carry_out", carry_out)
    return done


def running(**policy):
    job = job_of(FakeNode("a"), FakeNode("b"), **policy)
    job.enter(Phase.RUNNING)
    return job


def crash(attempt=0):
    return faults.rank_failed(rank_exit(0, 1, attempt=attempt), S)


async def turns(loop, count):
    for _ in range(count):
        await loop.turn()


def test_one_event_leads_to_the_next(done):
    job = running()
    loop = JobLoop(job)
    loop.report(crash())
    asyncio.run(turns(loop, 3))
    assert done == [Action.SUSPEND, Action.CHECK, Action.REPLACE, Action.LAUNCH]
    assert job.phase is Phase.STARTING


def test_an_action_that_raised_is_carried_out_again_and_those_before_it_are_not(done):
    job = running()
    job.phase = Phase.CHECKING
    done.broken = {Action.LAUNCH}
    loop = JobLoop(job)
    loop.post(Event.QUORUM)
    with pytest.raises(RuntimeError):
        asyncio.run(turns(loop, 1))
    asyncio.run(turns(loop, 1))
    assert done == [Action.REPLACE, Action.LAUNCH, Action.LAUNCH]


def test_an_event_that_leads_elsewhere_ends_the_retries(done):
    job = running()
    done.broken = {Action.SUSPEND}
    loop = JobLoop(job)
    loop.report(crash())
    with pytest.raises(RuntimeError):
        asyncio.run(turns(loop, 1))
    loop.post(Event.LEFT)
    assert asyncio.run(loop.turn()) is None
    assert (done, job.phase) == ([Action.SUSPEND, Action.DISMISS], Phase.FAILED)


def test_a_fault_of_an_earlier_attempt_is_dropped(done):
    job = running()
    loop = JobLoop(job)
    loop.report(crash(attempt=-1))
    asyncio.run(turns(loop, 1))
    assert (done, job.phase) == ([], Phase.RUNNING)


def test_an_event_that_the_phase_does_not_know_changes_nothing(done):
    job = running()
    loop = JobLoop(job)
    loop.post(Event.QUORUM)
    asyncio.run(turns(loop, 1))
    assert (done, job.phase) == ([], Phase.RUNNING)


def test_in_observe_only_mode_a_fault_is_written_down_and_a_person_may_still_evict(done):
    job = running(observe_only=True)
    loop = JobLoop(job)
    loop.report(crash())
    loop.report(faults.evicted("b", "fan", "ada", 0, S))
    asyncio.run(turns(loop, 1))
    assert job.services.journal.last("would")["detail"]["event"] == "rank_failed"
    assert job.recovery.fault.actor == "ada"


def test_a_lost_node_explains_the_failure_that_came_before_it(done):
    job = running()
    loop = JobLoop(job)
    loop.report(crash())
    asyncio.run(turns(loop, 1))
    loop.report(faults.node_lost("b", "gone", 0, S))
    assert job.recovery.fault.event is Event.NODE_LOST


def test_an_eviction_by_a_person_holds_for_the_attempt_that_was_launched_meanwhile(done):
    job = running()
    job.attempt.number = 1
    job.to_evict["b"] = faults.evicted("b", "fan failed", "ada", 0, S)
    loop = JobLoop(job)
    loop.report(job.to_evict["b"])
    asyncio.run(turns(loop, 1))
    assert done == [Action.SUSPEND]


def test_a_launch_whose_end_was_taken_back_begins_once_more(done, monkeypatch):
    monkeypatch.setattr("pulsetrain.recovery.job_loop.IDLE_S", 0.0)
    job = running()
    job.phase = Phase.STARTING
    job.attempt.overtaken.set()
    loop = JobLoop(job)
    asyncio.run(turns(loop, 2))
    assert done == [Action.LAUNCH]


@pytest.mark.parametrize(
    ("event", "fault", "ends"),
    [
        (Event.LEFT, None, True),
        (Event.RANK_FAILED, crash(), True),
        (Event.RANK_FAILED, crash(attempt=-1), False),
        (Event.ALL_DONE, None, False),
        (Event.PREEMPT, None, False),  # of another attempt
        (Event.GROW, None, True),
        (Event.QUORUM, None, False),
    ],
)
def test_what_ends_a_launch_does_not_wait_for_it(event, fault, ends):
    job = running()
    job.phase = Phase.STARTING
    JobLoop(job).post(event, fault)
    assert job.attempt.overtaken.is_set() is ends
