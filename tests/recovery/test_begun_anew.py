"""A script that does not go on from its checkpoint is ended before it writes over it, as under torchrun."""

from __future__ import annotations

import asyncio

import pytest

from pulsetrain.protocol.messages import FirstStep, Start, Stop
from pulsetrain.recovery import faults
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.state import WORKED_NS
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 30))


async def job_with_a_checkpoint(policy=None, **agent):
    """A job at step 12 whose script has written its checkpoint of step 9."""
    fleet = Fleet("ab", policy=policy or Policy(), **{"takes_run": True, **agent})
    await fleet.form()
    await fleet.write_own_checkpoints()
    return fleet


async def fails(fleet):
    await fails_and_steps(fleet)
    await goes_on(fleet, 3)  # half-way to its first save


async def fails_and_steps(fleet):
    fleet.agents["a"].saved = {}  # the next attempt has saved nothing
    fleet.agents["b"].rank_exits(3, 1)
    await fleet.wait_for_launch()
    await fleet.settle(0.25)


async def goes_on(fleet, step, seconds=0.25):
    for agent in fleet.agents.values():
        if agent.steps:
            agent.steps = dict.fromkeys(agent.steps, step)
            agent.send_heartbeat()
    await fleet.settle(seconds)


async def all_are_given_up(fleet):
    """Nobody was heard for longer than a hub may be cut off."""
    for _ in range(40):
        await fleet.settle(1.0)


def test_it_ends_once_it_is_seen_to_begin_anew_and_says_what_to_do():
    async def scenario():
        fleet = await job_with_a_checkpoint()
        await fails(fleet)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.FAILED, 1)
        assert "ended with exit code 1; training began anew" in fleet.job.failure
        assert "/c/ckpt.pt of step 9" in fleet.job.failure
        assert "--max-restarts" in fleet.job.failure
        assert not fleet.agents["a"].left.persist  # a script that saves at a signal gets no time for it

    run(scenario)


def test_a_script_that_warms_up_before_it_reads_its_checkpoint_is_not_ended():
    async def scenario():
        fleet = await job_with_a_checkpoint()
        await fails_and_steps(fleet)
        assert fleet.job.phase is Phase.RUNNING
        fleet.agents["a"].read_late = 9
        await goes_on(fleet, 10)
        own = fleet.controller.jobs["j"]._state.own_checkpoints
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        assert (own.ignored, own.proven) == (False, True)

    run(scenario)


def test_where_saves_are_rare_twenty_steps_and_a_minute_are_waited_for():
    async def scenario():
        fleet = await job_with_a_checkpoint()
        own = fleet.controller.jobs["j"]._state.own_checkpoints
        own.shortest_gap = lambda attempt: 1000
        await fails_and_steps(fleet)
        await goes_on(fleet, 25)
        assert fleet.job.phase is Phase.RUNNING
        for step in range(30, 40):
            await goes_on(fleet, step, 7.0)
        assert fleet.job.phase is Phase.FAILED

    run(scenario)


def test_a_job_of_older_agents_goes_on_since_they_cannot_say_that_restarts_are_wanted():
    async def scenario():
        fleet = await job_with_a_checkpoint(takes_run=False)
        await fails(fleet)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        assert not fleet.journal.last("began_anew")["detail"]["ended"]

    run(scenario)


def test_a_job_of_which_a_node_has_not_said_what_it_read_goes_on():
    """A learner and its actors on one node: they never all step, so the node reports no first step."""

    async def scenario():
        fleet = await job_with_a_checkpoint()
        fleet.agents["b"].stepless = True
        await fails(fleet)
        for _ in range(50):
            for agent in fleet.agents.values():
                agent.worked += 1
                agent.send_heartbeat()
            await fleet.settle(1.0)
        assert fleet.controller.jobs["j"]._state.attempt.first_step_done
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)

    run(scenario)


@pytest.mark.parametrize(
    "fault",
    [
        lambda now_ns: faults.grown("1 of 2 nodes", 0, now_ns),
        lambda now_ns: faults.updated("a fix", "ann", 0, now_ns),
    ],
)
def test_a_job_that_was_stopped_for_another_reason_than_a_failure_goes_on_and_says_so(fault):
    async def scenario():
        fleet = await job_with_a_checkpoint()
        state = fleet.controller.jobs["j"]._state
        fleet.controller.jobs["j"]._loop.report(fault(state.now_ns()))
        await fleet.wait_for_launch()
        await fleet.settle(0.25)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        told = fleet.journal.last("began_anew")["detail"]
        assert (told["path"], told["step"], told["ended"]) == ("/c/ckpt.pt", 9, False)

    run(scenario)


def test_a_file_that_nobody_knows_says_neither_that_it_resumes_nor_that_it_does_not():
    async def scenario():
        fleet = await job_with_a_checkpoint()
        for agent in fleet.agents.values():
            agent.reads_path = "/scratch/copy.pt"
        await fails(fleet)
        own = fleet.controller.jobs["j"]._state.own_checkpoints
        assert (own.ignored, own.proven) == (False, False)

    run(scenario)


def test_a_script_that_reads_it_goes_on():
    async def scenario():
        fleet = await job_with_a_checkpoint()
        for agent in fleet.agents.values():
            agent.reads_step = 9
        await fails(fleet)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)

    run(scenario)


def test_a_script_that_reads_a_file_of_another_name_may_go_on_from_it():
    async def scenario():
        fleet = await job_with_a_checkpoint()
        fleet.agents["b"].reads_path = "/scratch/copy.pt"
        await fails(fleet)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)

    run(scenario)


def test_who_asks_for_restarts_gets_them_and_is_told():
    async def scenario():
        fleet = await job_with_a_checkpoint(may_begin_anew=True)
        await fails(fleet)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        assert fleet.journal.last("began_anew")["detail"] == {
            "path": "/c/ckpt.pt", "step": 9, "attempt": 0, "ended": False,
        }  # fmt: skip

    run(scenario)


def test_a_job_that_has_no_checkpoint_begins_anew():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        for agent in fleet.agents.values():
            agent.held = ()
            agent.send_heartbeat()
        await fails(fleet)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)

    run(scenario)


def test_a_run_that_takes_the_place_of_one_that_vanished_is_not_ended():
    """All agents are new: somebody has started the script again, and wants it to begin anew."""

    async def scenario():
        fleet = await job_with_a_checkpoint()
        for name in "ab":
            fleet.agents[name].drop()
        await all_are_given_up(fleet)
        assert fleet.job.phase is Phase.WAITING
        for name in "ab":
            fleet.agents[name] = fleet.join(name, pid=999, agent_id=f"new-{name}", takes_run=True)
        await fleet.settle(2.0)
        await fleet.wait_for_launch()
        await fleet.settle(0.25)
        await goes_on(fleet, 3)
        assert fleet.job.phase is Phase.RUNNING
        assert not fleet.journal.last("began_anew")["detail"]["ended"]

    run(scenario)


def test_a_standby_that_takes_the_place_of_the_only_node_is_no_other_run():
    async def scenario():
        fleet = Fleet("a", nnodes=1, takes_run=True)
        await fleet.form()
        await fleet.write_own_checkpoints()
        fleet.agents["b"] = fleet.join("b", takes_run=True)
        fleet.agents["a"].drop()
        await fleet.settle(5.0)
        await fleet.settle(1.0)
        await fleet.wait_for_launch()
        await fleet.settle(0.25)
        await goes_on(fleet, 3)
        assert fleet.of("b", Start)
        assert fleet.job.phase is Phase.FAILED

    run(scenario)


def test_a_declared_standby_that_comes_after_the_only_node_is_lost_is_no_other_run():
    async def scenario():
        fleet = Fleet("a", nnodes=1, takes_run=True)
        await fleet.form()
        await fleet.write_own_checkpoints()
        fleet.agents["a"].drop()
        await all_are_given_up(fleet)
        assert fleet.job.phase is Phase.WAITING
        fleet.agents["b"] = fleet.join("b", takes_run=True, standby=True)
        await fleet.settle(2.0)
        await fleet.wait_for_launch()
        await fleet.settle(0.25)
        await goes_on(fleet, 3)
        assert fleet.job.phase is Phase.FAILED

    run(scenario)


def test_a_job_that_a_pool_has_stopped_is_ended_since_nobody_wanted_it_to_begin_anew():
    async def scenario():
        fleet = await job_with_a_checkpoint()
        job = fleet.controller.jobs["j"]
        job._loop.report(faults.shared("premium job p needs devices", 0, job._state.now_ns()))
        await fleet.wait_for_launch()
        await fleet.settle(0.25)
        await goes_on(fleet, 3)
        assert fleet.job.phase is Phase.FAILED

    run(scenario)


@pytest.mark.parametrize(
    ("resumed_by", "lose_progress", "ends"),
    [("pool", False, True), ("pool", True, False), ("ann", False, False)],
)
def test_a_job_that_a_pool_has_preempted_is_ended_unless_a_person_let_it_go_on(
    resumed_by, lose_progress, ends
):
    async def scenario():
        fleet = await job_with_a_checkpoint()
        stop = MoveRequest(what="preempt", reason="p needs devices", actor=faults.POOL, wait_s=0.0)
        go_on = MoveRequest(
            what="resume", reason="p is done", actor=resumed_by, wait_s=0.0, lose_progress=lose_progress
        )
        fleet.controller.move("j", stop)
        await fleet.settle(1.0)
        assert fleet.job.phase is Phase.PREEMPTED
        fleet.controller.move("j", go_on)
        await fleet.settle(1.0)
        await goes_on(fleet, 3)
        assert fleet.job.phase is (Phase.FAILED if ends else Phase.RUNNING)

    run(scenario)


def under_a_new_hub(before, *, attempt=1, **agent):
    """The agents of this fleet report to a hub that has what the one before has kept."""
    after = Fleet("", memory=before.memory)
    after.clock.now_s = before.clock.now_s + 2.0
    for rank, name in enumerate("ab"):
        of = {"takes_run": True, "attempt": attempt, "node_rank": rank, "world_nodes": 2, **agent}
        joined = after.agents[name] = after.join(name, **of)
        joined.attempt, joined.steps = max(attempt, 0), {2 * rank: -1, 2 * rank + 1: -1}
        joined.send_heartbeat()
    return after


def first_steps(fleet, **read):
    for name, agent in fleet.agents.items():
        agent.complete(0)
        report = FirstStep(node=name, ts_ns=0, attempt=agent.attempt, step=0, stages_ns={}, **read)
        fleet.controller.received(agent.node, report)


async def fails_without_a_step(**agent):
    fleet = await job_with_a_checkpoint(**agent)
    for each in fleet.agents.values():
        each.stepless = True
    await fails_and_steps(fleet)
    assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
    return fleet


async def loads(fleet, seconds):
    """All ranks work, and none has done a step."""
    for _ in range(seconds):
        for agent in fleet.agents.values():
            agent.worked += 1
            agent.send_heartbeat()
        await fleet.settle(1.0)


@pytest.mark.parametrize(("read", "phase"), [({}, Phase.FAILED), ({"resumed_step": 9}, Phase.RUNNING)])
def test_a_restart_that_loads_for_minutes_before_its_first_step_is_told_by_that_step(read, phase):
    async def scenario():
        fleet = await fails_without_a_step()
        await loads(fleet, 60)
        assert not fleet.controller.jobs["j"]._state.attempt.first_step_done
        for agent in fleet.agents.values():
            agent.stepless = False
        first_steps(fleet, **read)
        await goes_on(fleet, 3)
        detail = fleet.journal.last("recovery")["detail"]
        assert detail["resumed_by"] == ("script" if read else "nothing")
        assert fleet.job.phase is phase

    run(scenario)


def test_a_script_that_names_no_steps_any_more_is_under_way_in_the_end():
    async def scenario():
        fleet = await fails_without_a_step()
        await loads(fleet, 40)
        state = fleet.controller.jobs["j"]._state
        assert not state.attempt.first_step_done
        state.attempt.started_ns -= WORKED_NS  # so much later
        await loads(fleet, 1)
        assert state.attempt.first_step_done
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


@pytest.mark.parametrize(
    ("read", "phase"),
    [
        ({}, Phase.FAILED),
        ({"resumed_step": 9}, Phase.RUNNING),
        ({"resumed_path": "/scratch/copy.pt"}, Phase.RUNNING),
    ],
)
def test_a_hub_that_is_started_anew_before_the_first_step_still_knows_of_the_checkpoint(read, phase):
    async def scenario():
        fleet = under_a_new_hub(await fails_without_a_step())
        await fleet.settle(1.0)
        first_steps(fleet, **read)
        await goes_on(fleet, 3)
        assert fleet.job.phase is phase
        assert ("/c/ckpt.pt of step 9" in fleet.job.failure) is (phase is Phase.FAILED)

    run(scenario)


def test_a_hub_that_is_started_anew_while_the_job_stands_still_knows_of_the_checkpoint():
    async def scenario():
        before = await job_with_a_checkpoint()
        before.agents["a"].mute = before.agents["b"].mute = (Stop,)
        before.agents["b"].rank_exits(3, 1)
        await before.settle(0.25)
        assert before.job.phase is Phase.SUSPENDING
        fleet = under_a_new_hub(before, attempt=-1)
        await fleet.settle(1.0)
        await fleet.settle(1.0)
        assert fleet.of("a", Start)
        await goes_on(fleet, 3)
        assert fleet.job.phase is Phase.FAILED

    run(scenario)


def test_a_hub_that_is_started_anew_after_the_first_step_gives_the_script_its_time_to_read():
    async def scenario():
        before = await job_with_a_checkpoint()
        before.controller.jobs["j"]._state.own_checkpoints.shortest_gap = lambda attempt: 1000
        await fails_and_steps(before)
        fleet = under_a_new_hub(before)
        await goes_on(fleet, 25, 1.0)
        await goes_on(fleet, 26)
        assert fleet.job.phase is Phase.RUNNING
        for step in range(30, 40):
            await goes_on(fleet, step, 7.0)
        assert fleet.job.phase is Phase.FAILED

    run(scenario)


def test_a_new_hub_does_not_end_a_run_whose_agents_were_all_started_anew():
    async def scenario():
        before = await fails_without_a_step()
        fleet = under_a_new_hub(before, attempt=-1, pid=999)
        await fleet.settle(1.0)
        await fleet.settle(20.0)
        assert fleet.of("a", Start)
        await goes_on(fleet, 3)
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_it_is_ended_also_where_all_ranks_step_a_moment_before_the_launch_counts_as_answered():
    async def scenario():
        fleet = await job_with_a_checkpoint()
        state = fleet.controller.jobs["j"]._state
        enter, seen = state.enter, []

        def looks_before_it_runs(phase):
            if phase is Phase.RUNNING:
                seen.append(state.left_behind is not None)
                fleet.controller.tick()
            enter(phase)

        state.enter = looks_before_it_runs
        await fails(fleet)
        assert seen == [True]
        assert fleet.job.phase is Phase.FAILED

    run(scenario)
