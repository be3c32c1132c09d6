"""A hub that is started anew knows what the one before it knew. Against fake agents."""

from dataclasses import replace

import pytest

from pulsetrain.protocol.messages import Leave, Start, Stop
from pulsetrain.recovery.memory import NodeMemory, SizeMemory
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.scheduler import SchedulerConfig, SchedulerRequests
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeMemory, FakeScheduler, Fleet, at_once, run
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


def test_a_standby_that_multiplied_wrongly_must_do_so_rightly_also_for_a_new_hub():
    async def scenario():
        memory = FakeMemory()
        past = NodeMemory(pid=ord("y"), cordon="cordon", probation_s=60.0, wrong="wrong products")
        memory.node("j", "y", past)
        fleet = await adopted(memory, "y")
        fleet.agents["y"].wrong = {"core 3": 2}
        await pass_time(fleet, 240)
        assert "wrong products" in fleet.node("y").cordon
        assert "2 elements on core 3" in memory.nodes["j", "y"].wrong
        fleet.agents["y"].wrong = {}
        await pass_time(fleet, 700)
        assert (fleet.node("y").cordon, memory.nodes) == ("", {})

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


@pytest.mark.parametrize(
    "past",
    [
        NodeMemory(pid=7, evicted="fan", evicted_by="controller"),
        NodeMemory(pid=7, cordon="probation: it was evicted for fan", probation_s=60.0),
    ],
    ids=["evicted", "on probation"],
)
def test_a_machine_that_an_earlier_hub_evicted_serves_its_probation_before_the_first_launch_too(past):
    async def scenario():
        memory = FakeMemory()
        memory.node("j", "b", past)
        fleet = Fleet("ab", policy=Policy(probation_s=60), memory=memory)
        await fleet.settle(0.6)
        assert (fleet.job.attempt, fleet.node("b").cordon) == (-1, "probation: it was evicted for fan")
        fleet.agents["z"] = fleet.join("z")
        await fleet.settle(0.6)
        assert [p.node for p in fleet.job.world] == ["a", "z"]
        await pass_time(fleet, 120)
        assert (fleet.node("b").cordon, memory.nodes) == ("", {})

    run(scenario)


def test_another_run_begins_with_machines_that_a_person_evicted_or_that_failed_a_check():
    async def scenario():
        memory = FakeMemory()
        memory.node("j", "a", NodeMemory(pid=7, evicted="fan", evicted_by="ann"))
        memory.node("j", "b", NodeMemory(pid=7, cordon="light check: gemm", probation_s=60.0))
        fleet = Fleet("ab", memory=memory)
        await fleet.settle(0.6)
        assert fleet.job.attempt == 0

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


async def crashed(memory, times, **options):
    """A fleet of two in which a rank of b has crashed so many times, always after ten more steps."""
    fleet = Fleet("ab", memory=memory, **options)
    await fleet.form()
    for count in range(times):
        for agent in fleet.agents.values():
            agent.complete(10 * count + 9, peer_of=(0, 1, 2, 3))
        fleet.agents["b"].rank_exits(2, 1)
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
    return fleet


async def taken_over(memory, nodes="ab", attempt=2, **options):
    """A new hub, to which these agents come back, in the order of their node ranks."""
    fleet = Fleet("", memory=memory, **options)
    for rank, name in enumerate(nodes):
        agent = fleet.agents[name] = fleet.join(name, attempt=attempt, node_rank=rank if attempt >= 0 else -1)
        if attempt >= 0:
            agent.attempt, agent.steps = attempt, {2 * rank: 39, 2 * rank + 1: 39}
            agent.complete(39, peer_of=(0, 1, 2, 3))
    await fleet.settle(0.0)
    await fleet.settle(0.6)
    return fleet


def test_restarts_that_were_used_up_stay_so_for_a_new_hub():
    async def scenario():
        memory = FakeMemory()
        await crashed(memory, 2, max_restarts=2)
        fleet = await taken_over(memory, max_restarts=2)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 2)
        fleet.agents["a"].rank_exits(0, 1)
        await fleet.settle()
        assert fleet.job.phase is Phase.FAILED
        assert "2 restarts are used up" in fleet.job.failure

    run(scenario)


async def trained(memory):
    """A fleet of two that has trained for 40 s."""
    fleet = Fleet("ab", memory=memory)
    await fleet.form()
    await pass_time(fleet, 40.0)
    return fleet


def hub_after(first, seconds):
    """A new hub with the memory of another one, so many seconds later."""
    fleet = Fleet("", memory=first.memory)
    fleet.clock.now_s = first.clock.now_s + seconds
    return fleet


def test_a_new_hub_goes_on_to_tell_what_the_time_of_a_running_job_went_to():
    async def scenario():
        first = await trained(FakeMemory())
        fleet = hub_after(first, 20.0)
        fleet.agents = {n: fleet.join(n, attempt=0, node_rank=i) for i, n in enumerate("ab")}
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
        before, after = first.job.time_use.row(), fleet.job.time_use.row()
        assert after["since_ns"] == before["since_ns"]
        assert after["seconds"] == {**before["seconds"], "train": before["seconds"]["train"] + 20.0}

    run(scenario)


def test_a_use_of_time_that_only_a_later_version_knows_does_not_keep_the_hub_from_beginning():
    async def scenario():
        first = await trained(FakeMemory())
        first.memory.time("j", replace(first.memory.values["j", "time"], use="dream"))
        fleet = hub_after(first, 20.0)
        fleet.agents = {n: fleet.join(n, attempt=0, node_rank=i) for i, n in enumerate("ab")}
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.job.time_use.row()["seconds"]["train"] <= 20.0

    run(scenario)


def test_another_run_of_the_same_name_begins_with_no_time_spent():
    async def scenario():
        first = await trained(FakeMemory())
        fleet = hub_after(first, 500.0)
        for name in "ab":
            fleet.agents[name] = fleet.join(name, pid=4000 + ord(name))
        await fleet.form()
        assert fleet.job.time_use.row()["seconds"]["train"] == 0.0

    run(scenario)


def test_agents_that_were_all_started_anew_begin_with_all_restarts():
    async def scenario():
        memory = FakeMemory()
        await crashed(memory, 2, max_restarts=2)
        fleet = Fleet("", memory=memory, max_restarts=2)
        for name in "ab":
            fleet.agents[name] = fleet.join(name, pid=4000 + ord(name))
        await fleet.form()
        assert fleet.job.attempt == 3
        assert [fleet.of(name, Start)[-1].first_attempt for name in "ab"] == [3, 3]
        fleet.agents["a"].complete(9, peer_of=(0, 1, 2, 3))
        fleet.agents["a"].rank_exits(0, 1)
        await fleet.settle()
        assert fleet.job.phase is Phase.RUNNING

    run(scenario)


def test_a_node_at_fault_for_the_third_time_is_replaced_also_by_a_new_hub():
    async def scenario():
        memory = FakeMemory()
        await crashed(memory, 2, max_restarts=9)
        fleet = await taken_over(memory, max_restarts=9)
        fleet.agents["z"] = fleet.join("z")
        await fleet.settle(1)
        fleet.agents["b"].rank_exits(2, 1)
        await fleet.settle()
        assert fleet.node("b").state is NodeState.EVICTED
        assert "3 times in a day" in fleet.node("b").reason

    run(scenario)


def test_a_hub_that_takes_over_in_mid_recovery_goes_on_with_the_next_attempt_and_the_same_ranks():
    async def scenario():
        memory = FakeMemory()
        fleet = Fleet("abz", memory=memory)
        await fleet.form()
        await fleet.controller.evict("a", "fan", "eve")
        await fleet.settle()
        assert [m.node for m in fleet.job.world] == ["z", "b"]
        fleet = await taken_over(memory, "bz", attempt=-1)
        assert fleet.job.attempt == 2
        assert [m.node for m in fleet.job.world] == ["z", "b"]

    run(scenario)


def test_a_node_that_died_with_the_hub_is_named():
    async def scenario():
        memory = FakeMemory()
        await crashed(memory, 2)
        fleet = await taken_over(memory, "a", policy=Policy(adopt_timeout_s=5))
        fleet.agents["z"] = fleet.join("z")
        await fleet.settle(6)
        await fleet.settle(1)
        assert [m.node for m in fleet.job.world] == ["a", "z"]
        assert fleet.journal.last("recovery")["node"] == "b"

    run(scenario)


def test_an_observing_hub_shares_no_devices_of_a_node_that_has_not_reported():
    async def scenario():
        memory = FakeMemory()
        await crashed(memory, 2)
        fleet = await taken_over(memory, "a", policy=Policy(adopt_timeout_s=5, observe_only=True))
        await fleet.settle(6)
        await fleet.settle(1)
        assert fleet.job.phase is Phase.RUNNING
        request = MoveRequest(what="resize", reason="noon", actor="ann", devices=3)
        answer = await fleet.controller.resize("j", request, dry_run=True)
        assert answer["why_not"] == "node b: its agent has not reported to this hub"

    run(scenario)


def test_a_new_hub_does_not_ask_for_the_same_node_again():
    async def scenario():
        memory, scheduler = FakeMemory(), FakeScheduler()
        config = SchedulerConfig(kind="slurm", template="spare.sbatch")
        requests = SchedulerRequests(scheduler, config, at_once)
        fleet = Fleet("ab", memory=memory, scheduler=requests)
        await fleet.form()
        await fleet.controller.evict("b", "fan", "eve")
        await pass_time(fleet, 5, 1.0)
        assert len(scheduler.asked) == 1
        fleet = await taken_over(memory, "a", attempt=1, scheduler=requests)
        await pass_time(fleet, 60)
        assert fleet.job.phase is Phase.WAITING
        assert len(scheduler.asked) == 1

    run(scenario)


@pytest.mark.parametrize("nodes", ["a", "ab"])
def test_a_new_hub_that_hears_of_spare_nodes_first_launches_nothing_on_them(nodes):
    async def scenario():
        memory = FakeMemory()
        fleet = Fleet(nodes, len(nodes), memory=memory)
        await fleet.form()
        fleet = Fleet("yz", len(nodes), memory=memory)
        await beat(fleet, 6)
        assert fleet.job.phase is Phase.FORMING
        for rank, name in enumerate(nodes):
            places = {"attempt": 0, "node_rank": rank, "world_nodes": len(nodes)}
            fleet.agents[name] = fleet.join(name, **places)
            fleet.agents[name].attempt = 0
        await beat(fleet, 4)
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 0)
        assert [m.node for m in fleet.job.world] == list(nodes)
        assert not [c for name in nodes for c in fleet.of(name, Stop)]

    run(scenario)


def test_a_job_of_which_no_node_comes_back_begins_on_spare_nodes_after_a_while():
    async def scenario():
        memory = FakeMemory()
        await Fleet("ab", memory=memory).form()
        fleet = Fleet("yz", memory=memory)
        await beat(fleet, 10)
        assert fleet.job.phase is Phase.FORMING
        await beat(fleet, 3)
        assert [m.node for m in fleet.job.world] == ["y", "z"]

    run(scenario)


async def interrupted(memory, nodes, *, sick="", **join):
    """A new hub, to which nodes come back whose ranks the hub before it has stopped."""
    fleet = Fleet("", memory=memory)
    for name in nodes:
        fleet.agents[name] = fleet.join(name, sick=name == sick, **join)
    await beat(fleet, 6)
    return fleet


async def beat(fleet, times):
    """Let time pass in which all agents are heard."""
    for _ in range(times):
        for agent in fleet.agents.values():
            agent.send_heartbeat()
        await fleet.settle(0.9)


def test_a_recovery_that_was_interrupted_begins_with_the_check_and_evicts_once():
    async def scenario():
        memory = FakeMemory()
        await Fleet("ab", memory=memory).form()
        fleet = await interrupted(memory, "abz", sick="b")
        assert fleet.journal.kinds().count("evict") == 1
        assert fleet.node("b").state is NodeState.EVICTED
        assert [p.node for p in fleet.job.world] == ["a", "z"]
        assert (fleet.job.phase, fleet.job.attempt) == (Phase.RUNNING, 1)
        assert len(memory.times_ns["j"]) == 1
        again = await interrupted(memory, "az")
        assert [p.node for p in again.job.world] == ["a", "z"]
        assert len(memory.times_ns["j"]) == 1

    run(scenario)


def test_an_eviction_that_was_counted_is_known_with_its_node():
    """The hub may be lost while it stores the budget."""

    class Lost(FakeMemory):
        async def stored(self):
            assert self.nodes["j", "b"].evicted
            assert len(self.times_ns["j"]) == 1

    async def scenario():
        await evicted(Lost())

    run(scenario)


def test_a_new_job_is_not_checked_before_its_first_launch():
    async def scenario():
        fleet = await interrupted(FakeMemory(), "ab")
        assert "self_check" not in fleet.journal.kinds()

    run(scenario)


def test_standbys_take_the_place_of_nodes_that_were_evicted_or_do_not_come_back_to_a_new_hub():
    async def scenario():
        memory = FakeMemory()
        await Fleet("ab", memory=memory).form()
        fleet = await interrupted(memory, "a")
        fleet.agents["z"] = fleet.join("z", standby=True)
        await beat(fleet, 4)
        assert fleet.job.phase is Phase.FORMING  # b may still come
        await beat(fleet, 10)
        assert (fleet.job.phase, [p.node for p in fleet.job.world]) == (Phase.RUNNING, ["a", "z"])

    run(scenario)


@pytest.mark.parametrize(
    ("pid", "taken_over"), [(ord("b"), Phase.RUNNING), (ord("b") + 1, Phase.FORMING)], ids=["it", "another"]
)
def test_a_new_hub_does_not_wait_for_an_agent_that_was_evicted(pid, taken_over):
    """The hub ended after the eviction and before the launch. Another agent of that node may still come."""

    async def scenario():
        memory = FakeMemory()
        await Fleet("ab", memory=memory).form()
        memory.node("j", "b", NodeMemory(pid=pid, evicted="fan", evicted_by="controller"))
        fleet = await interrupted(memory, "a")
        fleet.agents["z"] = fleet.join("z", standby=True)
        await beat(fleet, 4)
        assert fleet.job.phase is taken_over

    run(scenario)


@pytest.mark.parametrize(("cap", "taken"), [(2, 2), (1, 0), (5, 5)])
def test_a_size_that_this_run_cannot_have_is_forgotten(cap, taken):
    """Another run of the same name may have other sizes. It would wait for ever."""

    memory = FakeMemory()
    memory.size("j", SizeMemory(cap=cap, devices=0))

    async def scenario():
        fleet = Fleet("ab", nnodes=5, sizes=(2, 1), memory=memory)
        assert fleet.controller.jobs["j"]._state.resizing.cap == taken

    run(scenario)
