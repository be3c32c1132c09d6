"""Nodes that were given up and come back with ranks that nobody has ended."""

import asyncio

import pytest

from pulsetrain.protocol.messages import FirstStep, Reply, SelfCheck, Start, Stop
from pulsetrain.recovery.memory import WorldMemory
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeMemory, Fleet, run


async def _given_up(nodes="ab", **fleet_options):
    """All nodes of the world are lost, and the job waits. Their ranks train on."""
    fleet = Fleet(nodes, **fleet_options)
    await fleet.form()
    for number, name in enumerate("ab"):
        fleet.agents[name].complete(9, peer_of=(2 - 2 * number, 3 - 2 * number))
    await _cut_off(fleet, nodes)
    return fleet


async def _cut_off(fleet, nodes="ab"):
    for name in "ab":
        fleet.agents[name].drop(moves=True)
    for _ in range(62):
        for name in nodes[2:]:
            fleet.agents[name].send_heartbeat()
        await fleet.settle(0.5)
    assert fleet.job.phase is Phase.WAITING


async def _back(fleet, name, **changes):
    fleet.agents[name].reconnect(**{"attempt": 0, "node_rank": "ab".index(name), **changes})
    fleet.agents[name].send_heartbeat()
    await fleet.settle(0.3)


def _of(fleet, kind):
    return [command for name in "ab" for command in fleet.of(name, kind)]


def test_ranks_are_taken_over_where_they_are_though_a_standby_was_heard_all_the_time():
    """The job waited for what its nodes have in memory, so that the standby was not promoted."""

    async def scenario():
        fleet = await _given_up("abz")
        await _back(fleet, "b")
        assert fleet.job.phase is Phase.WAITING
        await _back(fleet, "a")
        await fleet.settle(0.3)
        job = fleet.job
        assert (job.phase, job.attempt, job.fault) == (Phase.RUNNING, 0, None)
        assert [member.node for member in job.world] == ["a", "b"]
        assert not [*_of(fleet, Stop), *_of(fleet, SelfCheck)]
        assert fleet.journal.last("adopted")["detail"] == {"world": ["a", "b"]}
        assert fleet.journal.kinds().count("adopted") == 1

    run(scenario)


def test_one_that_comes_back_alone_waits_for_the_others_and_then_starts_anew():
    async def scenario():
        fleet = await _given_up(policy=Policy(adopt_timeout_s=10.0, lost_state_wait_s=0.0), sizes=(1, 1))
        await _back(fleet, "a")
        for _ in range(18):
            await fleet.settle(0.5)
            fleet.agents["a"].send_heartbeat()
        assert not _of(fleet, Stop)
        assert fleet.job.phase is Phase.WAITING
        for _ in range(6):
            await fleet.settle(0.5)
            fleet.agents["a"].send_heartbeat()
        assert len(fleet.of("a", Stop)) == 1
        assert (fleet.job.phase, [m.node for m in fleet.job.world]) == (Phase.RUNNING, ["a"])

    run(scenario)


def test_one_beside_a_new_agent_does_not_wait():
    async def scenario():
        fleet = await _given_up()
        await _back(fleet, "a")
        fleet.agents["b"] = fleet.join("b", pid=77)
        await fleet.settle(0.1)
        assert len(fleet.of("a", Stop)) == 1
        await fleet.settle(0.6)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        assert len(_of(fleet, Start)) == 3

    run(scenario)


def test_ranks_of_another_attempt_are_ended():
    async def scenario():
        fleet = await _given_up()
        await _back(fleet, "a", attempt=7)
        assert len(fleet.of("a", Stop)) == 1
        assert fleet.node("a").state is NodeState.STANDBY

    run(scenario)


def test_a_rank_that_failed_meanwhile_stops_the_job_once_it_was_taken_over():
    async def scenario():
        fleet = await _given_up()
        await _back(fleet, "a")
        fleet.agents["a"].rank_exits(0, -9)
        await _back(fleet, "b")
        for _ in range(3):
            await fleet.settle(0.5)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        assert fleet.journal.last("recovery")["detail"]["culprit"] == "rank 0"

    run(scenario)


def test_a_hub_that_only_observes_leaves_a_node_alone_that_was_away():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(observe_only=True))
        await fleet.form()
        fleet.agents["b"].drop()
        for _ in range(3):
            fleet.agents["a"].send_heartbeat()
            await fleet.settle(1.0)
        assert fleet.node("b").state is NodeState.LOST
        await _back(fleet, "b")
        assert fleet.node("b").state is NodeState.ACTIVE
        assert not fleet.of("b", Stop)

    run(scenario)


def test_it_does_so_where_a_launch_had_failed_on_another_node():
    async def scenario():
        fleet = Fleet("", policy=Policy(observe_only=True))
        fleet.agents = {"a": fleet.join("a"), "b": fleet.join("b", mute=(Start,))}
        await fleet.settle()
        await fleet.settle(0.6)
        fleet.agents["b"].node.answered(Reply(id=fleet.of("b", Start)[0].id, node="b", error="no memory"))
        await fleet.settle(0.1)
        assert fleet.journal.last("would")["detail"]["event"] == "start_failed"
        fleet.agents["a"].drop(moves=True)
        for _ in range(8):
            fleet.agents["b"].send_heartbeat()
            await fleet.settle(0.5)
        assert fleet.node("a").state is NodeState.LOST
        await _back(fleet, "a")
        assert (fleet.node("a").state, fleet.of("a", Stop)) == (NodeState.ACTIVE, [])

    run(scenario)


@pytest.mark.parametrize("known", [False, True])
def test_a_hub_that_only_observes_takes_an_agent_in_that_comes_late_after_its_restart(known):
    async def scenario():
        memory = FakeMemory()
        if known:
            memory.world("j", WorldMemory(attempt=5, nodes=["a", "b"], pids=[97, 98]))
        fleet = Fleet("", policy=Policy(observe_only=True), memory=memory)
        fleet.agents["a"] = fleet.join("a", attempt=5, node_rank=0, world_nodes=2)
        for _ in range(13):
            fleet.agents["a"].send_heartbeat()
            await fleet.settle(0.9)
        assert fleet.journal.last("would")["detail"]["event"] == "node_lost"
        fleet.agents["b"] = fleet.join("b", attempt=5, node_rank=1, world_nodes=2)
        fleet.agents["x"] = fleet.join("x", attempt=4, node_rank=1, world_nodes=2)
        await fleet.settle(0.3)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 5)
        assert [member.node for member in fleet.job.world] == ["a", "b"]
        assert [fleet.node(name).state for name in "abx"] == ["active", "active", "standby"]
        assert not [stop for name in "abx" for stop in fleet.of(name, Stop)]

    run(scenario)


def _first_step(fleet, name):
    fleet.controller.received(
        fleet.agents[name].node, FirstStep(node=name, ts_ns=0, attempt=0, step=0, stages_ns={"init": 5})
    )


def test_first_steps_that_are_told_before_the_ranks_are_taken_over_launch_nothing():
    async def scenario():
        fleet = await _given_up(stepless=True)
        for name in "ab":
            fleet.agents[name].reconnect(attempt=0, node_rank="ab".index(name))
            _first_step(fleet, name)
        for _ in range(4):
            await fleet.settle(0.25)
        job = fleet.job
        assert (job.phase, job.attempt, job.fault, job.first_step_done) == (Phase.RUNNING, 0, None, True)
        assert not _of(fleet, Stop)
        assert "recovery" not in fleet.journal.kinds()

    run(scenario)


def test_a_rank_that_fails_at_the_moment_when_it_is_taken_over_stops_the_job():
    async def scenario():
        fleet = await _given_up()
        await _back(fleet, "a")
        fleet.agents["b"].reconnect(attempt=0, node_rank=1)
        fleet.controller.tick()
        assert fleet.job.phase is Phase.WAITING
        fleet.agents["b"].rank_exits(2, -9)
        for _ in range(4):
            await fleet.settle(0.5)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        assert fleet.journal.last("recovery")["detail"]["culprit"] == "rank 2"

    run(scenario)


def test_so_does_one_that_fails_at_the_moment_when_a_new_hub_takes_its_job_over():
    async def scenario():
        fleet = Fleet("")
        for rank, name in enumerate("ab"):
            fleet.agents[name] = fleet.join(name, attempt=5, node_rank=rank, world_nodes=2)
            fleet.agents[name].attempt = 5
        fleet.controller.tick()
        assert fleet.job.phase is Phase.FORMING
        fleet.agents["b"].rank_exits(2, -9)
        while fleet.job.phase is Phase.FORMING:
            await asyncio.sleep(0)
        for _ in range(4):
            await fleet.settle(0.5)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 6)

    run(scenario)


def test_a_job_that_is_cut_off_again_and_again_before_its_first_step_is_not_given_up():
    async def scenario():
        fleet = await _given_up(stepless=True)
        for _ in range(3):
            await _back(fleet, "a")
            await _back(fleet, "b")
            assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)
            kept = fleet.memory.recall("j").restarts
            assert (sum(kept.idle_lost.values()), sum(map(len, kept.by_node_ns.values()))) == (0, 0)
            await _cut_off(fleet)

    run(scenario)


def test_new_agents_that_join_one_after_the_other_do_not_make_it_wait_longer():
    async def scenario():
        fleet = await _given_up(policy=Policy(adopt_timeout_s=10.0, lost_state_wait_s=0.0))
        await _back(fleet, "a")
        for name in "cdef":
            fleet.agents[name] = fleet.join(name, standby=True)
            for _ in range(6):
                for agent in fleet.agents.values():
                    if agent.node.connected:
                        agent.send_heartbeat()
                await fleet.settle(0.5)
        assert len(fleet.of("a", Stop)) == 1
        assert (fleet.job.phase, [m.node for m in fleet.job.world]) == (Phase.RUNNING, ["a", "c"])

    run(scenario)
