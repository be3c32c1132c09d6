"""Ranks are brought to a stand before they are ended, against fake agents."""

import pytest

from pulsetrain.protocol.messages import HoldRanks, OwnCheckpoint, SaveFrom, Stop
from pulsetrain.recovery.hold import LEASE_S, LIMIT_S, OWN_GRACE_S, RENEW_S, SAVED_S
from pulsetrain.recovery.saves import TORN_S, WAITS_S
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import run
from tests.recovery.test_moving import Job


def holds(job, name="a"):
    return job.fleet.of(name, HoldRanks)


def test_all_ranks_stand_before_they_are_ended():
    async def scenario():
        job = Job()
        await job.train(9)
        await job.ask()
        assert job.phase is Phase.PREEMPTED
        commands = job.fleet.agents["b"].commands
        kinds = [type(command) for command in commands]
        assert kinds.index(HoldRanks) < kinds.index(Stop)
        told = job.last("preempted")
        assert (told["hold"]["acquired"], told["hold"]["steps"]) == (True, 1)
        assert sum(told["stages_ns"].values()) == told["total_ns"]

    run(scenario)


def test_ranks_that_stand_wait_until_their_last_step_is_saved():
    async def scenario():
        job = Job()
        await job.train(9, saved=0)
        await job.ask()
        step = job.fleet.of("a", SaveFrom)[-1].step
        await job.train(step + 3, saved=step + 2)
        assert job.phase is Phase.RUNNING
        asked = len(holds(job))
        await job.wait(int(RENEW_S) + 2)
        assert len(holds(job)) > asked  # or they would run on
        await job.train(step + 3)
        assert job.phase is Phase.PREEMPTED
        assert job.last("preempted")["lost_steps"] == 0

    run(scenario)


def test_a_step_that_is_never_saved_does_not_hold_the_job_for_ever():
    async def scenario():
        job = Job()
        await job.train(9, saved=0)
        await job.ask()
        step = job.fleet.of("a", SaveFrom)[-1].step
        await job.train(step + 3, saved=step + 2)
        await job.wait(int(SAVED_S) + 4)
        assert job.phase is Phase.PREEMPTED
        assert job.last("preempted")["lost_steps"] == 1

    run(scenario)


def test_a_rank_that_comes_to_no_end_of_a_step_costs_no_more_than_the_limit():
    async def scenario():
        job = Job()
        await job.train(9)
        job.fleet.agents["b"].restless = {3}
        await job.ask()
        assert job.phase is Phase.RUNNING
        await job.wait(int(LIMIT_S) + 4)
        missed = job.last("hold_missed")
        assert "rank 3 came to no end of a step" in missed["why_not"]
        assert not missed["acquired"]
        assert holds(job)[-1].number == 0  # let go
        assert job.phase is Phase.PREEMPTED

    run(scenario)


@pytest.mark.parametrize(
    ("trouble", "why_not"),
    [
        ({"restless": None}, "HoldRanks is not known"),
        ({"uncounted": True}, "more others than it can count"),
    ],
    ids=["an agent of an older version", "a rank that cannot count its exchanges"],
)
def test_a_hold_that_cannot_come_about_is_no_obstacle(trouble, why_not):
    async def scenario():
        job = Job()
        await job.train(9)
        vars(job.fleet.agents["b"]).update(trouble)
        await job.ask()
        assert job.phase is Phase.PREEMPTED
        assert why_not in job.last("hold_missed")["why_not"]

    run(scenario)


def test_an_answer_that_makes_no_sense_does_not_hold_the_job_up():
    async def scenario():
        job = Job()
        await job.train(9)
        job.fleet.agents["b"]._hold = lambda command: ({"ranks": 7} if command.number else {}, "")
        await job.ask()
        await job.wait(2)
        assert job.phase is Phase.PREEMPTED
        assert "AttributeError" in job.last("hold_missed")["why_not"]
        assert holds(job)[-1].number == 0

    run(scenario)


def test_what_is_taken_back_lets_the_ranks_run():
    async def scenario():
        job = Job()
        await job.train(9)
        job.fleet.agents["b"].restless = {3}
        await job.ask()
        await job.ask("resume")
        assert holds(job)[-1].number == holds(job, "b")[-1].number == 0
        await job.wait(20)
        assert job.phase is Phase.RUNNING
        assert "hold_missed" not in job.fleet.journal.kinds()

    run(scenario)


def test_a_job_that_saves_by_itself_is_not_held():
    async def scenario():
        job = Job("ab")
        await job.fleet.form()
        await job.ask(lose_progress=True, wait_s=0.0)
        assert job.phase is Phase.PREEMPTED
        assert not holds(job)
        assert job.last("preempted")["hold"] is None

    run(scenario)


def written(step):
    return OwnCheckpoint(step=step, bytes=9, path=f"/c/{step}.pt", written_ns=int(1e12), files=1)


async def saving_by_itself():
    job = Job("ab")
    await job.fleet.form()
    for agent in job.fleet.agents.values():
        agent.steps, agent.held = dict.fromkeys(agent.steps, 9), ()
    job.fleet.agents["a"].writes(written(7))
    job.fleet.agents["b"].send_heartbeat()
    await job.fleet.settle(1)
    return job


def test_a_script_that_saves_by_itself_is_held_behind_its_next_save():
    async def scenario():
        job = await saving_by_itself()
        await job.ask()
        assert job.phase is Phase.RUNNING
        assert holds(job)[-1].saved_step == 9
        for agent in job.fleet.agents.values():
            agent.steps = dict.fromkeys(agent.steps, 12)
        job.fleet.agents["b"].send_heartbeat()
        job.fleet.agents["a"].writes(written(12))
        await job.fleet.settle(1)
        assert job.phase is Phase.PREEMPTED
        told = job.last("preempted")
        assert (told["lost_steps"], told["hold"]["acquired"]) == (0, True)

    run(scenario)


def test_a_save_behind_which_nobody_stands_counts_after_a_while():
    async def scenario():
        job = await saving_by_itself()
        for agent in job.fleet.agents.values():
            agent.restless = {0, 1, 2, 3}
        await job.ask()
        job.fleet.agents["a"].writes(written(12))
        await job.fleet.settle(1)
        assert job.phase is Phase.RUNNING
        await job.wait(int(OWN_GRACE_S) + 3)
        assert job.phase is Phase.RUNNING  # other files of that checkpoint may follow
        for agent in job.fleet.agents.values():
            agent.steps = dict.fromkeys(agent.steps, 13)
            agent.send_heartbeat()
        await job.wait(1)
        assert job.phase is Phase.PREEMPTED

    run(scenario)


async def one_of_two_stands(**more):
    """Ranks 0 and 2 have each written a file of step 12. Only rank 0 has come to its next backward pass."""
    job = await saving_by_itself()
    job.fleet.agents["b"].writes(written(7))
    await job.fleet.settle(1)
    job.fleet.agents["a"].restless, job.fleet.agents["b"].restless = {1}, {2, 3}
    await job.ask(wait_s=more.pop("wait_s", 60.0))
    for agent in job.fleet.agents.values():
        agent.steps = dict.fromkeys(agent.steps, 12)
        vars(agent).update(more)
        agent.writes(written(12))
    await job.fleet.settle(1)
    return job


def test_a_rank_that_has_files_of_its_checkpoint_still_to_write_is_waited_for():
    async def scenario():
        job = await one_of_two_stands()
        asked = len(holds(job))
        await job.wait(2 * int(LEASE_S))
        assert job.phase is Phase.RUNNING
        assert len(holds(job)) >= asked + LEASE_S / RENEW_S  # or rank 0 would run on
        job.fleet.agents["b"].restless = {3}
        await job.wait(4)
        assert job.phase is Phase.PREEMPTED
        assert job.last("preempted")["lost_steps"] == 0

    run(scenario)


def test_a_rank_that_never_stands_is_not_waited_for_for_ever():
    async def scenario():
        job = await one_of_two_stands(wait_s=10.0)
        await job.wait(int(TORN_S))
        assert job.phase is Phase.RUNNING
        await job.wait(12)
        assert job.phase is Phase.PREEMPTED

    run(scenario)


def test_a_rank_that_waits_for_one_that_stands_has_written_what_it_writes():
    async def scenario():
        job = await one_of_two_stands(waits_in="pipeline")
        assert job.phase is Phase.RUNNING  # it may have waited for another one a moment ago
        await job.wait(int(WAITS_S) + 3)
        assert job.phase is Phase.PREEMPTED

    run(scenario)


async def stand_still(job, seconds):
    """The hub does nothing for a while. Ranks run on once their hold is over."""
    for agent in job.fleet.agents.values():
        agent.restless, agent.steps = {0, 1, 2, 3}, dict.fromkeys(agent.steps, 500)
    await job.fleet.settle(seconds)
    await job.wait(4)


def test_a_hub_that_stood_still_waits_for_a_newer_checkpoint_of_a_script():
    async def scenario():
        job = await one_of_two_stands()
        await stand_still(job, 600)
        await job.wait(int(OWN_GRACE_S) + 3)
        assert job.phase is Phase.RUNNING
        for name, agent in job.fleet.agents.items():
            agent.restless = {1} if name == "a" else {3}
            agent.writes(written(500))
        await job.wait(4)
        assert job.phase is Phase.PREEMPTED
        assert job.last("preempted")["lost_steps"] == 0

    run(scenario)


def test_a_hub_that_stood_still_brings_ranks_to_a_stand_once_more():
    async def scenario():
        job = Job("ab")
        await job.train(9, saved=0)
        await job.ask()
        step = job.fleet.of("a", SaveFrom)[-1].step
        await job.train(step + 3, saved=step + 2)
        number = holds(job)[-1].number
        await stand_still(job, 600)
        assert job.phase is Phase.RUNNING
        assert job.fleet.of("a", SaveFrom)[-1].step > step
        for agent in job.fleet.agents.values():
            agent.restless = set()
        await job.train(job.wanted + 3)
        await job.wait(2)
        assert job.phase is Phase.PREEMPTED
        assert holds(job)[-1].number != number
        assert job.last("preempted")["lost_steps"] == 0

    run(scenario)


def test_a_first_checkpoint_counts_once_all_ranks_have_gone_on_and_the_next_one_is_better():
    async def scenario():
        job = Job("ab")
        await job.fleet.form()
        a, b = job.fleet.agents.values()
        a.held = b.held = ()
        await job.wait(2)
        await job.ask(lose_progress=True)
        number = holds(job)[-1].number
        for step in (12, 13):
            a.steps, b.steps = dict.fromkeys(a.steps, step), dict.fromkeys(b.steps, step)
            b.send_heartbeat()
            a.writes(written(step))
            await job.fleet.settle(1)
            if step == 12:
                await job.wait(int(LEASE_S) + 2)
                assert job.phase is Phase.RUNNING
        assert job.phase is Phase.PREEMPTED
        assert holds(job)[-1].number != number
        assert job.last("preempted")["lost_steps"] == 0

    run(scenario)
