"""What a job does where its links are suspected: nothing while it trains, rounds at a stop."""

import asyncio

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import Leave, LinkSend, LinkSink
from pulsetrain.recovery.link_checks import LinkOptions
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import Phase
from tests.recovery.fakes import Fleet, Observed, run

SLOW = Observed(kind="slow_link", subject_type="group", subject="dp:1", details={"nodes": ["b", "c"]})


class Machines(Fleet):
    """Each node is on a machine of its own."""

    def join(self, node, **more):
        return super().join(node, address=f"10.0.0.{ord(node)}", **more)


def fleet(nodes="abcd", nnodes=3, **changes):
    return Machines(nodes, nnodes, Policy(evictions_per_hour=9, **changes))


async def trained(fleet, *findings):
    await fleet.form()
    fleet.controller.jobs["j"].observe(findings)
    await fleet.settle()


def active(fleet):
    return sorted(n.name for n in fleet.job.world_nodes())


def test_a_job_that_trains_is_not_disturbed_and_the_suspicion_is_told_once():
    async def scenario():
        site = fleet()
        await trained(site, SLOW)
        site.controller.jobs["j"].observe([], [SLOW])
        await site.settle(30.0)
        assert not any(site.of(name, LinkSink) for name in "abcd")
        assert site.journal.kinds().count("links_suspected") == 1
        assert site.journal.last("links_suspected")["detail"]["nodes"] == ["b", "c"]

    run(scenario)


def test_at_the_next_stop_a_suspected_node_whose_port_is_slow_is_replaced():
    async def scenario():
        site = fleet()
        site.agents["b"].link_rate = 0.4
        await trained(site, SLOW)
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        detail = site.journal.last("link_check")["detail"]
        assert [(c["kind"], c["name"]) for c in detail["named"]] == [("port", "b/net")]
        assert detail["suspected"] == ["s"]
        assert active(site) == ["a", "c", "d"]
        assert site.journal.last("evict")["node"] == "b"
        assert site.of("b", Leave)
        assert not any(site.of(name, Leave) for name in "acd")

    run(scenario)


def test_a_port_that_is_below_its_own_rate_as_all_are_is_told_and_evicts_nobody():
    async def scenario():
        site = fleet()
        for agent in site.agents.values():
            agent.port_speed = 1e10
        await trained(site, SLOW)
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        named = site.journal.last("link_check")["detail"]["named"]
        assert [(c["name"], c["own_rate"]) for c in named] == [(f"{n}/net", True) for n in "abcd"]
        assert "evict" not in site.journal.kinds()

    run(scenario)


def test_a_sites_limit_holds_for_the_transfers_at_a_stop():
    async def scenario():
        site = fleet(link_check_mbit=50.0)
        await trained(site, SLOW)
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        assert {c.bits_per_s for c in site.of("a", LinkSend)} == {5e7}

    run(scenario)


def test_in_a_job_that_has_shrunk_a_standby_is_enough_for_its_present_size():
    async def scenario():
        site = Machines("abc", 4, Policy(evictions_per_hour=9), sizes=(2, 2))
        site.agents["b"].link_rate = 0.4
        await site.settle(5.0)
        for agent in site.agents.values():
            agent.send_heartbeat()
        await trained(site, SLOW)
        assert active(site) == ["a", "b"]
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        assert active(site) == ["a", "c"]

    run(scenario)


def test_without_somebody_to_take_its_place_a_slow_node_trains_on():
    async def scenario():
        site = fleet("abc")
        site.agents["b"].link_rate = 0.4
        await trained(site, SLOW)
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        assert "link_check" in site.journal.kinds()
        assert "evict" not in site.journal.kinds()
        assert site.job.phase is Phase.RUNNING

    run(scenario)


def test_a_node_that_nothing_suspected_is_told_and_not_evicted():
    async def scenario():
        site = fleet()
        site.agents["a"].link_rate = 0.4
        await trained(site, SLOW)
        site.agents["c"].rank_exits(4, 1)
        await site.settle()
        assert site.journal.last("link_check")["detail"]["named"][0]["node"] == "a"
        assert "evict" not in site.journal.kinds()

    run(scenario)


def test_a_node_with_the_address_of_loopback_is_left_out():
    async def scenario():
        site = Fleet("", 3, Policy(evictions_per_hour=9))
        for name in "abcd":
            address = "127.0.0.1" if name == "b" else f"10.0.0.{ord(name)}"
            site.agents[name] = site.join(name, address=address)
        await trained(site, SLOW)
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        assert [name for name in "abcd" if site.of(name, LinkSink)] == ["a", "c", "d"]

    run(scenario)


def test_good_links_evict_nobody_and_are_not_measured_again_for_the_same_reason():
    async def scenario():
        site = fleet()
        await trained(site, SLOW)
        for _ in range(2):
            site.agents["a"].rank_exits(0, 1)
            await site.settle()
        assert site.journal.kinds().count("link_check") == 1
        assert "evict" not in site.journal.kinds()
        assert site.job.links.report.verdict.state == "healthy"

    run(scenario)


def test_without_a_suspicion_a_stop_measures_no_link():
    async def scenario():
        site = fleet()
        await trained(site)
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        assert not any(site.of(name, LinkSend) for name in "abcd")

    run(scenario)


def test_an_exception_of_the_users_own_code_measures_and_evicts_nobody():
    async def scenario():
        site = fleet()
        site.agents["b"].link_rate = 0.4
        await trained(site, SLOW)
        site.agents["a"].rank_exits(0, 1)
        while site.job.fault is None:
            await asyncio.sleep(0)
        own = Observed(kind="crash", subject="0", details={"blame": {"user": 0.85}})
        site.controller.jobs["j"].observe([own])
        await site.settle()
        assert site.job.attempt == 1
        assert "link_check" not in site.journal.kinds()
        assert "evict" not in site.journal.kinds()

    run(scenario)


def test_a_hub_that_only_observes_says_what_it_would_do():
    async def scenario():
        site = fleet(observe_only=True)
        await trained(site, SLOW)
        assert site.journal.last("would")["detail"]["event"] == "check_links"
        assert "links_suspected" not in site.journal.kinds()

    run(scenario)


def test_two_nodes_are_too_few_and_the_reason_is_told():
    async def scenario():
        site = fleet("ab", 2)
        await trained(site, SLOW)
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        assert "2 of its nodes" in site.journal.last("link_check_skipped")["detail"]["reason"]
        assert site.job.phase is Phase.RUNNING

    run(scenario)


def test_nodes_that_share_a_machine_have_no_links_to_compare():
    async def scenario():
        site = Fleet("abcd", 3)
        site.agents["b"].link_rate = 0.4
        await trained(site, SLOW)
        site.agents["a"].rank_exits(0, 1)
        await site.settle()
        assert "on 1 machines" in site.journal.last("link_check_skipped")["detail"]["reason"]
        assert not site.of("a", LinkSink)

    run(scenario)


def test_a_person_may_measure_a_job_that_trains():
    async def scenario():
        site = fleet()
        site.agents["d"].link_rate = 0.0
        await trained(site)
        asked = site.controller.jobs["j"].measure_links(LinkOptions(bits_per_s=1e8), "ann")
        report = await asked
        assert [c.name for c in report.verdict.culprits] == ["d/net"]
        assert site.journal.last("link_check")["actor"] == "ann"
        assert site.of("a", LinkSend)[0].bits_per_s == 1e8
        assert "evict" not in site.journal.kinds()

    run(scenario)


@pytest.mark.parametrize(("nodes", "nnodes", "formed", "words"), [
    ("ab", 2, True, "2 of its nodes can be asked, and 3 are needed"),
    ("abc", 4, False, "is forming"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused_in_one_line(nodes, nnodes, formed, words):
    async def scenario():
        site = fleet(nodes, nnodes)
        if formed:
            await site.form()
        with pytest.raises(UsageError, match=words):
            await site.controller.jobs["j"].measure_links(LinkOptions(), "ann")

    run(scenario)
