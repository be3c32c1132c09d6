"""A job that nothing saves is pre-empted by dumping its processes, against a fake agent."""

import asyncio

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import DumpRanks, Held, HoldRanks, SelfCheck, Start, Stop
from pulsetrain.recovery import images
from pulsetrain.recovery.actions import POLL_S
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeMemory, Fleet, run
from tests.recovery.test_device_resizing import resize
from tests.recovery.test_moving import request


class Job:
    """A job of one node whose host can dump, and whose ranks save nothing."""

    def __init__(self, nodes="a", **more):
        self.fleet = Fleet(nodes, **{"nnodes": len(nodes), "dump_lacks": ""} | more)
        self.agent = self.fleet.agents[nodes[0]] if nodes else None

    async def train(self, step=9):
        if self.phase is Phase.FORMING:
            await self.fleet.form()
        self.agent.steps = dict.fromkeys(self.agent.steps, step)
        self.agent.held = ()
        self.agent.send_heartbeat()
        await self.fleet.settle()

    async def stand_by(self, name):
        """Another node joins, and is checked."""
        self.fleet.agents[name] = self.fleet.join(name)
        await self.fleet.settle(0.5)
        assert not self.fleet.node(name).cordon

    async def move(self, what, times=6):
        self.fleet.controller.move("j", request(what))
        await self.wait(times)

    async def wait(self, times):
        for _ in range(times):
            for agent in self.fleet.agents.values():
                if agent.node.connected:
                    agent.send_heartbeat()
            await self.fleet.settle(0.5)

    @property
    def phase(self):
        return self.fleet.job.phase

    def told(self, kind):
        return self.fleet.journal.last(kind)["detail"]


async def pre_empted(**more):
    """A job that was pre-empted, and whose processes were dumped."""
    job = Job(**more)
    await job.train()
    await job.move("preempt")
    return job


async def in_the_restore(**more):
    """The same job while its agent brings the processes back and has not answered yet."""
    job = await pre_empted(**more)
    job.agent.mute = (Start,)
    await job.move("resume", times=1)
    return job


def test_the_processes_are_dumped_once_they_stand_and_then_ended():
    async def scenario():
        job = await pre_empted()
        assert job.phase is Phase.PREEMPTED
        kinds = [type(c) for c in job.agent.commands if isinstance(c, DumpRanks | Stop)]
        assert kinds[0] is DumpRanks
        assert set(kinds[1:]) == {Stop}
        told = job.told("preempted")["image"]
        assert (told["bytes"], told["stored_bytes"], told["new_bytes"]) == (1000, 600, 50)

    run(scenario)


def test_the_answer_says_whether_processes_are_dumped():
    async def scenario():
        job = Job()
        await job.train()
        assert job.fleet.controller.move("j", request(), dry_run=True)["process_dump"] == ""
        other = job.fleet.controller.move("j", request("resume"), dry_run=True)
        assert "only a pre-emption dumps them" in other["process_dump"]
        several = Job("ab")
        await several.train()
        answer = several.fleet.controller.move("j", request(), dry_run=True)
        assert "(only those of a job of one node that nothing else saves)" in answer["process_dump"]

    run(scenario)


def test_ranks_that_take_turns_on_devices_are_not_dumped_and_that_is_said_before_they_stand():
    async def scenario():
        job = Job()
        await job.train()
        await resize(job.fleet, 1)
        asked = job.fleet.controller.move("j", request(lose_progress=True), dry_run=True)
        assert "(its ranks take turns on devices)" in asked["process_dump"]
        with pytest.raises(UsageError, match=r"has no checkpoint, and .* take turns on devices"):
            job.fleet.controller.move("j", request())
        assert not job.fleet.of("a", HoldRanks)
        await resize(job.fleet, 2)
        assert job.fleet.controller.move("j", request(), dry_run=True)["process_dump"] == ""

    run(scenario)


@pytest.mark.parametrize(("evaluates_s", "phase"), [(40, Phase.PREEMPTED), (70, Phase.RUNNING)])
def test_a_job_that_evaluates_is_waited_for_as_long_as_was_asked_for(evaluates_s, phase):
    async def scenario():
        job = Job()
        await job.train()
        job.agent.restless = {0}
        await job.move("preempt", times=2 * evaluates_s)
        job.agent.restless = set()
        await job.wait(6)
        assert job.phase is phase

    run(scenario)


def test_they_are_restored_when_the_job_is_resumed():
    async def scenario():
        job = await pre_empted()
        [dump] = job.fleet.of("a", DumpRanks)
        await job.move("resume")
        start = job.fleet.of("a", Start)[-1]
        assert (start.image, start.restore_step, start.attempt) == (dump.name, 9, 1)
        assert job.phase is Phase.RUNNING
        assert job.told("recovery")["resumed_by"] == "image"
        assert job.told("image_restored") == {"image": dump.name, "step": 9, "restore_ns": 7}

    run(scenario)


def test_they_go_on_only_on_the_node_that_has_dumped_them():
    async def scenario():
        job = Job()
        await job.train()
        job.fleet.agents["z"] = job.fleet.join("z")
        await job.move("preempt")
        refused = job.fleet.controller.move("j", request("resume", nodes=("z",)), dry_run=True)
        words = "were dumped on node 'a' after step 9, and can go on only there, not on: z"
        assert words in refused["why_not"]
        job.fleet.controller.move("j", request("resume", nodes=("a",)))
        await job.fleet.settle(1)
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_an_elastic_job_goes_on_in_its_processes_though_another_node_is_there():
    async def scenario():
        job = Job(nnodes=2, sizes=(1, 1), policy=Policy(shrink_wait_s=1.0))
        for _ in range(6):
            await job.fleet.settle(0.5)
        await job.train()
        job.fleet.agents["b"] = job.fleet.join("b")
        await job.fleet.settle(0.5)
        assert not job.fleet.node("b").cordon
        await job.move("preempt")
        await job.move("resume")
        assert job.told("recovery")["resumed_by"] == "image"
        assert [m.node for m in job.fleet.job.world] == ["a"]

    run(scenario)


def test_a_new_hub_chooses_the_node_of_the_image_also_where_its_agent_is_new():
    async def scenario():
        memory = FakeMemory()
        job = Job("b", memory=memory)
        await job.train()
        await job.move("preempt")
        again = Fleet("ab", nnodes=1, memory=memory, pid=99)
        await again.settle(1)
        again.controller.move("j", request("resume"))
        for _ in range(4):
            await again.settle(0.5)
        assert again.journal.last("recovery")["detail"]["resumed_by"] == "image"
        assert [m.node for m in again.job.world] == ["b"]

    run(scenario)


def test_a_pool_leaves_a_job_alone_that_could_go_on_only_from_an_image():
    async def scenario():
        job = Job("b", pool=PoolConfig(devices_per_machine=8))
        share = job.fleet.controller.jobs["j"].sharing
        await job.fleet.settle(1.0)
        share.give({"b": 1}, "a test", 5.0)
        await job.fleet.settle(1.0)
        await job.train()
        assert share.demand(0).busy
        job.agent.complete(9)
        assert not share.demand(0).busy

    run(scenario)


def test_a_pool_gives_back_the_node_of_the_image():
    async def scenario():
        job = Job("b", pool=PoolConfig(devices_per_machine=8))
        share = job.fleet.controller.jobs["j"].sharing
        await job.fleet.settle(1.0)
        share.give({"b": 1}, "a test", 5.0)
        await job.fleet.settle(1.0)
        job.fleet.agents["a"] = job.fleet.join("a")
        await job.train()
        share.stop("a test", 5.0)
        await job.wait(6)
        assert (job.phase, share.reachable()) == (Phase.PREEMPTED, {"b": 1})
        share.give(share.reachable(), "a test", 5.0)
        await job.wait(6)
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_job_whose_image_cannot_be_reached_does_not_begin_anew_elsewhere():
    async def scenario():
        job = Job()
        await job.train()
        await job.stand_by("z")
        await job.move("preempt")
        job.agent.drop()
        for _ in range(5):
            await job.fleet.settle(0.5)
        why = "after step 9, and node 'a' is not connected: nothing else has its state"
        assert why in job.fleet.controller.move("j", request("resume"), dry_run=True)["why_not"]
        with pytest.raises(UsageError, match=why):
            job.fleet.controller.move("j", request("resume"))
        assert not job.fleet.controller.jobs["j"].sharing.reachable()
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", pid=99)
        await job.move("resume")
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_job_that_is_pre_empted_again_before_its_launch_keeps_its_image():
    async def scenario():
        memory = FakeMemory()
        job = await pre_empted(memory=memory)
        job.agent.mute = (SelfCheck,)
        job.fleet.controller.move("j", request("resume"))
        await job.fleet.settle(0.5)
        job.agent.drop()
        for _ in range(4):
            await job.fleet.settle(0.5)
        await job.fleet.wait_for_launch()
        assert job.phase is Phase.WAITING
        assert memory.recall("j").preemption.image
        job.fleet.controller.move("j", request("preempt"))
        await job.fleet.settle(0.5)
        told = job.told("preempted")
        assert (job.phase, told["lost_steps"], told["stages_ns"]["dump"]) == (Phase.PREEMPTED, 0, 0)
        assert memory.recall("j").preemption.image
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", pid=99)
        await job.move("resume")
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_connection_that_closes_during_the_restore_does_not_end_the_restored_ranks():
    async def scenario():
        job = await in_the_restore()
        start = job.fleet.of("a", Start)[-1]
        job.agent.drop()
        await job.fleet.settle()
        job.agent.reconnect()
        job.agent.handle(start)
        await asyncio.sleep(0.1)
        await job.fleet.settle(0.5)
        assert job.fleet.of("a", Start)[-1] is start
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_second_resume_does_not_take_the_image_away():
    async def scenario():
        job = await pre_empted()
        job.fleet.controller.move("j", request("resume"))
        with pytest.raises(UsageError, match="about to go on already"):
            job.fleet.controller.move("j", request("resume"))
        await job.wait(6)
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_new_hub_knows_of_the_image_until_it_is_used():
    async def scenario():
        memory = FakeMemory()
        job = await pre_empted(memory=memory)
        job.fleet.controller.move("j", request("resume"))
        kept = memory.recall("j").preemption
        assert kept is not None
        assert kept.image
        await job.fleet.settle(3)
        assert job.fleet.of("a", Start)[-1].image == kept.image
        assert memory.recall("j").preemption is None

    run(scenario)


def test_a_job_that_cannot_be_dumped_runs_on():
    async def scenario():
        job = Job()
        await job.train()
        job.agent.cannot_dump = "criu: no space left"
        await job.move("preempt")
        assert job.phase is Phase.RUNNING
        assert not job.fleet.of("a", Stop)
        assert "no space left" in job.told("image_missed")["why_not"]
        assert "no space left" in job.told("preempt_dropped")["why_not"]

    run(scenario)


def test_an_image_that_can_never_be_restored_is_told_and_the_job_starts_without_it():
    async def scenario():
        memory = FakeMemory()
        job = await pre_empted(memory=memory)
        job.agent.cannot_restore = "the host was started anew since"
        await job.move("resume")
        told = job.told("image_missed")
        assert told["why_not"] == "the host was started anew since"
        assert told["follows"] == "it begins anew, and 10 steps are lost"
        assert starts(job) == ["", "image", ""]
        assert (job.phase, memory.recall("j").preemption) == (Phase.RUNNING, None)

    run(scenario)


def starts(job, name="a"):
    """From what each launch on a node began."""
    return ["image" if start.image else "" for start in job.fleet.of(name, Start)]


async def not_restored(**more):
    """A job whose processes could not be restored, and whose node keeps the image."""
    job = await pre_empted(**more)
    job.agent.cannot_restore, job.agent.image_kept = "pid 77 is in use", True
    return job


def test_a_job_whose_restore_failed_stays_pre_empted_and_can_be_resumed_again():
    async def scenario():
        memory = FakeMemory()
        job = await not_restored(memory=memory)
        await job.move("resume")
        assert (job.phase, starts(job)) == (Phase.PREEMPTED, ["", "image"])
        assert isinstance(job.agent.commands[-1], Stop)  # nothing of it may be left
        told = job.told("image_missed")
        assert told["why_not"] == "pid 77 is in use"
        assert told["follows"].startswith("it stays pre-empted and keeps its image")
        why = "its processes were not restored: pid 77 is in use"
        assert (job.told("preempted")["reason"], job.told("preempted")["lost_steps"]) == (why, 0)
        kept = memory.recall("j").preemption
        assert (kept.image, kept.step, kept.restoring) == (job.fleet.of("a", Start)[-1].image, 9, False)
        job.agent.cannot_restore = ""
        await job.move("resume")
        recovery = job.told("recovery")
        assert (recovery["resumed_by"], recovery["lost_steps"]) == ("image", 0)
        assert memory.recall("j").preemption is None

    run(scenario)


def test_a_job_whose_restore_failed_begins_anew_where_a_person_allows_it():
    async def scenario():
        job = await not_restored()
        job.fleet.controller.move("j", request("resume", lose_progress=True))
        await job.wait(6)
        assert (job.phase, starts(job)) == (Phase.RUNNING, ["", "image", ""])
        assert job.told("image_missed")["follows"] == "it begins anew, and 10 steps are lost"

    run(scenario)


def test_a_job_whose_restore_failed_goes_on_from_a_saved_step_where_there_is_one():
    async def scenario():
        job = await not_restored()
        job.agent.held = tuple(Held(rank=rank, step=5, tier="storage") for rank in (0, 1))
        await job.move("resume")
        assert job.told("image_missed")["follows"] == "it goes on from step 5"
        assert (job.phase, job.fleet.of("a", Start)[-1].restore_step) == (Phase.RUNNING, 5)

    run(scenario)


def test_a_node_that_is_lost_during_the_restore_takes_nothing_with_it():
    async def scenario():
        job = Job()
        await job.train()
        await job.stand_by("z")
        await job.move("preempt")
        job.agent.mute = (Start,)
        await job.move("resume", times=1)
        job.agent.drop()
        for _ in range(4):
            await job.wait(1)
            await asyncio.sleep(2 * POLL_S)
        await job.fleet.settle()
        assert (job.phase, starts(job, "z")) == (Phase.PREEMPTED, [])
        assert job.fleet.node("z").state is NodeState.STANDBY
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", pid=99)
        await job.move("resume")
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_job_waits_for_the_node_of_its_image_though_another_one_stands_by():
    async def scenario():
        memory = FakeMemory()
        job = Job(memory=memory)
        await job.train()
        await job.stand_by("z")
        await job.move("preempt")
        job.agent.mute = (SelfCheck,)
        job.fleet.controller.move("j", request("resume"))
        await job.fleet.settle(0.5)
        job.agent.drop()
        for _ in range(4):
            await job.wait(1)
            await job.fleet.wait_for_launch()
        assert (job.phase, starts(job, "z")) == (Phase.WAITING, [])
        assert job.fleet.node("z").state is NodeState.STANDBY
        for what in ("preempt", "resume"):  # taken back before its turn
            job.fleet.controller.move("j", request(what))
        kept = memory.recall("j").preemption
        assert (bool(kept.image), kept.step) == (True, 9)
        assert job.told("resume_waits")["why_not"] == {"a": "node 'a' is not connected"}
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", pid=99)
        await job.wait(6)
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_job_whose_image_cannot_be_reached_begins_anew_elsewhere_where_a_person_allows_it():
    async def scenario():
        job = Job()
        await job.train()
        await job.stand_by("z")
        await job.move("preempt")
        job.agent.drop()
        await job.wait(5)
        job.fleet.controller.move("j", request("resume", lose_progress=True))
        await job.wait(4)
        assert (job.phase, starts(job, "z")) == (Phase.RUNNING, [""])
        assert "10 steps are lost" in job.told("image_missed")["follows"]

    run(scenario)


@pytest.mark.parametrize("restored", [True, False])
def test_a_hub_that_is_lost_during_the_restore_loses_neither_the_image_nor_what_was_restored(restored):
    async def scenario():
        memory = FakeMemory()
        await in_the_restore(memory=memory)
        assert memory.recall("j").preemption.restoring
        again = Job("", memory=memory, nnodes=1)
        attempt = {"attempt": 1, "node_rank": 0, "world_nodes": 1} if restored else {}
        again.agent = again.fleet.agents["a"] = again.fleet.join("a", dump_lacks="", **attempt)
        with pytest.raises(UsageError, match="just being taken over"):
            again.fleet.controller.move("j", request("resume"))
        for _ in range(4):
            await again.fleet.settle(0.5)
        assert again.phase is (Phase.RUNNING if restored else Phase.PREEMPTED)
        if restored:
            assert not again.fleet.of("a", Stop)
            assert (again.fleet.job.move, memory.recall("j").preemption) == (None, None)
        else:
            await again.move("resume")
            assert again.told("recovery")["resumed_by"] == "image"

    run(scenario)


async def under_a_new_hub(**said):
    """A job whose hub was lost while its processes were restored. Its agent has told a new hub so."""
    memory = FakeMemory()
    await in_the_restore(memory=memory)
    again = Job("", memory=memory, nnodes=1)
    said = said or {"restoring": 1, "node_rank": 0, "world_nodes": 1}
    again.agent = again.fleet.agents["a"] = again.fleet.join("a", dump_lacks="", **said)
    return again


def restored(agent, attempt=1):
    """Its processes run again."""
    agent.attempt, agent.steps, agent.restoring = attempt, {0: 9, 1: 9}, -1
    agent.send_heartbeat()


@pytest.mark.parametrize("comes", [True, False])
def test_a_new_hub_waits_for_a_restore_and_the_job_runs_or_stays_pre_empted_with_its_image(comes):
    async def scenario():
        job = await under_a_new_hub()
        job.fleet.agents["z"] = job.fleet.join("z")
        await job.wait(22)
        assert job.phase is Phase.FORMING
        with pytest.raises(UsageError, match="just being taken over"):
            job.fleet.controller.move("j", request("resume"))
        if comes:
            restored(job.agent)
        job.agent.restoring = -1
        await job.wait(4)
        assert (starts(job), starts(job, "z"), job.fleet.of("a", Stop)) == ([], [], [])
        kept = job.fleet.memory.recall("j").preemption
        if comes:
            assert (job.phase, job.fleet.job.attempt, job.fleet.job.move, kept) == (
                Phase.RUNNING,
                1,
                None,
                None,
            )
            return
        assert (job.phase, kept.step, kept.restoring, bool(kept.image)) == (Phase.PREEMPTED, 9, False, True)
        await job.move("resume")
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_new_hub_takes_no_ranks_over_that_are_not_all_restored():
    async def scenario():
        job = await under_a_new_hub()
        job.agent.attempt, job.agent.steps = 1, {0: 9, 1: 9}
        await job.wait(4)
        assert job.phase is Phase.FORMING

    run(scenario)


def test_an_agent_that_is_lost_during_the_restore_leaves_the_job_pre_empted():
    async def scenario():
        job = await under_a_new_hub()
        job.agent.drop()
        await job.wait(4)
        assert job.phase is Phase.PREEMPTED
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", pid=99)
        await job.move("resume")
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


async def lost_in_the_restore(**more):
    """A job whose node was away for too long while it restored the processes."""
    job = await in_the_restore(**more)
    job.agent.drop()
    for _ in range(3):
        await job.wait(1)
        await asyncio.sleep(2 * POLL_S)
        await job.fleet.settle()
    assert job.phase is Phase.PREEMPTED
    return job


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("new_hub", [True, False])
def test_ranks_that_were_restored_while_their_node_was_lost_are_taken_over(late, new_hub):
    async def scenario():
        job = await lost_in_the_restore(memory=FakeMemory())
        if new_hub:
            job = Job("", memory=job.fleet.memory, nnodes=1)
            job.fleet.join("z")
            await job.fleet.settle(11)
            assert job.phase is Phase.PREEMPTED
        said = {"restoring": 1} if late else {"attempt": 1}
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", node_rank=0, world_nodes=1, **said)
        if late:
            await job.wait(3)
            with pytest.raises(UsageError, match="run or are being restored"):
                job.fleet.controller.move("j", request("resume"))
        restored(job.agent)
        await job.wait(2)
        assert (job.phase, job.fleet.job.attempt, job.fleet.job.move) == (Phase.RUNNING, 1, None)
        assert (starts(job), job.fleet.of("a", Stop)) == ([], [])
        assert job.fleet.memory.recall("j").preemption is None
        assert [m.node for m in job.fleet.job.world] == ["a"]

    run(scenario)


def test_a_restore_that_fails_while_its_node_is_lost_keeps_the_job_pre_empted():
    async def scenario():
        job = await lost_in_the_restore()
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", node_rank=0, world_nodes=1, restoring=1)
        job.agent.restoring = -1
        await job.wait(2)
        assert (job.phase, starts(job), job.fleet.of("a", Stop)) == (Phase.PREEMPTED, [], [])
        await job.move("resume")
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_ranks_that_ran_on_because_nobody_ended_them_are_pre_empted_once_more():
    async def scenario():
        job = Job()
        await job.train()
        job.agent.mute = (Stop,)
        job.fleet.controller.move("j", request("preempt"))
        for _ in range(3):
            await job.fleet.settle(0.5)
        job.agent.drop()
        for _ in range(4):
            await job.wait(1)
            await asyncio.sleep(2 * POLL_S)
            await job.fleet.settle()
        assert job.phase is Phase.PREEMPTED
        again = {"attempt": 0, "node_rank": 0, "world_nodes": 1, "dump_lacks": ""}
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", **again)
        job.agent.attempt, job.agent.steps = 0, {0: 30, 1: 30}
        await job.wait(6)
        kinds = [type(c) for c in job.agent.commands if isinstance(c, DumpRanks | Stop)]
        assert (job.phase, kinds[0]) == (Phase.PREEMPTED, DumpRanks)
        assert (job.told("preempted")["step"], job.told("preempted")["image"]["taken"]) == (30, True)

    run(scenario)


def test_ranks_whose_image_is_gone_by_the_time_they_are_to_end_are_pre_empted_once_more():
    async def scenario():
        job = Job()
        await job.train()
        job.agent.image_gone = True
        await job.move("preempt", times=8)
        kinds = [type(c) for c in job.agent.commands if isinstance(c, DumpRanks | Stop)]
        assert (job.phase, kinds) == (Phase.PREEMPTED, [DumpRanks, Stop, DumpRanks, Stop, Stop])
        assert job.fleet.job.attempt == 0
        await job.move("resume")
        assert job.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_restore_is_waited_for_as_long_as_its_agent_says_that_it_goes_on(monkeypatch):
    monkeypatch.setattr(images, "DUMP_TIMEOUT_S", 0.05)

    async def scenario():
        job = await pre_empted()
        job.agent.mute, job.agent.restoring = (Start,), 1
        await job.move("resume", times=1)
        await asyncio.sleep(0.1)
        await job.wait(1)
        assert job.phase is Phase.STARTING
        restored(job.agent)
        await asyncio.sleep(2 * POLL_S)
        await job.fleet.settle()
        await job.wait(1)
        assert (job.phase, starts(job)) == (Phase.RUNNING, ["", "image"])

    run(scenario)


@pytest.mark.parametrize("taken_back", [True, False])
def test_a_job_that_is_pre_empted_again_during_its_restore_keeps_its_image_also_for_a_new_hub(taken_back):
    async def scenario():
        memory = FakeMemory()
        job = await in_the_restore(memory=memory)
        job.fleet.controller.move("j", request("preempt"))
        if taken_back:
            job.fleet.controller.move("j", request("resume"))
        kept = memory.recall("j").preemption
        assert (bool(kept.image), kept.image_node, kept.step, kept.restoring) == (True, "a", 9, taken_back)
        again = Job("", memory=memory, nnodes=1)
        again.agent = again.fleet.agents["a"] = again.fleet.join("a", dump_lacks="", restoring=1)
        again.agent.restoring = -1
        await again.wait(3)
        assert again.phase is Phase.PREEMPTED
        await again.move("resume")
        assert again.told("recovery")["resumed_by"] == "image"

    run(scenario)


def test_a_restore_whose_answer_makes_no_sense_does_not_end_what_was_restored():
    async def scenario():
        job = await pre_empted()
        job.agent.restore_answer = {"restore_ns": None}
        await job.move("resume")
        assert (job.phase, starts(job)) == (Phase.RUNNING, ["", "image"])
        assert job.told("image_restored")["restore_ns"] == 0

    run(scenario)


def test_a_restore_that_breaks_before_its_command_is_begun_once_more_with_the_image():
    async def scenario():
        job = await pre_empted()
        stored, broken = job.fleet.memory.stored, iter([OSError("the disk is gone")])

        async def breaks_once():
            for error in broken:
                raise error
            await stored()

        job.fleet.memory.stored, job.fleet.loops._restart_delay_s = breaks_once, 0.0
        await job.move("resume")
        assert starts(job) == ["", "image"]

    run(scenario)


def test_ranks_that_are_just_being_restored_are_ended_only_once_they_were_dumped_anew():
    async def scenario():
        job = await pre_empted()
        job.agent.mute = (SelfCheck,)
        job.fleet.controller.move("j", request("resume"))
        await job.fleet.settle(0.5)
        job.agent.drop()
        for _ in range(4):
            await job.fleet.settle(0.5)
        await job.fleet.wait_for_launch()
        assert job.phase is Phase.WAITING
        job.agent = job.fleet.agents["a"] = job.fleet.join("a", pid=99, dump_lacks="")
        job.fleet.clock.now_s += 1
        job.fleet.controller.tick()  # it can be launched from here on
        job.fleet.controller.move("j", request("preempt"))
        await job.fleet.settle()
        await job.train(12)
        await job.wait(6)
        kinds = [type(c) for c in job.agent.commands if isinstance(c, Start | DumpRanks | Stop)]
        assert (job.phase, kinds[:3]) == (Phase.PREEMPTED, [Start, DumpRanks, Stop])

    run(scenario)


def test_a_dump_whose_answer_makes_no_sense_does_not_hold_the_move_up():
    async def scenario():
        job = Job()
        await job.train()
        job.agent.dump_answer = {"dump_ns": None}
        await job.move("preempt")
        assert "TypeError" in job.told("image_missed")["why_not"]
        assert "preempt_dropped" in job.fleet.journal.kinds()
        assert (job.phase, job.fleet.job.move) == (Phase.RUNNING, None)
        assert job.fleet.of("a", HoldRanks)[-1].number == 0

    run(scenario)


def test_a_new_hub_knows_that_a_job_may_lose_its_progress():
    async def scenario():
        memory = FakeMemory()
        job = Job(memory=memory)
        await job.train()
        job.agent.mute = (HoldRanks,)
        job.fleet.controller.move("j", request("preempt", lose_progress=True, wait_s=0.0))
        await job.fleet.settle(0.5)
        again = Job("", memory=memory, nnodes=1)
        again.agent = again.fleet.agents["a"] = again.fleet.join(
            "a", dump_lacks="", attempt=0, node_rank=0, world_nodes=1
        )
        again.agent.attempt, again.agent.steps = 0, {0: 9, 1: 9}
        again.agent.cannot_dump = "criu: no space left"
        await again.wait(6)
        assert "no space left" in again.told("image_missed")["why_not"]
        assert again.phase is Phase.PREEMPTED

    run(scenario)


@pytest.mark.parametrize(("nodes", "lacks"), [("ab", ""), ("a", "criu is not installed")])
def test_nothing_is_dumped_of_several_nodes_or_where_the_host_cannot(nodes, lacks):
    async def scenario():
        job = Job(nodes, dump_lacks=lacks)
        await job.train()
        job.fleet.controller.move("j", request("preempt", lose_progress=True))
        await job.fleet.settle(2)
        assert not job.fleet.of("a", DumpRanks)

    run(scenario)
