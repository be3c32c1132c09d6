"""A hub that is started anew knows what the one before it knew. Against fake agents."""

from pulsetrain.protocol.messages import Leave
from pulsetrain.recovery.memory import NodeMemory
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from tests.recovery.fakes import FakeMemory, Fleet, run
from tests.recovery.test_responses import trouble
from tests.recovery.test_standby_care import checks, pass_time


async def evicted(memory, **policy):
    """A fleet of three in which b was evicted and replaced by z."""
    fleet = Fleet("abz", policy=Policy(**policy), memory=memory)
    await fleet.form()
    for agent in (fleet.agents["a"], fleet.agents["b"]):
        agent.complete(9, peer_of=(0, 1, 2, 3))
    fleet.controller.jobs["j"].observe((), [trouble("b", "evict_now")])
    await fleet.settle()
    assert fleet.node("b").state is NodeState.EVICTED
    return fleet


async def adopted(memory, *more, **policy):
    """A new hub, to which the agents of the running attempt come back."""
    fleet = Fleet("", policy=Policy(**policy), memory=memory)
    for rank, name in enumerate("az"):
        fleet.agents[name] = fleet.join(name, attempt=1, node_rank=rank)
        fleet.agents[name].attempt, fleet.agents[name].steps = 1, {2 * rank: 9, 2 * rank + 1: 9}
        fleet.agents[name].complete(9, peer_of=(0, 1, 2, 3))
    for name in more:
        fleet.agents[name] = fleet.join(name)
    await fleet.settle(0.0)
    await fleet.settle(0.6)
    assert fleet.job.attempt == 1
    return fleet


def test_the_budget_is_not_new_after_a_restart():
    async def scenario():
        memory = FakeMemory()
        await evicted(memory, evictions_per_hour=1)
        fleet = await adopted(memory, "y", evictions_per_hour=1)
        fleet.controller.jobs["j"].observe((), [trouble("z", "evict_now", attempt=1)])
        await fleet.settle()
        assert fleet.node("z").state is NodeState.ACTIVE
        refused = fleet.journal.last("eviction_refused")["detail"]["why_not"]
        assert refused == "budget of 1 evictions an hour is used up"

    run(scenario)


def test_evictions_of_more_than_an_hour_ago_do_not_count():
    async def scenario():
        memory = FakeMemory()
        memory.evictions("j", [int(-2601e9)])
        fleet = await evicted(memory, evictions_per_hour=1)
        assert memory.times_ns["j"] == [fleet.clock.wall_ns()]

    run(scenario)


def test_an_evicted_agent_that_comes_back_to_a_new_hub_is_sent_away():
    async def scenario():
        memory = FakeMemory()
        await evicted(memory)
        fleet = await adopted(memory, "b")
        assert len(fleet.of("b", Leave)) == 1
        assert fleet.node("b").state is NodeState.EVICTED

    run(scenario)


def test_a_machine_that_was_evicted_by_an_earlier_hub_serves_its_probation():
    async def scenario():
        memory = FakeMemory()
        await evicted(memory, probation_s=300)
        fleet = await adopted(memory, probation_s=300)
        fleet.agents["b"] = fleet.join("b", pid=4242)
        await pass_time(fleet, 100)
        assert fleet.node("b").cordon == "probation: it was evicted for b/GPU-1 is lost"
        await pass_time(fleet, 300)
        assert fleet.node("b").cordon == ""
        assert memory.nodes == {}

    run(scenario)


def test_a_cordoned_standby_stays_one_for_a_new_hub_and_ends_its_probation_there():
    async def scenario():
        memory = FakeMemory()
        memory.node("j", "y", NodeMemory(pid=ord("y"), cordon="light check: gemm", probation_s=300.0))
        fleet = await adopted(memory, "y")
        assert fleet.node("y").cordon == "light check: gemm"
        await pass_time(fleet, 240)
        assert fleet.node("y").cordon
        await pass_time(fleet, 100)
        assert (fleet.node("y").cordon, memory.nodes) == ("", {})
        assert checks(fleet, "y") >= 1

    run(scenario)


def test_a_cordon_that_holds_up_the_first_launch_can_end():
    async def scenario():
        memory = FakeMemory()
        memory.node("j", "b", NodeMemory(pid=ord("b"), cordon="light check: gemm", probation_s=60.0))
        fleet = Fleet("ab", memory=memory)
        await fleet.settle(0.6)
        assert fleet.job.attempt == -1
        await pass_time(fleet, 120)
        assert (fleet.job.attempt, fleet.node("b").cordon) == (0, "")

    run(scenario)


def test_a_job_that_is_over_is_forgotten():
    async def scenario():
        memory = FakeMemory()
        fleet = await evicted(memory)
        assert (len(memory.times_ns["j"]), list(memory.nodes)) == (1, [("j", "b")])
        for name in "az":
            fleet.agents[name].leaves()
        await fleet.settle(1)
        assert (memory.times_ns, memory.nodes) == ({}, {})

    run(scenario)
