"""A run that begins under a hub that knew an earlier run of that name has only its own wishes."""

from __future__ import annotations

import pytest

from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run

ANOTHER = 7000  # pids of its agents


async def wanted():
    """What a hub kept of a job that a person has resized, and was about to stop."""
    fleet = Fleet("abc", nnodes=3, sizes=(1, 1))
    await fleet.form()
    for agent in fleet.agents.values():
        agent.complete(9, peer_of=range(6))
    state = fleet.controller.jobs["j"]._state
    state.resizing.cap, state.resizing.devices = 2, 1
    state.keep_size()
    state.own_checkpoints.proven = True
    state.keep_restarts()
    fleet.controller.move("j", MoveRequest(what="preempt", reason="noon", actor="ann", wait_s=600.0))
    await fleet.settle()
    assert fleet.memory.recall("j").preemption.stopped_ns == 0
    return fleet.memory


async def under_a_new_hub(memory, names="abc", **said):
    fleet = Fleet("", nnodes=3, sizes=(1, 1), memory=memory)
    fleet.agents = {name: fleet.join(name, node_rank=rank, **said) for rank, name in enumerate(names)}
    await fleet.settle(0.0)
    await fleet.settle(0.6)
    return fleet, fleet.controller.jobs["j"]._state


@pytest.mark.parametrize("names", ["abc", "xyz"])
def test_what_was_wanted_of_an_earlier_run_is_forgotten(names):
    async def scenario():
        fleet, state = await under_a_new_hub(await wanted(), names, pid=ANOTHER)
        for _ in range(12):  # nodes of another name may be those of the earlier world
            for agent in fleet.agents.values():
                agent.send_heartbeat()
            await fleet.settle(1.0)
        assert (fleet.job.phase, len(fleet.job.world)) == (Phase.RUNNING, 3)
        assert (state.resizing.cap, state.resizing.devices, state.move) == (0, 0, None)
        assert not state.own_checkpoints.proven
        kept = fleet.memory.recall("j")
        assert (kept.preemption, kept.size.cap, kept.restarts.reads_own) == (None, 0, False)
        assert "earlier run" in fleet.journal.last("preempt_dropped")["detail"]["why_not"]

    run(scenario)


@pytest.mark.parametrize("runs", [True, False])
def test_the_same_run_keeps_what_was_wanted_of_it(runs):
    async def scenario():
        memory = await wanted()
        said = {"attempt": 0, "world_nodes": 3} if runs else {}
        fleet, state = await under_a_new_hub(memory, **said)
        assert (state.resizing.cap, state.resizing.devices) == (2, 1)
        assert state.own_checkpoints.proven
        assert state.move is not None
        assert fleet.job.phase is (Phase.RUNNING if runs else Phase.PREEMPTED)

    run(scenario)


def test_a_job_that_was_stopped_stays_so_for_other_agents():
    async def scenario():
        memory = await wanted()
        fleet, _ = await under_a_new_hub(memory)
        assert fleet.job.phase is Phase.PREEMPTED
        fleet, _ = await under_a_new_hub(memory, pid=ANOTHER)
        assert fleet.job.phase is Phase.PREEMPTED

    run(scenario)
