"""A job that nothing saves is pre-empted by dumping its processes, against a fake agent."""

import asyncio

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import DumpRanks, SelfCheck, Start, Stop
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeMemory, Fleet, run
from tests.recovery.test_moving import request


class Job:
    """A job of one node whose host can dump, and whose ranks save nothing."""

    def __init__(self, nodes="a", **more):
        self.fleet = Fleet(nodes, **{"nnodes": len(nodes), "dump_lacks": ""} | more)
        self.agent = self.fleet.agents[nodes[0]]

    async def train(self, step=9):
        if self.phase is Phase.FORMING:
            await self.fleet.form()
        self.agent.steps = dict.fromkeys(self.agent.steps, step)
        self.agent.held = ()
        self.agent.send_heartbeat()
        await self.fleet.settle()

    async def move(self, what, times=6):
        self.fleet.controller.move("j", request(what))
        await self.wait(times)

    async def wait(self, times):
        for _ in range(times):
            self.agent.send_heartbeat()
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
        job.fleet.agents["z"] = job.fleet.join("z")
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
        job = await pre_empted()
        job.agent.mute = (Start,)
        await job.move("resume", times=1)
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


def test_an_image_that_cannot_be_restored_is_told_and_the_job_starts_without_it():
    async def scenario():
        job = await pre_empted()
        job.agent.cannot_restore = "pid 77 is in use"
        await job.move("resume")
        assert job.told("image_missed")["why_not"] == "pid 77 is in use"
        assert [bool(start.image) for start in job.fleet.of("a", Start)] == [False, True, False]
        assert job.phase is Phase.RUNNING

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
