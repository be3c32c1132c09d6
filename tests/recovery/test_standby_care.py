"""Standbys are checked, and readmitted after a probation. Against fake agents."""

from pulsetrain.diagnostics.rounds import GroupResult
from pulsetrain.protocol.messages import PairCheck, SelfCheck, Start
from pulsetrain.recovery import standby_care
from pulsetrain.recovery.checks import CheckReport
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.standby_care import BUSY, NEVER_PASSED
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


def pairs(fleet, node):
    return {tuple(sorted(c.members)) for c in fleet.of(node, PairCheck)}


async def replace_node(fleet, node):
    """The policy table wants the node to go: nothing but a promotion asks for rounds of all-gathers."""
    fleet.controller.jobs["j"].observe((), [trouble(node, "evict_now")])
    await fleet.settle()


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
        assert pairs(fleet, "z") == {("a", "z")}  # the job stands, so a node of it can be a partner
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


def test_a_lone_standby_passes_beside_nodes_that_stay_before_it_is_promoted():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        await pass_time(fleet, 610)
        assert not pairs(fleet, "z")  # nobody was free to be its partner
        await replace_node(fleet, "b")
        assert [m.node for m in fleet.job.world] == ["a", "z"]
        assert (pairs(fleet, "z"), pairs(fleet, "b")) == ({("a", "z")}, set())
        told = fleet.journal.last("standby_check")["detail"]
        assert (told["nodes"], told["beside"], told["failed"]) == (["z"], ["a"], {})

    run(scenario)


def test_a_standby_that_passed_a_while_ago_is_promoted_without_another_check():
    async def scenario():
        fleet = Fleet("abyz")
        await fleet.form()
        await pass_time(fleet, 610)
        assert pairs(fleet, "y") == {("y", "z")}
        asked = len(fleet.of("y", PairCheck))
        await pass_time(fleet, 300)
        await replace_node(fleet, "b")
        assert [m.node for m in fleet.job.world] == ["a", "y"]
        assert len(fleet.of("y", PairCheck)) == asked
        assert not pairs(fleet, "a")

    run(scenario)


def test_a_standby_that_fails_the_light_check_is_held_back_and_another_is_promoted():
    async def scenario():
        fleet = Fleet("abcyz", nnodes=3)
        await fleet.form()
        fleet.agents["y"].deaf = True
        await replace_node(fleet, "c")
        assert [m.node for m in fleet.job.world] == ["a", "b", "z"]
        assert fleet.job.phase is Phase.RUNNING
        assert fleet.node("y").cordon.startswith("light check: ")
        assert fleet.node("y").state is NodeState.STANDBY  # held back, not evicted
        assert not fleet.of("y", Start)

    run(scenario)


def test_a_standby_whose_memory_others_use_waits_and_an_active_node_stays():
    async def scenario():
        fleet = Fleet("abcyz", nnodes=3)
        await fleet.form()
        fleet.agents["y"].full = fleet.agents["a"].full = True
        await replace_node(fleet, "c")
        assert [m.node for m in fleet.job.world] == ["a", "b", "z"]
        assert fleet.node("a").state is NodeState.ACTIVE
        assert fleet.node("y").cordon == f"light check: {BUSY}"
        fleet.agents["y"].full = fleet.agents["a"].full = False
        await pass_time(fleet, 60, step_s=10.0)
        assert fleet.node("y").cordon == ""

    run(scenario)


def test_a_standby_that_was_too_late_for_the_check_waits_without_a_probation(monkeypatch):
    async def late_for(nodes, policy, ids, level):
        members = tuple(node.name for node in nodes if node.name != "y")
        return CheckReport(failed={}, reports={}, groups=[GroupResult(members=members, ok=True, seconds=0.1)])

    async def scenario():
        fleet = Fleet("abcyz", nnodes=3, policy=Policy(probation_s=3000))
        await fleet.form()
        with monkeypatch.context() as patched:
            patched.setattr(standby_care.checks, "beside_others", late_for)
            await replace_node(fleet, "c")
        assert [m.node for m in fleet.job.world] == ["a", "b", "z"]
        assert fleet.node("y").cordon == f"light check: {NEVER_PASSED}"
        await pass_time(fleet, 60, step_s=10.0)
        assert fleet.node("y").cordon == ""

    run(scenario)


def test_where_no_pair_passes_nobody_is_blamed_and_the_job_goes_on():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["z"].deaf = True
        await replace_node(fleet, "b")
        assert [m.node for m in fleet.job.world] == ["a", "z"]
        assert fleet.node("z").cordon == ""
        assert fleet.journal.last("standby_check")["detail"]["inconclusive"]

    run(scenario)


def test_the_check_before_a_promotion_is_bounded_and_can_be_turned_off():
    async def scenario(limit_s):
        fleet = Fleet("abz", policy=Policy(promotion_check_s=limit_s))
        await fleet.form()
        await replace_node(fleet, "b")
        assert [m.node for m in fleet.job.world] == ["a", "z"]
        return [c.timeout_s for c in fleet.of("z", PairCheck)]

    async def both():
        assert await scenario(0) == []
        limits_s = await scenario(3.0)
        assert limits_s
        assert max(limits_s) <= 3.0

    run(both)


def test_a_rank_that_ends_for_the_first_time_brings_no_rounds_where_nobody_is_promoted():
    async def scenario():
        fleet = Fleet("abz")
        await fleet.form()
        fleet.agents["a"].rank_exits(0, 1)
        await fleet.wait_for_launch()
        assert fleet.job.phase is Phase.RUNNING
        assert not pairs(fleet, "z")

    run(scenario)


def test_a_first_exit_of_a_rank_checks_the_standby_that_replaces_its_sick_node():
    async def scenario():
        fleet = Fleet("abcz", nnodes=3)
        await fleet.form()
        fleet.agents["b"].sick = True
        fleet.agents["b"].rank_exits(2, 1)
        await fleet.wait_for_launch()
        assert [m.node for m in fleet.job.world] == ["a", "z", "c"]
        assert pairs(fleet, "z")

    run(scenario)


def test_what_only_informs_keeps_no_good_node_out():
    async def scenario():
        fleet = Fleet("abz", policy=Policy(probation_s=60))
        await fleet.form()
        fleet.controller.jobs["j"].observe((), [trouble("z", "cordon")])
        await fleet.settle()
        assert fleet.node("z").cordon
        for _ in range(6):
            fleet.controller.jobs["j"].observe((), [trouble("z", "inform")])
            await pass_time(fleet, 20)
        assert fleet.node("z").cordon == ""

    run(scenario)


def test_a_check_that_says_nothing_ends_no_probation():
    """Two standbys that fail beside each other: one of them is faulty, and nobody knows which."""

    async def scenario():
        fleet = Fleet("abyz", policy=Policy(probation_s=60))
        await fleet.form()
        fleet.controller.jobs["j"].observe((), [trouble("y", "cordon"), trouble("z", "cordon")])
        await fleet.settle()
        fleet.agents["z"].deaf = True
        fleet.controller.jobs["j"].observe((), ())
        await pass_time(fleet, 200)
        assert pairs(fleet, "z") == {("y", "z")}
        assert fleet.node("y").cordon
        assert fleet.node("z").cordon
        fleet.agents["z"].deaf = False
        await pass_time(fleet, 60)
        assert (fleet.node("y").cordon, fleet.node("z").cordon) == ("", "")

    run(scenario)
