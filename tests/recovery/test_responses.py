"""What a job does about trouble of its machines, against fake agents."""

import asyncio
import dataclasses

from pulsetrain.protocol.messages import Leave, OwnCheckpoint, PairCheck, SelfCheck, Start
from pulsetrain.recovery import responses
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, Observed, hang, run


def trouble(node, response, *, kind="gpu_fault", attempt=0, **details):
    evidence = {"node": node, "response": response, "policy": "row", "onset_ns": 1, **details}
    return Observed(
        kind=kind, subject=f"{node}/GPU-1", subject_type="gpu", attempt=attempt, details=evidence,
        summary=f"{node}/GPU-1 is lost",
    )  # fmt: skip


class Job:
    """A fleet whose machines can be in trouble."""

    def __init__(self, nodes="abz", **policy):
        self.fleet = Fleet(nodes, policy=Policy(**policy))

    async def form(self):
        await self.fleet.form()
        for agent in (self.fleet.agents["a"], self.fleet.agents["b"]):
            agent.complete(9, peer_of=(0, 1, 2, 3))

    async def see(self, *found, seconds=0.0):
        self.fleet.controller.jobs["j"].observe((), found)
        await self.fleet.settle(seconds)

    @property
    def world(self):
        return [member.node for member in self.fleet.job.world]

    def told(self, kind):
        return [e for e in self.fleet.journal.events if e["kind"] == kind]


def test_evict_now_replaces_the_node_without_a_check_of_it():
    async def scenario():
        job = Job()
        await job.form()
        await job.see(trouble("b", "evict_now"))
        assert job.world == ["a", "z"]
        assert job.fleet.job.phase is Phase.RUNNING
        assert job.fleet.of("b", Leave)
        assert not job.fleet.of("b", SelfCheck)
        assert job.fleet.of("z", SelfCheck)  # a standby is checked before it is promoted
        assert {c.members for c in job.fleet.of("a", PairCheck)} == {("z", "a")}  # as the standby's partner
        recovery = job.fleet.journal.last("recovery")["detail"]
        assert (recovery["cause"], recovery["node"], recovery["lost_steps"]) == ("gpu_fault", "b", 0)
        (evict,) = job.told("evict")
        assert (evict["node"], evict["actor"]) == ("b", "controller")

    run(scenario)


def test_what_is_seen_again_and_again_evicts_once():
    async def scenario():
        job = Job("abyz")
        await job.form()
        for _ in range(5):
            job.fleet.controller.jobs["j"].observe((), [trouble("b", "evict_now")])
        await job.fleet.settle()
        assert job.world == ["a", "y"]
        assert len(job.told("evict")) == len(job.told("recovery")) == 1

    run(scenario)


def test_an_eviction_at_a_step_waits_for_a_checkpoint_that_holds_without_the_node():
    async def scenario():
        job = Job()
        await job.form()
        job.fleet.agents["b"].complete(10)
        await job.see(trouble("b", "evict_at_step"))
        assert job.world == ["a", "b"]
        assert "checkpoint" in job.told("eviction_deferred")[0]["detail"]["why_not"]
        job.fleet.agents["a"].complete(10, peer_of=(2, 3))
        await job.see(trouble("b", "evict_at_step"))
        assert job.world == ["a", "z"]
        assert job.fleet.journal.last("recovery")["detail"]["resumed_step"] == 10

    run(scenario)


def test_a_checkpoint_that_never_comes_is_not_waited_for_for_ever():
    async def scenario():
        job = Job(checkpoint_patience_s=60)
        await job.form()
        job.fleet.agents["b"].complete(10)
        await job.see(trouble("b", "evict_at_step"))
        for agent in job.fleet.agents.values():
            agent.send_heartbeat()
        job.fleet.clock.now_s += 61
        for agent in job.fleet.agents.values():
            agent.send_heartbeat()
        await job.see(trouble("b", "evict_at_step"))
        assert job.world == ["a", "z"]

    run(scenario)


def test_an_eviction_at_a_step_waits_for_a_standby_and_one_that_is_urgent_does_not():
    async def scenario():
        job = Job("ab", min_healthy_ratio=0.5)
        await job.form()
        await job.see(trouble("b", "evict_at_step"))
        assert job.world == ["a", "b"]
        assert job.fleet.job.phase is Phase.RUNNING
        assert job.told("eviction_deferred")[0]["detail"]["why_not"] == "no standby: the node trains on"
        await job.see(trouble("b", "evict_now"))
        assert job.fleet.job.phase is Phase.WAITING
        assert job.fleet.node("b").state is NodeState.EVICTED

    run(scenario)


def test_budget_and_floor_hold_for_machines_too():
    async def scenario():
        job = Job(evictions_per_hour=0)
        await job.form()
        for _ in range(3):
            await job.see(trouble("b", "evict_now"))
        assert job.world == ["a", "b"]
        (refused,) = job.told("eviction_refused")
        assert "budget" in refused["detail"]["why_not"]

        job = Job("ab", min_healthy_ratio=0.8)
        await job.form()
        await job.see(trouble("b", "evict_now"))
        assert job.world == ["a", "b"]
        assert "floor" in job.told("eviction_refused")[0]["detail"]["why_not"]

    run(scenario)


def test_observe_only_says_what_it_would_do_once():
    async def scenario():
        job = Job(observe_only=True)
        await job.form()
        for _ in range(3):
            await job.see(trouble("b", "evict_now"), trouble("z", "cordon"))
        assert job.world == ["a", "b"]
        assert [(e["node"], e["detail"]["event"]) for e in job.told("would")] == [
            ("b", "evict_now"),
            ("z", "cordon"),
        ]
        assert job.fleet.node("z").cordon == ""

    run(scenario)


def test_a_standby_in_trouble_is_never_promoted():
    async def scenario():
        job = Job("abyz")
        await job.form()
        await job.see(trouble("y", "evict_now"))
        assert job.fleet.node("y").cordon == "y/GPU-1 is lost"
        assert job.fleet.node("y").state is NodeState.STANDBY
        job.fleet.agents["b"].drop()
        await job.fleet.settle(1.1)
        await job.fleet.settle()
        assert job.world == ["a", "z"]
        assert not job.fleet.of("y", Start)

    run(scenario)


def test_a_cordon_of_a_node_that_trains_changes_nothing_now():
    async def scenario():
        job = Job()
        await job.form()
        await job.see(trouble("b", "cordon"))
        assert job.world == ["a", "b"]
        assert job.fleet.job.attempt == 0
        assert [e["node"] for e in job.told("cordon")] == ["b"]

    run(scenario)


def test_the_cordon_of_a_node_that_trains_ends_with_its_trouble():
    async def scenario():
        job = Job(probation_s=1.0)
        await job.form()
        await job.see(trouble("b", "cordon"))
        assert job.fleet.node("b").cordon
        for _ in range(3):
            await job.see(seconds=0.5)
        assert job.fleet.node("b").cordon == ""

    run(scenario)


def test_a_cordon_that_ended_does_not_hold_a_machine_back_when_its_agent_is_started_anew():
    async def scenario():
        job = Job("ab", probation_s=1.0)
        await job.form()
        await job.see(trouble("b", "cordon"))
        for _ in range(3):
            await job.see(seconds=0.5)
        assert job.fleet.memory.recall("j").nodes == {}
        job.fleet.agents["b"].drop()
        await job.fleet.settle(1.1)
        await job.fleet.settle()
        assert job.fleet.job.phase is Phase.WAITING
        job.fleet.agents["b"] = job.fleet.join("b", pid=77)
        for _ in range(2):
            await job.fleet.settle(0.6)
        assert job.fleet.job.phase is Phase.RUNNING
        assert job.world == ["a", "b"]

    run(scenario)


def test_information_changes_nothing():
    async def scenario():
        job = Job()
        await job.form()
        await job.see(trouble("z", "inform"), trouble("b", "inform"))
        assert job.fleet.node("z").cordon == ""
        assert job.fleet.job.attempt == 0

    run(scenario)


def test_a_crash_takes_the_node_that_the_policy_wants_gone_with_it():
    """An Xid often ends the rank before the hub has seen it."""

    async def scenario():
        job = Job()
        await job.form()
        job.fleet.agents["b"].rank_exits(3, 1)
        job.fleet.controller.jobs["j"].observe((), [trouble("b", "evict_at_step")])
        await job.fleet.settle()
        assert job.world == ["a", "z"]
        assert job.fleet.job.attempt == 1

    run(scenario)


def test_findings_of_another_attempt_or_of_an_unknown_node_are_not_acted_on():
    async def scenario():
        job = Job()
        await job.form()
        await job.see(trouble("b", "evict_now", attempt=3), trouble("q", "evict_now"))
        await job.see(trouble("b", "whatever"), Observed(kind="mfu_decay", subject="1"))
        assert job.world == ["a", "b"]

    run(scenario)


def test_an_exception_of_the_user_s_own_code_never_evicts():
    async def scenario():
        job = Job()
        await job.form()
        job.fleet.agents["b"].sick = True
        job.fleet.agents["b"].rank_exits(3, 1, lines=("TypeError: no",))
        while job.fleet.job.fault is None:
            await asyncio.sleep(0)
        crash = Observed(kind="crash", subject="3", details={"blame": {"user": 0.85}})
        job.fleet.controller.jobs["j"].observe([crash], ())
        await job.fleet.settle()
        assert job.world == ["a", "b"]
        assert "user's own code" in job.told("eviction_refused")[0]["detail"]["why_not"]

    run(scenario)


def test_a_second_fault_that_names_nobody_gets_the_full_checks():
    async def scenario():
        job = Job(hang_patience_s=0, pause_patience_s=0)
        await job.form()
        for attempt in (0, 1):
            nobody = Observed(kind="hang", subject="j", subject_type="job", attempt=attempt)
            for agent in job.fleet.agents.values():
                agent.complete(9 + attempt, peer_of=(0, 1, 2, 3)) if agent.steps else None
            await job.see(nobody)
        await job.fleet.settle()
        await job.fleet.settle()
        levels = [(e["detail"]["level"], e["detail"]["why_this_level"]) for e in job.told("self_check")]
        assert levels == [
            ("light", "a fault that names nobody"),
            ("full", "again a fault that names nobody"),
        ]

    run(scenario)


def test_a_hang_with_a_culprit_is_checked_as_configured():
    async def scenario():
        job = Job(hang_patience_s=0, pause_patience_s=0)
        await job.form()
        await job.see(hang(3), seconds=1.0)
        assert job.told("self_check")[0]["detail"]["level"] == "light"

    run(scenario)


async def sees_for(job, seconds, *found):
    """The trouble stays for so long, and everybody keeps saying that they are there."""
    for _ in range(0, seconds, 20):
        job.fleet.clock.now_s += 20
        for agent in job.fleet.agents.values():
            agent.send_heartbeat()
        await job.see(*found)


async def without_a_checkpointer():
    job = Job()
    await job.fleet.form()
    for agent in job.fleet.agents.values():
        agent.held = ()
        agent.send_heartbeat()
    return job


def test_without_anything_to_go_on_from_a_node_in_trouble_trains_on():
    async def scenario():
        job = await without_a_checkpointer()
        await sees_for(job, 600, trouble("b", "evict_at_step"))
        assert (job.world, job.fleet.job.attempt) == (["a", "b"], 0)

    run(scenario)


def test_the_next_checkpoint_of_the_script_s_own_is_waited_for():
    async def scenario():
        job = await without_a_checkpointer()
        job.fleet.agents["a"].writes(written(7))
        for agent in (job.fleet.agents["a"], job.fleet.agents["b"]):
            agent.steps = dict.fromkeys(agent.steps, 9)
            agent.send_heartbeat()
        await sees_for(job, 600, trouble("b", "evict_at_step"))
        job.fleet.controller.jobs["j"]._state.own_checkpoints.started(1, resumed_step=7)
        await sees_for(job, 600, trouble("b", "evict_at_step"))
        assert job.world == ["a", "b"]
        assert {told["detail"]["why_not"] for told in job.told("eviction_deferred")} == {
            "it is not known whether the script goes on from its checkpoint: the node trains on",
            "it waits for the script's next checkpoint: the node trains on",
        }
        job.fleet.agents["a"].writes(written(12))
        await job.see(trouble("b", "evict_at_step"))
        assert job.world == ["a", "b"]  # other files of that checkpoint may follow
        for agent in (job.fleet.agents["a"], job.fleet.agents["b"]):
            agent.steps = dict.fromkeys(agent.steps, 13)
            agent.send_heartbeat()
        await job.see(trouble("b", "evict_at_step"))
        assert job.world == ["a", "z"]

    run(scenario)


def test_a_checkpoint_that_the_script_does_not_read_is_nothing_to_go_on_from():
    async def scenario():
        job = await without_a_checkpointer()
        both = (job.fleet.agents["a"], job.fleet.agents["b"])
        own = job.fleet.controller.jobs["j"]._state.own_checkpoints
        job.fleet.agents["a"].writes(written(7))
        for agent in both:
            agent.steps = dict.fromkeys(agent.steps, 9)
            agent.send_heartbeat()
        await job.see(trouble("b", "evict_at_step"))
        own.started(1, resumed_step=-1)  # what a restart has shown
        assert own.ignored
        job.fleet.agents["a"].writes(written(12))
        for agent in both:
            agent.steps = dict.fromkeys(agent.steps, 13)
            agent.send_heartbeat()
        await sees_for(job, 600, trouble("b", "evict_at_step"))
        assert job.world == ["a", "b"]

    run(scenario)


def written(step):
    return OwnCheckpoint(step=step, bytes=9, path=f"/c/{step}.pt", written_ns=int(1e12), files=1)


def test_at_a_stop_a_node_stays_whose_memory_alone_has_the_newest_step():
    async def scenario():
        job = Job()
        await job.form()
        for agent in (job.fleet.agents["a"], job.fleet.agents["b"]):
            agent.complete(10)
        job.fleet.agents["a"].rank_exits(0, 1)
        job.fleet.controller.jobs["j"].observe((), [trouble("b", "evict_at_step")])
        await job.fleet.settle()
        assert job.world == ["a", "b"]
        assert job.fleet.journal.last("recovery")["detail"]["resumed_step"] == 10

    run(scenario)


def under_one_switch(job):
    for node in job.fleet.controller.jobs["j"]._state.members.nodes.values():
        node.hello = dataclasses.replace(node.hello, switch="s0")


def test_a_switch_that_starts_anew_evicts_none_of_its_nodes():
    async def scenario():
        job = Job(min_healthy_ratio=0.1)
        await job.form()
        under_one_switch(job)
        flaps = [trouble(node, "evict_at_step", kind="link_flap") for node in "ab"]
        for _ in range(3):
            await job.see(*flaps)
        assert job.world == ["a", "b"]
        assert not job.told("evict")
        told = {e["node"]: e["detail"]["why_not"] for e in job.told("eviction_deferred")}
        assert sorted(told) == ["a", "b"]
        assert told["a"] == "other nodes under switch s0 lost links too: it is suspected, not the node"
        await job.see(trouble("a", "inform", kind="link_flap"), trouble("b", "evict_now", kind="gpu_fault"))
        assert job.world == ["a", "z"]

    run(scenario)


def test_a_node_that_alone_under_its_switch_loses_links_is_evicted():
    async def scenario():
        job = Job()
        await job.form()
        under_one_switch(job)
        await job.see(trouble("b", "evict_at_step", kind="link_flap"))
        assert job.world == ["a", "z"]

    run(scenario)


def test_a_node_that_shares_its_trouble_stays_also_where_the_job_stops():
    async def scenario():
        job = Job()
        await job.form()
        under_one_switch(job)
        state = job.fleet.controller.jobs["j"]._state
        flaps = {node: trouble(node, "evict_at_step", kind="link_flap") for node in "ab"}
        await job.see(*flaps.values())
        assert responses.at_a_stop(state) == {}

    run(scenario)
