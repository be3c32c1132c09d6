"""Nodes that had finished and gone when another hub takes the job over."""

from __future__ import annotations

import pytest

from pulsetrain.protocol.messages import Start, Stop
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run


async def _under_a_new_hub(codes=(0, 0)):
    """The ranks of node a end with `codes`, it goes, and then the hub. Nodes b and c are at the next one."""
    fleet = Fleet("abc", nnodes=3)
    await fleet.form()
    for rank, code in enumerate(codes):
        fleet.agents["a"].rank_exits(rank, code)
    await fleet.settle(0.25)
    later = Fleet("", nnodes=3, memory=fleet.memory)
    later.clock.now_s = fleet.clock.now_s + 5
    later.agents = {
        name: later.join(name, attempt=0, node_rank=rank, world_nodes=3)
        for rank, name in ((1, "b"), (2, "c"))
    }
    for agent, ranks in (later.agents["b"], (2, 3)), (later.agents["c"], (4, 5)):
        agent.attempt, agent.steps = 0, dict.fromkeys(ranks, 5)
        agent.send_heartbeat()
    await later.settle(0.0)
    return later


async def _train(fleet, seconds):
    for second in range(seconds):
        for agent in fleet.agents.values():
            agent.complete(6 + second)
        await fleet.settle(1.0)


def test_a_node_that_had_finished_is_neither_waited_for_nor_lost():
    async def scenario():
        fleet = await _under_a_new_hub()
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.RUNNING
        await _train(fleet, 40)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)
        assert not [c for name in "bc" for kind in (Stop, Start) for c in fleet.of(name, kind)]
        for name, ranks in ("b", (2, 3)), ("c", (4, 5)):
            for rank in ranks:
                fleet.agents[name].rank_exits(rank, 0)
        await fleet.settle()
        assert fleet.job.phase is Phase.FINISHED

    run(scenario)


def test_a_third_hub_knows_it_too():
    async def scenario():
        fleet = await _under_a_new_hub()
        await _train(fleet, 2)
        assert fleet.memory.recall("j").world.finished == [0]

    run(scenario)


@pytest.mark.parametrize("codes", [(), (0,)])
def test_a_node_of_which_a_rank_had_not_finished_is_lost(codes):
    async def scenario():
        fleet = await _under_a_new_hub(codes)
        await _train(fleet, 14)
        assert "did not report to the new hub" in fleet.job.fault.reason
        assert fleet.job.phase is Phase.WAITING

    run(scenario)
