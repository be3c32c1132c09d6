"""A hub that is cut off from all nodes of a job at once: nobody is given up for that too soon."""

import asyncio

import pytest

from pulsetrain.protocol.messages import Stop
from pulsetrain.recovery.actions import POLL_S
from pulsetrain.recovery.cut_off import BACK_GRACE_S, CutOff
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run


def test_silence_of_all_says_nothing_of_one_until_the_others_had_time_to_come_back():
    cut_off = CutOff()
    assert not cut_off.look(nobody=False, now_s=0.0)
    assert cut_off.look(nobody=True, now_s=1.0)
    assert cut_off.look(nobody=False, now_s=9.0)
    assert cut_off.look(nobody=False, now_s=9.0 + BACK_GRACE_S)
    assert not cut_off.look(nobody=False, now_s=9.1 + BACK_GRACE_S)


async def _cut(nodes, seconds):
    """All connections of a job that trains close, and none is back for some seconds."""
    fleet = Fleet(nodes, nnodes=len(nodes))
    await fleet.form()
    for agent in fleet.agents.values():
        agent.drop(moves=True)
    for _ in range(int(seconds * 2)):
        await fleet.settle(0.5)
    return fleet


async def _back(fleet, name):
    fleet.agents[name].reconnect(attempt=0, node_rank=sorted(fleet.agents).index(name))
    fleet.agents[name].send_heartbeat()
    await fleet.settle(0.5)


@pytest.mark.parametrize("nodes", ["a", "ab"])
@pytest.mark.parametrize("seconds", [1.5, 28.0, 40.0])
def test_a_job_all_of_whose_connections_close_trains_on_when_they_are_back(nodes, seconds):
    async def scenario():
        fleet = await _cut(nodes, seconds)
        for name in nodes:
            await _back(fleet, name)
        await fleet.settle(0.5)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)
        assert not [stop for name in nodes for stop in fleet.of(name, Stop)]
        assert fleet.job.fault is None

    run(scenario)


def test_after_a_short_cut_nobody_was_lost_and_the_job_says_that_it_hears_nobody():
    async def scenario():
        fleet = await _cut("ab", 20.0)
        assert fleet.job.silent_s == pytest.approx(20.0)
        assert {node.state for node in fleet.job.nodes} == {NodeState.ACTIVE}
        assert "node_lost" not in fleet.journal.kinds()

    run(scenario)


def test_nodes_that_are_all_gone_are_told_after_half_a_minute_and_new_ones_take_their_places():
    async def scenario():
        fleet = await _cut("ab", 31.0)
        assert fleet.job.phase is Phase.WAITING
        assert fleet.journal.kinds().count("node_lost") == 2
        assert fleet.journal.last("waiting")["detail"] == {"missing_nodes": 2}
        for name in "cd":
            fleet.agents[name] = fleet.join(name)
        await fleet.settle(0.1)
        await fleet.settle(0.6)
        assert [member.node for member in fleet.job.world] == ["c", "d"]
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_a_new_agent_of_the_only_node_starts_the_job_anew_at_once():
    async def scenario():
        fleet = await _cut("a", 1.5)
        fleet.agents["a"] = fleet.join("a", pid=77)
        await fleet.settle(0.1)
        await fleet.settle(0.6)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)

    run(scenario)


def test_a_node_that_stays_away_longer_than_the_others_is_lost():
    async def scenario():
        fleet = await _cut("ab", 10.0)
        await _back(fleet, "a")
        for _ in range(4):
            fleet.agents["a"].send_heartbeat()
            await fleet.settle(0.5)
        assert fleet.node("b").state is NodeState.ACTIVE
        for _ in range(4):
            fleet.agents["a"].send_heartbeat()
            await fleet.settle(0.5)
        assert fleet.node("b").state is NodeState.LOST

    run(scenario)


async def _silent(nodes, seconds):
    """Nothing comes from the nodes of a job any more, though no connection closes. Their beats were apart."""
    fleet = Fleet(nodes)
    await fleet.form()
    for name in nodes:
        fleet.agents[name].send_heartbeat()
        await fleet.settle(0.5)
    for _ in range(int(seconds * 4)):
        await fleet.settle(0.25)
    return fleet


@pytest.mark.parametrize("seconds", [28.5, 31.0])
def test_nobody_is_told_to_stop_because_one_was_silent_longer_than_the_others(seconds):
    async def scenario():
        fleet = await _silent("ab", seconds)
        for name in "ab":
            fleet.controller.disconnected(fleet.agents[name].node, fleet.agents[name].send)
            await _back(fleet, name)
        await fleet.settle(0.5)
        assert not [stop for name in "ab" for stop in fleet.of(name, Stop)]
        assert (fleet.job.phase, fleet.job.attempt, fleet.job.fault) == (Phase.RUNNING, 0, None)

    run(scenario)


def test_a_silence_that_was_survived_makes_no_difference_to_that():
    async def scenario():
        fleet = await _silent("ab", 28.0)
        for name in "ab":
            fleet.agents[name].send_heartbeat()
            await fleet.settle(0.25)
        for _ in range(240):
            await fleet.settle(0.25)
        for name in "ab":
            await _back(fleet, name)
        await fleet.settle(0.5)
        assert not [stop for name in "ab" for stop in fleet.of(name, Stop)]
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)

    run(scenario)


def test_a_node_that_is_silent_when_its_job_stops_is_told_once_it_is_heard():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        for _ in range(12):
            fleet.agents["a"].send_heartbeat()
            await fleet.settle(0.5)
        fleet.agents["a"].rank_exits(0, 1)
        await fleet.settle(0.25)
        assert (len(fleet.of("a", Stop)), fleet.of("b", Stop)) == (1, [])
        fleet.agents["b"].send_heartbeat()
        await asyncio.sleep(2 * POLL_S)
        assert len(fleet.of("b", Stop)) == 1
        await fleet.settle(0.25)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)

    run(scenario)
