"""Standbys are checked, and readmitted after a probation. Against fake agents."""

from pulsetrain.protocol.messages import SelfCheck, Start
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, run
from tests.recovery.test_responses import trouble


async def pass_time(fleet, seconds, step_s=20.0):
    """Time passes, and everybody keeps saying that they are there."""
    while seconds > 0:
        fleet.clock.now_s += min(step_s, seconds)
        seconds -= step_s
        for agent in fleet.agents.values():
            if agent.left is None:
                agent.send_heartbeat()
        await fleet.settle()


def checks(fleet, node):
    return len(fleet.of(node, SelfCheck))


def test_standbys_run_the_light_check_every_ten_minutes_and_nodes_that_train_do_not():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        await pass_time(fleet, 590)
        assert checks(fleet, "z") == 0
        await pass_time(fleet, 20)
        assert (checks(fleet, "z"), checks(fleet, "a")) == (1, 0)
        await pass_time(fleet, 1220)
        assert checks(fleet, "z") == 3

    run(scenario)


def test_a_standby_that_fails_the_check_is_not_promoted_until_it_is_well_for_a_while():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(standby_check_s=100, probation_s=300))
        await fleet.form()
        fleet.agents["z"].sick = True
        await pass_time(fleet, 120)
        assert fleet.node("z").cordon == "light check: self-check failed: gemm"
        fleet.agents["z"].sick = False
        await pass_time(fleet, 200)
        assert fleet.node("z").cordon
        await pass_time(fleet, 240)
        assert fleet.node("z").cordon == ""
        assert fleet.journal.last("uncordon")["node"] == "z"

    run(scenario)


def test_a_machine_that_comes_back_after_an_eviction_serves_a_probation():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(probation_s=300))
        await fleet.form()
        for agent in (fleet.agents["a"], fleet.agents["b"]):
            agent.complete(9, peer_of=(0, 1, 2, 3))
        fleet.controller.jobs["j"].observe((), [trouble("b", "evict_now")])
        await fleet.settle()
        assert fleet.node("b").state is NodeState.EVICTED
        fleet.controller.jobs["j"].observe((), ())
        fleet.agents["b"].drop()
        fleet.agents["b"] = fleet.join("b", pid=4242)
        await pass_time(fleet, 100)
        assert fleet.node("b").cordon == "probation: it was evicted for b/GPU-1 is lost"
        assert checks(fleet, "b") == 1
        await pass_time(fleet, 300)
        assert fleet.node("b").cordon == ""
        assert checks(fleet, "b") >= 2

    run(scenario)


def test_a_machine_that_a_person_evicted_and_started_anew_is_welcome():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        await fleet.controller.evict("z", "maintenance", "ann")
        fleet.agents["z"].drop()
        fleet.agents["z"] = fleet.join("z", pid=4242)
        await pass_time(fleet, 20)
        assert (fleet.node("z").cordon, checks(fleet, "z")) == ("", 1)

    run(scenario)


def test_a_node_that_joins_late_is_checked_before_the_job_takes_it():
    async def scenario():
        fleet = Fleet("ab")
        await fleet.form()
        fleet.agents["b"].drop()
        await fleet.settle(1.1)
        await fleet.settle()
        assert fleet.job.phase is Phase.WAITING
        fleet.agents["y"] = fleet.join("y", sick=True)
        fleet.agents["z"] = fleet.join("z")
        await pass_time(fleet, 4, step_s=1.0)
        assert [m.node for m in fleet.job.world] == ["a", "z"]
        assert fleet.job.phase is Phase.RUNNING
        assert checks(fleet, "z") >= 1
        assert not fleet.of("y", Start)

    run(scenario)


def test_trouble_begins_the_probation_anew():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(probation_s=100, standby_check_s=30))
        await fleet.form()
        for _ in range(10):
            fleet.controller.jobs["j"].observe((), [trouble("z", "cordon")])
            await pass_time(fleet, 20)
        fleet.controller.jobs["j"].observe((), ())
        assert fleet.node("z").cordon
        await pass_time(fleet, 60)
        assert fleet.node("z").cordon
        await pass_time(fleet, 80)
        assert fleet.node("z").cordon == ""

    run(scenario)


def test_observe_only_leaves_standbys_alone():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(observe_only=True))
        await fleet.form()
        await pass_time(fleet, 700)
        assert checks(fleet, "z") == 0

    run(scenario)


def test_a_standby_whose_agent_ends_while_it_is_checked_comes_back_without_a_cordon():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(standby_check_s=100))
        await fleet.form()
        fleet.agents["z"].mute = (SelfCheck,)
        for _ in range(30):
            await pass_time(fleet, 10)
            if checks(fleet, "z"):
                break
        assert checks(fleet, "z") == 1
        fleet.agents["z"].drop()
        await fleet.settle()
        assert fleet.journal.last("standby_check")["detail"]["failed"] == {}
        await fleet.settle(1.1)
        fleet.agents["z"] = fleet.join("z", pid=4242)
        await pass_time(fleet, 20)
        assert (fleet.node("z").cordon, checks(fleet, "z")) == ("", 1)

    run(scenario)
