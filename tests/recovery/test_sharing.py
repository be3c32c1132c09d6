"""What one job of a pool says of itself, and how it takes up what it is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import NOT_READ, OwnCheckpoint, SaveFrom, SelfCheck, Start, Stop
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.world_sizes import WorldSizes
from tests.recovery.fakes import Fleet, run

POOL = PoolConfig(devices_per_machine=8)


class Held(Fleet):
    """A job of two nodes that waits for the pool. Each node is a machine."""

    def __init__(self, nodes="abc", **fleet):
        super().__init__(nodes, pool=POOL, **fleet)

    @property
    def share(self):
        return self.controller.jobs["j"].sharing


async def trains_on_two_nodes(nodes="abc"):
    fleet = Held(nodes)
    await fleet.settle(1.0)
    fleet.share.give({"a": 1, "b": 1}, "a test", 5.0)
    await fleet.settle(1.0)
    for agent in fleet.agents.values():
        agent.complete(5, peer_of=range(4))
    return fleet


def test_a_held_job_holds_nothing_and_wants_its_nodes():
    async def scenario():
        fleet = Held()
        await fleet.settle(1.0)
        demand = fleet.share.demand(3)
        assert (fleet.job.phase, dict(demand.placed), demand.busy) == (Phase.PREEMPTED, {}, False)
        assert (demand.unit, demand.least, demand.most, demand.order) == (2, 2, 2, 3)
        assert demand.nodes == {"a": 1, "b": 1, "c": 1}
        assert fleet.share.wanted

    run(scenario)


def test_a_job_is_not_wanted_before_enough_of_its_agents_are_there():
    async def scenario():
        fleet = Held("a")
        await fleet.settle(1.0)
        assert not fleet.share.wanted

    run(scenario)


def test_a_job_does_not_ask_for_devices_before_its_checkpoints_in_storage_are_known():
    async def scenario():
        fleet = Held()
        fleet.agents["b"].stored_attempt = NOT_READ
        fleet.agents["b"].send_heartbeat()
        await fleet.settle(1.0)
        assert (fleet.job.phase, fleet.share.wanted) == (Phase.PREEMPTED, False)
        fleet.agents["b"].stored_attempt = 4
        fleet.agents["b"].send_heartbeat()
        assert fleet.share.wanted

    run(scenario)


def test_it_starts_on_the_nodes_that_it_is_given_and_changes_over_to_others():
    async def scenario():
        fleet = Held()
        await fleet.settle(1.0)
        fleet.share.give({"a": 1, "c": 1}, "a test", 5.0)
        await fleet.settle(1.0)
        assert [m.node for m in fleet.job.world] == ["a", "c"]
        assert fleet.share.holds() == {"a": 1, "c": 1}
        for name in "ac":
            fleet.agents[name].complete(5, peer_of=range(4))
        fleet.share.give({"a": 1, "b": 1}, "a test", 0.0)
        assert fleet.share.holds() == {"a": 1, "b": 1, "c": 1}
        assert not fleet.share.settled
        for _ in range(3):
            await fleet.settle(1.0)
            for agent in fleet.agents.values():
                agent.send_heartbeat()
        assert [m.node for m in fleet.job.world] == ["a", "b"]
        assert (fleet.job.phase, fleet.share.holds()) == (Phase.RUNNING, {"a": 1, "b": 1})
        assert [stop.keep for stop in fleet.of("c", Stop)] == [True, False]
        assert fleet.agents["c"].left is None
        assert fleet.journal.last("recovery")["detail"]["cause"] == "share"

    run(scenario)


async def goes_on(fleet, turns=4):
    for _ in range(turns):
        for agent in fleet.agents.values():
            if agent.node.connected:
                agent.send_heartbeat()
        await fleet.settle(1.0)


def test_a_new_node_that_fails_its_check_leaves_the_job_to_the_pool():
    async def scenario():
        fleet = await trains_on_two_nodes()
        fleet.agents["c"].sick = True
        fleet.share.give({"a": 1, "c": 1}, "a test", 0.0)
        await goes_on(fleet)
        assert fleet.job.phase is Phase.WAITING
        assert fleet.share.settled
        assert not fleet.share.demand(0).busy
        fleet.share.give({"a": 1, "b": 1}, "a test", 5.0)
        await goes_on(fleet)
        assert (fleet.job.phase, [m.node for m in fleet.job.world]) == (Phase.RUNNING, ["a", "b"])

    run(scenario)


def test_a_node_that_is_lost_before_the_job_changes_over_leaves_it_to_the_pool():
    async def scenario():
        fleet = await trains_on_two_nodes()
        fleet.share.give({"a": 1, "c": 1}, "a test", 600.0)
        fleet.agents["a"].drop()
        await goes_on(fleet)
        assert fleet.job.phase is Phase.WAITING
        assert fleet.share.settled

    run(scenario)


def test_a_new_node_that_is_lost_before_the_job_changes_over_stops_nothing():
    async def scenario():
        fleet = await trains_on_two_nodes()
        fleet.share.give({"a": 1, "c": 1}, "a test", 5.0)
        fleet.agents["c"].drop()
        await goes_on(fleet, turns=10)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)
        assert [m.node for m in fleet.job.world] == ["a", "b"]
        assert fleet.share.settled
        assert fleet.share.holds() == {"a": 1, "b": 1}

    run(scenario)


def test_a_job_wants_no_more_devices_before_its_script_has_gone_on_from_its_own_checkpoint():
    async def scenario():
        fleet = Held("abc", nnodes=3, sizes=(1, 1))
        await fleet.settle(1.0)
        fleet.share.give({"a": 1, "b": 1}, "a test", 5.0)
        await fleet.settle(1.0)
        own = fleet.controller.jobs["j"]._state.own_checkpoints
        await fleet.write_own_checkpoints()
        assert fleet.share.demand(0).most == 2
        own.started(1, resumed_step=9)
        assert fleet.share.demand(0).most == 3

    run(scenario)


async def grows_by_its_own_checkpoints():
    """A job on a and b that saves by itself, and is known to read that, is to grow onto c."""
    fleet = Held("abc", nnodes=3, sizes=(1, 1))
    await fleet.settle(1.0)
    fleet.share.give({"a": 1, "b": 1}, "a test", 5.0)
    await fleet.settle(1.0)
    await fleet.write_own_checkpoints()
    fleet.controller.jobs["j"]._state.own_checkpoints.proven = True
    fleet.share.give({"a": 1, "b": 1, "c": 1}, "a test", 5.0, optional=True)
    return fleet


async def trains(fleet, seconds, step=20):
    for _ in range(seconds):
        for agent in fleet.agents.values():
            agent.steps = dict.fromkeys(agent.steps, step)
            agent.send_heartbeat()
        await fleet.settle(1.0)


def test_a_change_that_no_promise_needs_waits_for_the_next_checkpoint_and_leaves_the_job_to_the_pool():
    async def scenario():
        fleet = await grows_by_its_own_checkpoints()
        await trains(fleet, 200)
        assert (fleet.job.attempt, fleet.share.settled) == (0, True)
        demand = fleet.share.demand(0)
        assert (demand.busy, demand.placed) == (False, {"a": 1, "b": 1})
        assert fleet.share.holds() == {"a": 1, "b": 1, "c": 1}
        assert fleet.share.awaits({"a": 1, "b": 1, "c": 1})
        fleet.agents["a"].writes(OwnCheckpoint(step=19, bytes=7, path="/c/ckpt.pt", written_ns=19))
        await trains(fleet, 3)
        await fleet.wait_for_launch()
        assert (fleet.job.attempt, [m.node for m in fleet.job.world]) == (1, ["a", "b", "c"])

    run(scenario)


def test_a_change_whose_checkpoint_does_not_come_is_decided_anew_after_half_an_hour():
    async def scenario():
        fleet = await grows_by_its_own_checkpoints()
        fleet.clock.now_s += POOL.horizon_s
        await trains(fleet, 2)
        assert fleet.controller.jobs["j"]._state.new_share is None
        assert fleet.share.holds() == {"a": 1, "b": 1}

    run(scenario)


def test_a_change_that_waits_is_replaced_by_what_the_pool_wants_now():
    async def scenario():
        fleet = await grows_by_its_own_checkpoints()
        await trains(fleet, 2)
        fleet.share.stop("premium job p needs devices", 0.0)
        await fleet.settle(1.0)
        assert (fleet.job.phase, fleet.share.holds()) == (Phase.PREEMPTED, {})

    run(scenario)


def test_a_change_that_no_promise_needs_stops_no_script_that_may_not_read_its_checkpoint():
    async def scenario():
        fleet = await grows_by_its_own_checkpoints()
        fleet.controller.jobs["j"]._state.own_checkpoints.proven = False
        fleet.agents["a"].writes(OwnCheckpoint(step=19, bytes=7, path="/c/ckpt.pt", written_ns=19))
        await trains(fleet, 5)
        assert fleet.share.demand(0).may_lose_all
        assert fleet.job.attempt == 0

    run(scenario)


def test_a_job_that_trains_alone_holds_what_it_runs_on():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        assert fleet.controller.jobs["j"].sharing.holds() == {"a": 1, "b": 1}
        assert fleet.controller.jobs["j"].sharing.speed() == 1.0

    run(scenario)


def test_agents_of_a_held_job_may_come_at_different_moments():
    async def scenario():
        fleet = Held("a")
        await fleet.settle(1.0)
        assert fleet.job.phase is Phase.PREEMPTED
        fleet.agents["b"] = fleet.join("b")
        fleet.agents["a"].send_heartbeat()
        await fleet.settle(0.5)
        assert fleet.share.wanted
        fleet.share.give({"a": 1, "b": 1}, "a test", 5.0)
        await fleet.settle(1.0)
        assert [m.node for m in fleet.job.world] == ["a", "b"]

    run(scenario)


def test_a_share_that_a_recovery_takes_up_stops_the_job_no_second_time():
    async def scenario():
        fleet = Held()
        await fleet.settle(1.0)
        fleet.share.give({"a": 1, "b": 1}, "a test", 5.0)
        await fleet.settle(1.0)
        fleet.share.give({"a": 1, "c": 1}, "a test", 600.0)
        fleet.agents["a"].rank_exits(0, 1)
        await fleet.wait_for_launch()
        for _ in range(4):
            for agent in fleet.agents.values():
                agent.complete(7, peer_of=range(4))
                agent.send_heartbeat()
            await fleet.settle(1.0)
        assert [m.node for m in fleet.job.world] == ["a", "c"]
        causes = [e["detail"]["cause"] for e in fleet.journal.events if e["kind"] == "recovery"]
        assert "share" not in causes
        assert fleet.job.attempt == 1

    run(scenario)


def test_ranks_go_on_to_save_for_a_share_that_comes_while_the_job_waits_to_grow():
    async def scenario():
        fleet = Fleet("abc", nnodes=3, sizes=(1, 1), policy=Policy(grow_after_s=0.0))
        await fleet.form()
        for agent in fleet.agents.values():
            agent.complete(5, peer_of=range(6))
        state, share = fleet.controller.jobs["j"]._state, fleet.controller.jobs["j"].sharing
        state.resizing.cap = 2  # a person wants fewer, so ranks are asked to save
        await fleet.settle(0.5)
        assert fleet.of("a", SaveFrom)[-1].step > 5
        share.give({"a": 1}, "a test", 600.0)
        await fleet.settle(0.5)
        assert fleet.of("a", SaveFrom)[-1].step > 5
        assert state.new_share is not None

    run(scenario)


def test_ranks_go_on_to_save_for_a_pre_emption_that_follows_a_new_share():
    async def scenario():
        fleet = await trains_on_two_nodes()
        fleet.share.give({"a": 1, "c": 1}, "a test", 600.0)
        fleet.agents["a"].rank_exits(0, 1)  # the recovery takes the share up
        fleet.controller.move("j", person("preempt", wait_s=600.0))
        await fleet.wait_for_launch()
        await fleet.settle(0.5)
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.of("a", SaveFrom)[-1].step > 5

    run(scenario)


def test_what_a_person_wants_no_more_is_free_for_others():
    async def scenario():
        fleet = Held("abc")
        fleet.controller.jobs["j"]._state.resizing.sizes = WorldSizes(least=1, most=3)
        state = fleet.controller.jobs["j"]._state
        state.resizing.cap = 1
        await fleet.settle(1.0)
        assert fleet.share.demand(0).most == 1
        state.resizing.cap = 0
        assert fleet.share.demand(0).most == 3

    run(scenario)


def test_a_new_hub_keeps_a_job_to_the_nodes_that_it_runs_on():
    async def scenario():
        fleet = Fleet("", pool=POOL)
        fleet.agents = {
            name: fleet.join(name, attempt=4, node_rank=rank, world_nodes=2) for rank, name in enumerate("ab")
        }
        fleet.agents["c"] = fleet.join("c")
        await fleet.settle(0.0)
        await fleet.settle(0.6)
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.controller.jobs["j"]._state.members.allowed == {"a", "b"}

    run(scenario)


async def under_a_new_hub(**said):
    """A pooled job that could use three nodes ran on a and c. Its hub was lost, and all its ranks ended."""
    fleet = Held("abc", nnodes=3, sizes=(1, 1))
    await fleet.settle(1.0)
    fleet.share.give({"a": 1, "c": 1}, "a test", 5.0)
    await fleet.settle(1.0)
    assert [m.node for m in fleet.job.world] == ["a", "c"]
    new = Held("", nnodes=3, sizes=(1, 1), memory=fleet.memory)
    new.agents = {name: new.join(name, **said) for name in "abc"}
    await new.settle(0.0)
    await new.settle(0.6)
    return new


def test_a_job_that_stood_while_its_hub_was_lost_keeps_to_the_nodes_that_it_had():
    async def scenario():
        fleet = await under_a_new_hub()
        await fleet.wait_for_launch()
        assert fleet.job.phase is Phase.RUNNING
        assert [m.node for m in fleet.job.world] == ["a", "c"]
        assert fleet.share.holds() == {"a": 1, "c": 1}

    run(scenario)


def test_a_job_that_a_new_hub_finds_without_enough_of_its_nodes_waits_for_the_pool():
    async def scenario():
        fleet = await trains_on_two_nodes()
        new = Held("", memory=fleet.memory)
        new.agents = {name: new.join(name) for name in "ac"}  # another job may run on c
        for _ in range(20):
            for agent in new.agents.values():
                agent.send_heartbeat()
            await new.settle(1.0)
        assert (new.job.phase, new.share.holds(), new.share.wanted) == (Phase.PREEMPTED, {}, True)
        assert [type(c) for c in new.agents["c"].commands if isinstance(c, Start | SelfCheck)] == []
        new.share.give({"a": 1, "c": 1}, "a test", 5.0)
        await new.settle(1.0)
        assert new.job.phase is Phase.RUNNING
        assert [m.node for m in new.job.world] == ["a", "c"]

    run(scenario)


def test_another_run_of_that_name_waits_for_the_pool():
    async def scenario():
        fleet = await under_a_new_hub(pid=4242)
        await fleet.settle(1.0)
        assert (fleet.job.phase, fleet.share.holds()) == (Phase.PREEMPTED, {})
        for agent in fleet.agents.values():
            agent.send_heartbeat()
        fleet.share.give({"b": 1}, "a test", 5.0)
        await fleet.settle(1.0)
        assert [m.node for m in fleet.job.world] == ["b"]

    run(scenario)


def test_steps_that_are_done_again_are_no_work():
    async def scenario():
        fleet = Fleet("abc")
        await fleet.form()
        share = fleet.controller.jobs["j"].sharing
        for name in "ab":
            fleet.agents[name].complete(9)
        await fleet.settle(1.0)
        assert share.speed() == 1.0
        for name in "ab":
            fleet.agents[name].held = tuple(replace(h, step=3) for h in fleet.agents[name].held)
            fleet.agents[name].send_heartbeat()
        fleet.agents["a"].rank_exits(0, 1)
        await fleet.settle(1.0)
        await fleet.wait_for_launch()
        assert (fleet.job.phase, fleet.job.last_step, share.speed()) == (Phase.RUNNING, 4, 0.0)
        for name in "ab":
            fleet.agents[name].complete(9)
        await fleet.settle(1.0)
        assert share.speed() == 1.0

    run(scenario)


def person(what, **changes):
    return MoveRequest(what=what, reason="noon", actor="ann", **changes)


def test_a_job_that_a_person_resumes_waits_for_the_pool():
    async def scenario():
        fleet = await trains_on_two_nodes("ab")
        stopped = fleet.controller.move("j", person("preempt", wait_s=0.0), dry_run=False)
        assert stopped["waits_for"] == ""
        for _ in range(3):
            for agent in fleet.agents.values():
                agent.send_heartbeat()
            await fleet.settle(1.0)
        assert fleet.job.phase is Phase.PREEMPTED
        assert not fleet.share.wanted
        assert fleet.controller.move("j", person("resume"), dry_run=True)["waits_for"] == "pool"
        assert fleet.controller.move("j", person("resume"), dry_run=False)["waits_for"] == "pool"
        await fleet.settle(1.0)
        assert fleet.job.phase is Phase.PREEMPTED
        assert (fleet.share.wanted, fleet.share.kept_stopped) == (True, False)
        fleet.share.give({"a": 1, "b": 1}, "a test", 5.0)
        await fleet.settle(1.0)
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_a_job_that_a_person_stops_keeps_its_devices_until_its_ranks_have_ended():
    async def scenario():
        fleet = await trains_on_two_nodes("ab")
        assert not fleet.share.ending()
        fleet.agents["b"].mute = (Stop,)
        fleet.controller.move("j", person("preempt", wait_s=0.0))
        await fleet.settle(1.0)
        fleet.agents["a"].send_heartbeat()
        assert (fleet.job.phase, fleet.share.wanted) == (Phase.PREEMPTING, False)
        assert fleet.share.ending() == {"b": 2}
        fleet.agents["b"].steps, fleet.agents["b"].restoring = {}, 3
        fleet.agents["b"].send_heartbeat()
        assert fleet.share.ending() == {"b": 2}

    run(scenario)


async def loses(fleet, name):
    fleet.agents[name].drop()
    for _ in range(12):
        for agent in fleet.agents.values():
            if agent is not fleet.agents[name]:
                agent.send_heartbeat()
        await fleet.settle(0.5)
    assert fleet.node(name).state is NodeState.LOST


def test_a_node_that_may_come_back_holds_its_devices_and_its_job_is_left_alone():
    async def scenario():
        fleet = await trains_on_two_nodes()
        fleet.agents["b"].drop()
        assert fleet.share.holds() == {"a": 1, "b": 1}
        assert (fleet.share.ending(), fleet.share.demand(0).busy) == ({}, True)
        fleet.agents["b"].reconnect(attempt=0)
        assert not fleet.share.demand(0).busy

    run(scenario)


def test_devices_of_a_lost_node_are_free_after_a_minute():
    async def scenario():
        fleet = await trains_on_two_nodes()
        await loses(fleet, "b")
        assert fleet.share.ending() == {"b": 2}
        fleet.clock.now_s += 50.0
        assert fleet.share.ending() == {"b": 2}
        fleet.clock.now_s += 20.0
        assert fleet.share.ending() == {}

    run(scenario)


@pytest.mark.parametrize("says", ["leaves", "ended"])
def test_devices_of_a_lost_node_are_free_at_once_where_its_agent_said_so(says):
    async def scenario():
        fleet = await trains_on_two_nodes()
        if says == "leaves":
            fleet.agents["b"].leaves()
        else:
            fleet.agents["b"].steps = {}
            fleet.agents["b"].send_heartbeat()
        await loses(fleet, "b")
        assert fleet.share.ending() == {}

    run(scenario)


def test_a_person_may_keep_a_job_stopped_that_the_pool_has_stopped():
    async def scenario():
        fleet = Held("ab")
        await fleet.settle(1.0)
        assert fleet.share.wanted
        fleet.controller.move("j", person("preempt"), dry_run=False)
        await fleet.settle(1.0)
        assert (fleet.job.phase, fleet.share.wanted) == (Phase.PREEMPTED, False)
        assert fleet.share.kept_stopped
        with pytest.raises(UsageError, match="preempted already"):
            fleet.controller.move("j", person("preempt"), dry_run=False)

    run(scenario)
