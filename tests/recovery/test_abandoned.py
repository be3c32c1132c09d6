"""A job that nobody is left of, and another run of its name."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run


async def _lost(names="ab"):
    """A job that waits, after all its agents were lost."""
    fleet = Fleet("ab")
    await fleet.form()
    for name in names:
        fleet.agents[name].drop(moves=True)
    for _ in range(70):
        for name in set("ab") - set(names):
            fleet.agents[name].send_heartbeat()
        await fleet.settle(0.5)
    assert fleet.job.phase is Phase.WAITING
    return fleet


async def _begins(fleet, names="xyz", **said):
    """Agents of a run of three nodes come."""
    fleet.nnodes = 3
    for number, name in enumerate(names):
        hello = fleet_hello(fleet, name, pid=800 + number, **said)
        await fleet.controller.look_up(hello)
        fleet.agents[name] = fleet.join(name, pid=800 + number, **said)


def fleet_hello(fleet, name, **said):
    """What the agent of `name` says, as `Fleet.join` has it."""
    other = Fleet("", nnodes=fleet.nnodes)
    return other.join(name, **said).hello


def test_another_run_of_other_sizes_begins_once_nobody_is_left_of_a_job_that_waits():
    async def scenario():
        fleet = await _lost()
        await _begins(fleet)
        await fleet.form()
        assert (len(fleet.job.world), fleet.job.attempt) == (3, 1)
        assert fleet.job.phase is Phase.RUNNING
        failed = fleet.journal.last("job_failed")
        assert "all its nodes are lost" in failed["detail"]["reason"]
        assert failed["attempt"] == 0
        assert fleet.memory.recall("j").world.attempt == 1  # what is kept is of the new run

    run(scenario)


def test_a_node_that_is_there_keeps_the_name_for_its_job():
    async def scenario():
        fleet = await _lost("a")
        with pytest.raises(UsageError, match="says --nnodes=3"):
            await _begins(fleet)
        assert fleet.job.phase is Phase.WAITING

    run(scenario)


def test_agents_that_were_heard_a_moment_ago_may_be_back():
    async def scenario():
        fleet = await _lost()
        for node in fleet.controller.jobs["j"]._state.members.nodes.values():
            node.heard_s = fleet.clock.now_s - 5
        with pytest.raises(UsageError, match="says --nnodes=3"):
            await _begins(fleet)
        assert fleet.job.phase is Phase.WAITING

    run(scenario)


def test_a_run_of_the_same_sizes_goes_on_as_the_job_that_waits():
    async def scenario():
        fleet = await _lost()
        for number, name in enumerate("ab"):
            await fleet.controller.look_up(fleet_hello(fleet, name, pid=900 + number))
            fleet.agents[name] = fleet.join(name, pid=900 + number)
        for _ in range(4):
            await fleet.settle(1.0)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        assert "job_failed" not in fleet.journal.kinds()

    run(scenario)


def test_nodes_of_the_run_that_made_way_are_sent_away():
    async def scenario():
        fleet = await _lost()
        await _begins(fleet)
        await fleet.form()
        fleet.nnodes = 2
        fleet.agents["a"].reconnect(attempt=0, node_rank=0, world_nodes=2)
        await fleet.settle(0.3)
        assert fleet.agents["a"].left is not None
        assert [n.state for n in fleet.job.nodes] == [NodeState.ACTIVE] * 3

    run(scenario)
