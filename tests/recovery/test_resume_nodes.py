"""A pre-empted job goes on on nodes that a person names, against fake agents."""

import asyncio

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import SelfCheck, Start, Stop
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeMemory, run
from tests.recovery.test_moving import Job, request


async def stopped(nodes="abyz", **more):
    """A job of two nodes that is pre-empted after step 9, and its standbys."""
    job = Job(nodes, **more)
    await job.train(9)
    await job.ask()
    assert job.phase is Phase.PREEMPTED
    return job


def world(job):
    return [member.node for member in job.fleet.job.world]


def test_the_job_goes_on_there_from_what_the_nodes_that_it_leaves_have_saved():
    async def scenario():
        job = await stopped()
        answer = await job.ask("resume", nodes=("z", "y"))
        assert answer["on_nodes"] == ["z", "y"]
        assert (job.phase, world(job)) == (Phase.RUNNING, ["y", "z"])
        [start] = job.fleet.of("y", Start)
        assert (start.restore_step, start.sources) == (9, {"0": "peer:a", "1": "peer:a"})
        assert [(node.node, node.node_rank) for node in start.holders] == [("a", -1)]
        assert [job.fleet.node(name).state for name in "ab"] == [NodeState.STANDBY] * 2
        assert len(job.fleet.of("a", Start)) == 1
        recovery = job.last("recovery")
        assert (recovery["joined_nodes"], recovery["left_nodes"]) == (["y", "z"], ["a", "b"])
        assert (recovery["lost_steps"], recovery["cause"]) == (0, "preemption")
        assert job.last("resume")["nodes"] == ["z", "y"]

    run(scenario)


def test_a_node_that_stays_keeps_its_ranks_and_its_memory():
    async def scenario():
        job = await stopped()
        await job.ask("resume", nodes=("b", "y"))
        assert world(job) == ["y", "b"]
        assert job.fleet.of("b", Start)[-1].sources == {"2": "memory", "3": "memory"}
        assert job.last("recovery")["left_nodes"] == ["a"]

    run(scenario)


def test_the_choice_is_for_one_launch_and_any_standby_helps_after_it():
    async def scenario():
        job = await stopped("abyz")
        await job.ask("resume", nodes=("y", "z"))
        job.fleet.agents["y"].complete(10, peer_of=(0, 1, 2, 3))
        job.fleet.agents["z"].complete(10, peer_of=(0, 1, 2, 3))
        job.fleet.agents["z"].drop()
        await job.wait(4)
        await job.fleet.wait_for_launch()
        assert world(job) == ["y", "a"]

    run(scenario)


def test_nodes_that_are_not_chosen_are_neither_checked_nor_evicted():
    async def scenario():
        job = await stopped()
        for agent in job.fleet.agents.values():
            agent.commands.clear()
        job.fleet.agents["a"].sick = True  # perhaps because another job uses its devices
        await job.ask("resume", nodes=("y", "z"))
        assert not job.fleet.of("a", SelfCheck)
        assert job.fleet.of("y", SelfCheck)
        assert job.fleet.node("a").state is NodeState.STANDBY

    run(scenario)


def test_where_a_chosen_node_fails_its_check_the_job_goes_on_elsewhere_and_says_so():
    async def scenario():
        job = await stopped()
        job.fleet.agents["z"].sick = True
        await job.ask("resume", nodes=("y", "z"))
        assert job.phase is Phase.RUNNING
        assert "z" not in world(job)
        told = job.last("resume_elsewhere")
        assert (told["nodes"], list(told["why_not"])) == (["y", "z"], ["z"])
        assert "gemm" in told["why_not"]["z"]

    run(scenario)


def test_a_node_that_joined_meanwhile_passes_the_light_check_first():
    async def scenario():
        job = await stopped("ab")
        for name in "yz":
            job.fleet.agents[name] = job.fleet.join(name)
        await job.fleet.settle()
        assert job.fleet.node("y").cordon
        await job.ask("resume", nodes=("y", "z"))
        assert (job.phase, world(job)) == (Phase.RUNNING, ["y", "z"])
        assert sorted(job.last("standby_check")["nodes"]) == ["y", "z"]

    run(scenario)


def test_a_new_hub_leaves_the_job_pre_empted_until_the_launch_and_can_resume_it_elsewhere():
    async def scenario():
        memory = FakeMemory()
        job = await stopped(memory=memory)
        job.fleet.controller.move("j", request("resume", nodes=("y", "z")))
        assert memory.recall("j").preemption is not None
        again = Job("abyz", memory=memory)
        await again.wait(4)
        assert again.phase is Phase.PREEMPTED
        await again.ask("resume", nodes=("y", "z"))
        assert (again.phase, world(again)) == (Phase.RUNNING, ["y", "z"])
        assert again.last("recovery")["left_nodes"] == ["a", "b"]
        assert memory.recall("j").preemption is None

    run(scenario)


def test_a_node_that_the_job_leaves_may_go_away_during_the_check():
    async def scenario():
        memory = FakeMemory()
        job = await stopped(memory=memory)
        job.fleet.agents["b"].drop()
        await job.fleet.settle(0.9)
        job.fleet.controller.move("j", request("resume", nodes=("y", "z")))
        while job.phase is not Phase.CHECKING:
            await asyncio.sleep(0)
        await job.fleet.settle(0.2)
        assert job.fleet.node("b").state is NodeState.LOST
        assert (job.phase, world(job)) == (Phase.RUNNING, ["y", "z"])
        assert memory.recall("j").preemption is None

    run(scenario)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (("y",), "needs 2 nodes, and 1 are named: y"),
        (("a", "b", "y"), "needs 2 nodes, and 3 are named: a, b, y"),
        (("y", "q"), "node 'q' has not joined; job 'j' can use: a, b, y"),
        (("e", "q"), "node 'e' was evicted: too slow; node 'q' has not joined; job 'j' can use: a, b, y"),
        (("a", "z"), "node 'z' is not connected"),
    ],
)
def test_what_cannot_be_done_names_the_nodes_in_one_line(nodes, words):
    async def scenario():
        job = Job("abeyz")
        await job.train(9)
        await job.fleet.controller.evict("e", "too slow", "ann")
        await job.ask()
        job.fleet.agents["z"].drop()
        await job.wait(4)
        assert words in (await job.ask("resume", nodes=nodes, dry_run=True))["why_not"]
        with pytest.raises(UsageError, match=words):
            await job.ask("resume", nodes=nodes)
        assert job.phase is Phase.PREEMPTED
        assert not job.fleet.of("y", Start)

    run(scenario)


def test_a_move_that_waits_is_taken_back_only_where_the_job_is():
    async def scenario():
        job = Job("abyz")
        await job.train(9, saved=0)
        await job.ask()
        with pytest.raises(UsageError, match="only a job that is pre-empted goes on on other nodes"):
            await job.ask("resume", nodes=("y", "z"))
        assert job.fleet.job.move is not None

    run(scenario)


def test_in_a_pool_the_pool_chooses():
    async def scenario():
        job = Job("ab", pool=PoolConfig(devices_per_machine=4))
        await job.fleet.settle()
        await job.ask("preempt", lose_progress=True)
        with pytest.raises(UsageError, match="the pool chooses the nodes of job 'j'"):
            await job.ask("resume", nodes=("a", "b"))

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"what": "preempt", "nodes": ("a",)}, "preempt takes no nodes"),
        ({"what": "resume", "nodes": ("a", "a")}, "the name of each node once"),
        ({"what": "resume", "nodes": ("a", "")}, "the name of each node once"),
    ],
)
def test_nodes_that_mean_nothing_are_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        request(**changes)


def test_the_nodes_that_the_job_leaves_hold_no_processes():
    async def scenario():
        job = await stopped()
        await job.ask("resume", nodes=("y", "z"))
        assert isinstance(job.fleet.agents["a"].commands[-1], Stop)

    run(scenario)
