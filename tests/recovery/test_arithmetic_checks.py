"""A NaN: nothing while the job trains, products with a known answer at a stop or at the end."""

import asyncio

import pytest

from pulsetrain.protocol.messages import ArithmeticCheck, Leave
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import FakeMemory, Fleet, Observed, run

WRONG = {"core 3": 2}


def nan(subject="2", subject_type="rank", attempt=0, **details):
    return Observed(kind="nan", subject=subject, subject_type=subject_type, attempt=attempt, details=details)


def fleet(nodes="abcd", nnodes=3, max_restarts=3, memory=None, **changes):
    policy = Policy(**{"evictions_per_hour": 9, **changes})
    return Fleet(nodes, nnodes, policy, max_restarts=max_restarts, memory=memory)


async def trained(fleet, *findings):
    await fleet.form()
    fleet.controller.jobs["j"].observe(findings)
    await fleet.settle()


async def stopped(fleet, *lines):
    fleet.agents["a"].rank_exits(0, 1, lines)
    await fleet.settle()


async def settle_until_fault(site):
    while site.job.fault is None:
        await asyncio.sleep(0)


def checked(fleet):
    return [name for name in fleet.agents if fleet.of(name, ArithmeticCheck)]


def test_a_node_whose_products_are_wrong_is_replaced_at_the_next_stop_and_no_other():
    async def scenario():
        site = fleet()
        site.agents["b"].wrong = WRONG
        await trained(site, nan())
        assert checked(site) == []
        assert site.journal.last("arithmetic_suspected")["detail"]["nodes"] == ["b"]
        await stopped(site)
        assert checked(site) == ["b"]
        assert site.journal.last("evict")["node"] == "b"
        assert "2 elements on core 3, of 100 products" in site.journal.last("evict")["detail"]["reason"]
        assert [n.name for n in site.job.world_nodes()] == ["a", "d", "c"]
        assert not any(site.of(name, Leave) for name in "acd")
        assert site.of("b", ArithmeticCheck)[0].seconds == Policy().arithmetic_check_s

    run(scenario)


def test_a_nan_of_the_whole_job_has_every_node_checked_and_right_ones_stay():
    async def scenario():
        site = fleet()
        await trained(site, nan("j", "job"))
        await stopped(site)
        await stopped(site)
        assert checked(site) == list("abc")
        assert site.journal.kinds().count("arithmetic_check") == 1
        assert "evict" not in site.journal.kinds()

    run(scenario)


def test_a_script_that_ends_on_a_nan_is_checked_though_nothing_was_analyzed():
    async def scenario():
        site = fleet()
        site.agents["c"].wrong = WRONG
        await trained(site)
        await stopped(site, "Traceback", "RuntimeError: loss is NaN at step 7")
        assert checked(site) == list("abc")
        assert site.journal.last("evict")["node"] == "c"

    run(scenario)


@pytest.mark.parametrize("line", ["KeyError: 'banana'", "finance", ""])
def test_another_end_checks_nobody(line):
    async def scenario():
        site = fleet()
        await trained(site)
        await stopped(site, line)
        assert checked(site) == []

    run(scenario)


def test_wrong_products_evict_also_where_the_users_own_code_raised():
    async def scenario():
        site = fleet()
        site.agents["b"].wrong = WRONG
        await trained(site, nan())
        site.agents["a"].rank_exits(0, 1, ("AssertionError: loss",))
        job = site.controller.jobs["j"]
        own = Observed(kind="crash", subject="0", details={"blame": {"user": 0.85}})
        await settle_until_fault(site)
        job.observe([own])
        await site.settle()
        assert site.journal.last("evict")["node"] == "b"

    run(scenario)


def test_a_node_that_gives_no_answer_is_told_and_stays():
    async def scenario():
        site = fleet()
        site.agents["b"].mute = (ArithmeticCheck,)
        await trained(site, nan())
        site.agents["a"].rank_exits(0, 1)
        await settle_until_fault(site)
        while not site.of("b", ArithmeticCheck):
            await site.settle()
        site.agents["b"].drop()
        site.agents["b"].mute = ()
        site.agents["b"].reconnect()
        await site.settle()
        detail = site.journal.last("arithmetic_check")["detail"]
        assert (detail["silent"], detail["wrong"]) == ({"b": "connection closed"}, {})
        assert "evict" not in site.journal.kinds()

    run(scenario)


def test_at_the_end_of_the_job_nodes_are_checked_before_they_leave():
    async def scenario():
        site = fleet(max_restarts=0)
        site.agents["b"].wrong = WRONG
        await trained(site, nan())
        await stopped(site)
        assert site.job.phase is Phase.FAILED
        commands = [type(c) for c in site.agents["b"].commands]
        assert commands.index(ArithmeticCheck) < commands.index(Leave)
        assert list(site.job.wrong_arithmetic) == ["b"]

    run(scenario)


def test_a_hub_that_only_observes_says_what_it_would_do():
    async def scenario():
        site = fleet(observe_only=True)
        await trained(site, nan())
        assert site.journal.last("would")["detail"]["event"] == "check_arithmetic"
        assert checked(site) == []

    run(scenario)


def test_a_node_that_was_wrong_is_a_standby_again_only_after_right_products():
    async def scenario():
        memory = FakeMemory()
        site = fleet(probation_s=10.0, memory=memory)
        site.agents["b"].wrong = WRONG
        await trained(site, nan())
        await stopped(site)
        site.agents["b"].drop()
        site.agents["b"] = site.join("b", pid=77)
        site.agents["b"].wrong = WRONG
        await site.settle(20.0)
        await site.settle(20.0)
        assert "wrong products" in site.node("b").cordon
        site.agents["b"].wrong = {}
        for _ in range(4):
            await site.settle(31.0)
            for agent in site.agents.values():
                agent.send_heartbeat()
        assert site.node("b").cordon == ""
        assert site.job.wrong_arithmetic == {}
        assert memory.nodes == {}

    run(scenario)


def test_a_new_hub_knows_who_was_wrong_and_was_not_evicted():
    async def scenario():
        memory = FakeMemory()
        site = fleet(memory=memory, evictions_per_hour=0)
        site.agents["b"].wrong = WRONG
        await trained(site, nan())
        await stopped(site)
        assert site.journal.last("eviction_refused")["node"] == "b"
        again = fleet(memory=memory)
        assert "2 elements on core 3" in again.job.wrong_arithmetic["b"].reason

    run(scenario)


def test_a_node_that_was_right_since_is_nobody_to_a_new_hub():
    async def scenario():
        memory = FakeMemory()
        site = fleet(memory=memory, evictions_per_hour=0)
        site.agents["b"].wrong = WRONG
        await trained(site, nan())
        await stopped(site)
        site.agents["b"].wrong = {}
        site.controller.jobs["j"].observe([nan("3", attempt=1)])
        await site.settle()
        await stopped(site)
        assert memory.nodes == {}

    run(scenario)
