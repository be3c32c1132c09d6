"""No job is stopped by a move whose work would be lost for good, unless that is wanted."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.unsaved_work import UNSEEN_S
from pulsetrain.recovery.update_request import UpdateRequest
from tests.recovery.fakes import run
from tests.recovery.test_moving import Job
from tests.recovery.test_pool_driver import Pool

SHORT = Policy(stepless_s=10.0)


async def unseen(**agent):
    """A job whose ranks name no steps, on two nodes and a standby."""
    job = Job(stepless=True, policy=SHORT)
    await job.fleet.form()
    for each in job.fleet.agents.values():
        each.worked = agent.get("worked", 0)
    return job


@pytest.mark.parametrize("worked", [5, 0])
def test_a_job_whose_steps_nobody_sees_is_stopped_only_if_that_is_wanted(worked):
    async def scenario():
        job = await unseen(worked=worked)
        await job.wait(20)
        if not worked:
            job.fleet.clock.now_s += UNSEEN_S
            await job.wait(2)
        with pytest.raises(UsageError, match="all its work, of which it names no steps, would be lost"):
            await job.ask()
        now = UpdateRequest(what="apply", reason="r", actor="ann", within_s=0.0)
        with pytest.raises(UsageError, match=r"would be lost\. Without --now it waits"):
            job.fleet.controller.jobs["j"].update(now)
        await job.ask("migrate", node="b", wait_s=4.0)
        await job.wait(10)
        assert job.phase is Phase.RUNNING
        assert "names no steps" in job.last("migrate_dropped")["why_not"]
        await job.ask(lose_progress=True, wait_s=0.0)
        assert job.phase is Phase.PREEMPTED

    run(scenario)


def test_a_job_that_has_just_started_loses_nothing():
    async def scenario():
        job = await unseen()
        await job.wait(4)
        await job.ask(wait_s=0.0)
        assert job.phase is Phase.PREEMPTED

    run(scenario)


def test_a_job_that_a_new_hub_has_just_taken_over_may_have_worked():
    async def scenario():
        job = Job("")
        for rank, name in enumerate("ab"):
            job.fleet.agents[name] = job.fleet.join(name, attempt=4, node_rank=rank, world_nodes=2)
        await job.fleet.form()
        with pytest.raises(UsageError, match="would be lost"):
            await job.ask(wait_s=0.0)
        assert job.phase is Phase.RUNNING

    run(scenario)


def test_a_pre_emption_that_was_asked_for_at_the_start_is_judged_again_when_it_acts():
    async def scenario():
        job = Job("ab", stepless=True)
        await job.fleet.form()
        for agent in job.fleet.agents.values():
            agent.phase = "checkpoint"  # it is not torn
            agent.send_heartbeat()
        await job.ask(wait_s=100.0)
        for agent in job.fleet.agents.values():
            agent.stepless, agent.phase = False, "forward"
            agent.steps, agent.held = dict.fromkeys(agent.steps, 30), ()
        await job.wait(90)
        assert job.fleet.job.move is not None
        await job.wait(20)
        assert (job.phase, job.fleet.job.move) == (Phase.RUNNING, None)
        assert "31 steps would be lost" in job.last("preempt_dropped")["why_not"]
        assert job.fleet.memory.preemptions == {"j": None}

    run(scenario)


def test_a_job_whose_steps_nobody_sees_gives_the_pool_no_devices():
    async def scenario():
        pool = Pool(policy=SHORT)
        pool.come("b", "basic", stepless=True)
        await pool.pass_(4)
        for agent in pool.agents:
            agent.worked = 5
        await pool.pass_(14)
        pool.come("p", "premium")
        await pool.pass_(12)
        assert (pool.phase("b"), pool.phase("p")) == (Phase.RUNNING, Phase.PREEMPTED)

    run(scenario)


def test_a_new_share_stops_no_job_of_which_nothing_is_saved():
    async def scenario():
        pool = Pool(policy=SHORT)
        for host in ("h", "i"):
            pool.come("b", "basic", host, nnodes=2, least=1, stepless=True)
        await pool.pass_(4)
        for agent in pool.agents:
            agent.worked = 5
        await pool.pass_(14)
        pool.fleet.controller.jobs["b"].sharing.give({"h": 1}, "a test", 2.0)
        await pool.pass_(6)
        assert pool.world("b") == ["b-h", "b-i"]
        assert pool.phase("b") is Phase.RUNNING

    run(scenario)
