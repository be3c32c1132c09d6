"""The check before a relaunch: which nodes fail it, and on what evidence."""

import asyncio
import dataclasses
import functools
import itertools
import time

import pytest

from pulsetrain.agent.commands import SELF_CHECK_MARGIN_S
from pulsetrain.diagnostics.node_check import FULL, LIGHT
from pulsetrain.protocol.messages import UNCONFIRMED, GpuIdentity, HostStore, PairCheck, Reply, SelfCheck
from pulsetrain.recovery import checks
from pulsetrain.recovery.policy import Policy
from tests.recovery import virtual_time
from tests.recovery.builders import hello


class FakeNode:
    """Answers checks.

    `ok` says how its self-check ends. A pair with a member in `deaf` fails, or whose store is one of them.
    """

    def __init__(self, name, *, ok=True, deaf=(), error="", slow=1.0, kind=""):
        self.name, self.hello = name, hello(name)
        self.ok, self.deaf, self.error, self.slow, self.kind = ok, deaf, error, slow, kind
        self.hello = dataclasses.replace(self.hello, address=f"at-{name}")
        self.commands = []

    async def ask(self, command, timeout_s):
        self.commands.append(command)
        data, error = {}, ""
        match command:
            case SelfCheck():
                data = {"ok": self.ok, "failed": [] if self.ok else ["gemm"], "kind": self.kind}
                error = self.error
            case HostStore():
                data = {"port": 4242}
            case PairCheck():
                store = command.store_address.removeprefix("at-")
                failed = {*command.members, store} & set(self.deaf)
                own_s = self.slow * (1 + (ord(self.name) * int(command.prefix.split(":")[0]) % 89) / 1e4)
                data = {"ok": not failed, "seconds": 0.1, "error": "timeout" if failed else ""}
                data |= {"compute_s": own_s, "compute_mean_s": own_s}
        return Reply(id=command.id, node=self.name, error=error, data=data)


def check(*nodes, level=None, now_s=time.monotonic):
    return asyncio.run(checks.run(nodes, Policy(), itertools.count(1).__next__, level=level, now_s=now_s))


def test_a_node_that_fails_or_does_not_answer_its_self_check_is_named_with_the_reason():
    report = check(FakeNode("a"), FakeNode("b", ok=False), FakeNode("c", error="no answer in 8 s"))
    assert report.failed == {"b": "self-check failed: gemm", "c": "self-check: no answer in 8 s"}
    assert set(report.reports) == {"a", "b", "c"}


def test_the_rounds_meet_at_a_node_that_others_can_reach():
    nodes = [FakeNode(name) for name in "abc"]
    nodes[0].hello = dataclasses.replace(nodes[0].hello, address="127.0.0.1")
    check(*nodes, level=LIGHT)
    hosts = [n.name for n in nodes if any(isinstance(c, HostStore) for c in n.commands)]
    assert hosts
    assert "a" not in hosts


class WithGpus(FakeNode):
    """It has so many GPUs and is checked on `device`."""

    def __init__(self, name, device, gpu_count=8, **more):
        super().__init__(name, **more)
        self.device, self.hello = device, dataclasses.replace(self.hello, gpu_count=gpu_count)

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        data = {**reply.data, "device": self.device} if isinstance(command, SelfCheck) else reply.data
        return dataclasses.replace(reply, data=data)


def test_a_node_whose_gpus_cannot_be_used_fails_where_those_of_others_can():
    sick = WithGpus("b", "cpu")
    report = check(WithGpus("a", "cuda"), sick, WithGpus("c", "cuda"), level=LIGHT)
    why = "self-check: none of its 8 GPUs can be used, and those of a can"
    assert report.failed == {"b": why}
    assert not [c for c in sick.commands if isinstance(c, PairCheck)]


@pytest.mark.parametrize(("one", "other", "gpu_count"), [("cpu", "cpu", 8), ("cuda", "cpu", 0)])
def test_a_job_that_wants_no_gpus_and_a_node_without_some_are_checked_on_processors(one, other, gpu_count):
    assert check(WithGpus("a", one), WithGpus("b", other, gpu_count)).failed == {}


class Listing(FakeNode):
    """CUDA lists so many GPUs on it for eight ranks."""

    def __init__(self, name, count, model="H100", **changes):
        super().__init__(name, kind=f"EPYC, 96 cores, {count} x {model}")
        self.count = count
        self.hello = dataclasses.replace(self.hello, **{"nproc_per_node": 8, "gpu_count": 8, **changes})

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        more = {"device": "cuda", "gpus": [f"GPU-{i}" for i in range(self.count)]}
        return dataclasses.replace(reply, data={**reply.data, **more})


def test_a_node_with_fewer_gpus_than_ranks_fails_where_one_of_its_kind_has_enough():
    why = "self-check: CUDA lists 7 GPUs for 8 ranks, and 8 on a"
    assert check(Listing("a", 8), Listing("b", 7)).failed == {"b": why}


@pytest.mark.parametrize("other", [{"count": 7}, {"count": 8, "model": "A100"}, {"count": 8, "devices": 4}])
def test_fewer_gpus_than_ranks_may_be_what_is_wanted(other):
    devices = other.get("devices", 0)
    assert check(Listing("a", **other), Listing("b", 7, devices=devices)).failed == {}


def test_what_is_inside_a_node_is_tested_where_the_level_is_full():
    nodes = [FakeNode("a"), FakeNode("b")]
    for level in (FULL, LIGHT, None):
        check(*nodes, level=level)
    asked = [[c.whole_node for c in n.commands if isinstance(c, SelfCheck)] for n in nodes]
    assert asked == [[True, False, False]] * 2


class SlowToBegin(FakeNode):
    """Its self-check takes so long, and it is waited for no longer than asked."""

    def __init__(self, name, takes_s, gpus=0, gpu_count=0):
        super().__init__(name)
        self.takes_s = takes_s
        known = tuple(GpuIdentity(uuid=f"GPU-{i}") for i in range(gpus))
        self.hello = dataclasses.replace(self.hello, gpus=known, gpu_count=gpu_count)

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        late = isinstance(command, SelfCheck) and self.takes_s > timeout_s
        return dataclasses.replace(reply, error=f"no answer in {timeout_s:g} s", data={}) if late else reply


@pytest.mark.parametrize(("level", "more_s"), [(None, 0), (FULL, 90)])
def test_gpus_that_begin_one_after_the_other_are_waited_for_as_long_as_their_agent_does(level, more_s):
    agent_s = Policy().self_check_s + SELF_CHECK_MARGIN_S
    with_gpus, without = SlowToBegin("a", agent_s + more_s, gpus=8), SlowToBegin("b", agent_s + more_s)
    report = check(with_gpus, without, level=level)
    assert set(report.failed) == {"b"}


def test_gpus_that_are_only_counted_because_nvml_is_missing_are_waited_for_as_well():
    agent_s = Policy().self_check_s + SELF_CHECK_MARGIN_S
    counted, without = SlowToBegin("a", agent_s, gpu_count=8), SlowToBegin("b", agent_s)
    assert set(check(counted, without, level=None).failed) == {"b"}


class NotReady(FakeNode):
    """It cannot check itself before it was asked so often."""

    def __init__(self, name, times):
        super().__init__(name)
        self.times = times

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        asked = sum(isinstance(c, SelfCheck) for c in self.commands)
        if isinstance(command, SelfCheck) and asked <= self.times:
            reply = dataclasses.replace(reply, data={"not_ready": "it is started anew"})
        return reply


def test_a_node_that_is_not_ready_yet_is_asked_again_and_has_not_failed(monkeypatch):
    monkeypatch.setattr(checks, "READY_AGAIN_S", 0.0)
    late, never = NotReady("a", 3), NotReady("b", 10**9)
    report = check(late, never, FakeNode("c"))
    assert report.failed == {"b": "self-check: it is started anew"}
    assert len(late.commands) == 4


def test_neighbours_under_one_switch_do_all_reduces_too():
    nodes = [FakeNode(name) for name in "abcd"]
    for node, switch in zip(nodes, ["s0", "s1", "s0", "s1"], strict=True):
        node.hello = dataclasses.replace(node.hello, switch=switch)
    report = check(*nodes, level=LIGHT)
    asked = {(c.members, c.reduce) for node in nodes for c in node.commands if isinstance(c, PairCheck)}
    assert {members for members, reduce in asked if reduce} >= {("a", "c"), ("b", "d")}
    assert all(reduce == (members in {("a", "c"), ("b", "d")}) for members, reduce in asked)
    assert report.verdict.state == "healthy"


def test_without_doubt_no_pairs_are_checked():
    nodes = [FakeNode("a"), FakeNode("b")]
    report = check(*nodes)
    assert (report.groups, report.verdict) == ((), None)
    assert not any(isinstance(c, PairCheck) for node in nodes for c in node.commands)


def test_a_node_that_cannot_talk_to_good_ones_is_found_and_its_partners_are_not_blamed():
    nodes = [FakeNode(name, deaf=("b",)) for name in "abcd"]
    report = check(*nodes, level=LIGHT)
    assert set(report.failed) == {"b"}
    assert report.verdict.reason == ""
    assert report.verdict.rounds <= 2


def test_a_broken_node_is_found_though_it_hosts_the_first_store():
    nodes = [FakeNode(name, deaf=("a",)) for name in "abcde"]
    assert set(check(*nodes, level=LIGHT).failed) == {"a"}


class BehindAPath(FakeNode):
    """It does not reach the stores of some nodes, and exchanges with all."""

    def __init__(self, name, *missed):
        super().__init__(name)
        self.missed = missed

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        if isinstance(command, PairCheck) and command.store_address.removeprefix("at-") in self.missed:
            data = {"ok": False, "error": "store not reached", "store_unreachable": True}
            return dataclasses.replace(reply, data=data)
        return reply


@pytest.mark.parametrize("behind", ["be", "bdeh", "cdefgh", "bcdefgh"])
def test_a_bad_path_to_the_store_names_nobody_and_the_next_round_has_another(behind):
    nodes = [BehindAPath(n, "a") if n in behind else FakeNode(n) for n in "abcdefgh"]
    report = check(*nodes, level=LIGHT)
    assert report.failed == {}
    assert report.passed == set("abcdefgh")
    assert report.verdict.rounds <= 3


@pytest.mark.parametrize("sick", "abch")
def test_a_node_that_reaches_no_store_but_its_own_is_named(sick):
    names = "abcdefgh"
    nodes = [BehindAPath(n, *names.replace(n, "")) if n == sick else FakeNode(n) for n in names]
    others = [BehindAPath(n.name, sick) if n.name != sick else n for n in nodes]
    report = check(*others, level=LIGHT)
    assert list(report.failed) == [sick]
    assert report.passed == set(names.replace(sick, ""))


def test_a_link_is_told_and_fails_no_node():
    class Far(FakeNode):
        async def ask(self, command, timeout_s):
            reply = await super().ask(command, timeout_s)
            if isinstance(command, PairCheck) and {"c", "d"} <= set(command.members):
                reply = dataclasses.replace(reply, data={"ok": False, "seconds": 0.1})
            return reply

    report = check(*map(Far, "abcdef"), level=LIGHT)
    assert report.failed == {}
    assert report.detail()["links"][0]["nodes"] == ["c", "d"]


def test_no_round_begins_when_the_time_is_up():
    now_s = itertools.count(0, 2.5).__next__  # so much time passes between two looks at the clock
    nodes = [FakeNode(name, deaf=("b",)) for name in "abcd"]
    report = check(*nodes, level=LIGHT, now_s=now_s)
    assert {group.round for group in report.groups} == {0}
    assert (report.failed, report.verdict.faults.undecided) == ({}, ("a", "b"))
    assert "never passed" in report.verdict.reason
    assert report.seconds > 0


def test_later_rounds_wait_for_what_passed_and_not_for_the_first_limit():
    nodes = [FakeNode(name, deaf=("b",)) for name in "abcdef"]
    check(*nodes, level=LIGHT)
    limits_s = [c.timeout_s for c in nodes[0].commands if isinstance(c, PairCheck)]
    assert limits_s == [Policy().pair_timeout_s, checks.LEAST_TIMEOUT_S]


class Fleet:
    """Nodes whose groups take as long as the slowest member's set-up: `setup_s` by node and round.

    A node with an endless one answers nothing. With `gpus` each has one.
    """

    def __init__(self, names, setup_s, *, gpus=False):
        self.setup_s = setup_s
        self.nodes = [FakeNode(name) for name in names]
        for node in self.nodes:
            node.hello = dataclasses.replace(node.hello, gpus=(GpuIdentity(uuid="GPU-0"),) if gpus else ())
            node.ask = functools.partial(self.ask, node)

    async def ask(self, node, command, timeout_s):
        if not isinstance(command, PairCheck):
            return await FakeNode.ask(node, command, timeout_s)
        number = int(command.prefix.split(":")[0])
        takes_s = max(self.setup_s(name, number) for name in command.members)
        await asyncio.sleep(min(takes_s, command.timeout_s))
        data = {"ok": takes_s < command.timeout_s, "seconds": 0.1, "error": "timed out"}
        return Reply(id=command.id, node=node.name, data=data)

    def check(self, level):
        ids = itertools.count(1).__next__
        return virtual_time.run(lambda now_s: checks.run(self.nodes, Policy(), ids, level=level, now_s=now_s))


@pytest.mark.parametrize("level", [LIGHT, FULL])
def test_a_gpu_node_whose_set_up_takes_long_is_healthy(level):
    fleet = Fleet("abcdef", lambda name, _: 18.0 if name == "c" else 3.0, gpus=True)
    report = fleet.check(level)
    assert report.failed == {}
    assert report.verdict.faults.state == "healthy"


@pytest.mark.parametrize("level", [LIGHT, FULL])
@pytest.mark.parametrize("gpus", [False, True])
def test_a_node_that_answers_nothing_is_named_though_others_take_their_time(level, gpus):
    fleet = Fleet("abcdef", lambda name, _: 1e9 if name == "c" else 1.0, gpus=gpus)
    report = fleet.check(level)
    assert set(report.failed) == {"c"}
    most_s = level.limit_s + (level.failures * checks.GPU_SETUP_S if gpus else 0.0)
    assert report.seconds <= most_s + 1


def test_where_others_nearly_took_as_long_a_pair_that_was_given_up_names_nobody():
    fleet = Fleet("abcdef", lambda name, _: 6.0 if name == "c" else 3.0)
    report = fleet.check(LIGHT)
    assert report.failed == {}
    assert "given up after 5.0 s, while others passed in 3.0 s" in report.verdict.reason


def test_with_time_a_slow_set_up_passes():
    fleet = Fleet("abcdef", lambda name, _: 6.0 if name == "c" else 3.0)
    assert fleet.check(FULL).verdict.faults.state == "healthy"


def test_slow_nodes_are_named_by_the_full_level_and_not_failed():
    nodes = [FakeNode(name, slow=1.6 if name == "d" else 1.0) for name in "abcdefghijkl"]
    report = check(*nodes, level=FULL)
    assert report.failed == {}
    detail = report.detail()
    assert set(detail["slow"]["nodes"]) == {"d"}
    assert {pair["round"] for pair in detail["pairs"]} == {0, 1}
    payloads = {c.payload_bytes for c in nodes[0].commands if isinstance(c, PairCheck)}
    assert payloads == {FULL.payload_bytes}


def test_nodes_of_another_kind_are_not_slow():
    nodes = [
        FakeNode(name, slow=1.6 if name in "abcd" else 1.0, kind="old" if name in "abcd" else "new")
        for name in "abcdefghijkl"
    ]
    assert check(*nodes, level=FULL).detail()["slow"]["nodes"] == {}


def test_two_checks_at_a_time_have_stores_of_their_own():
    nodes = [FakeNode(name) for name in "ab"]
    asyncio.run(checks.run(nodes, Policy(), itertools.count(1).__next__, level=LIGHT, store_job="diagnose"))
    assert [c.job for c in nodes[0].commands if isinstance(c, HostStore)] == ["diagnose"]


def test_a_node_that_failed_alone_takes_part_in_no_pair():
    nodes = [FakeNode("a"), FakeNode("b", ok=False), FakeNode("c")]
    report = check(*nodes, level=LIGHT)
    assert report.groups
    assert not any("b" in group.members for group in report.groups)


def test_a_node_whose_gpu_is_busy_takes_part_in_no_pair_and_has_not_failed():
    class Busy(FakeNode):
        async def ask(self, command, timeout_s):
            reply = await super().ask(command, timeout_s)
            return dataclasses.replace(reply, data={**reply.data, "busy": ["gpu0"]})

    report = check(FakeNode("a"), Busy("b"), FakeNode("c"), level=LIGHT)
    assert report.failed == {}
    assert [group.members for group in report.groups] == [("a", "c")]


class MemoryShort(FakeNode):
    """Others use its memory."""

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        error = "OutOfMemoryError: CUDA out of memory."
        data = {"ok": False, "error": error} if isinstance(command, PairCheck) else reply.data
        return dataclasses.replace(reply, data=data)


@pytest.mark.parametrize("level", [LIGHT, FULL])
def test_a_node_without_free_memory_in_a_round_has_not_failed_and_is_asked_once(level):
    short = MemoryShort("b")
    report = check(*(short if n == "b" else BesideShort(n) for n in "abcdefgh"), level=level)
    assert report.failed == {}
    assert report.passed == set("acdefgh")
    assert report.busy == {"b"}
    assert report.verdict.busy == ("b",)
    assert "b: others use the memory" in report.verdict.reason
    assert sum(isinstance(c, PairCheck) for c in short.commands) == 1


class BesideShort(FakeNode):
    """It waits in vain for b."""

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        if isinstance(command, PairCheck) and "b" in command.members:
            return dataclasses.replace(reply, data={"ok": False, "error": "Connection closed by peer"})
        return reply


def test_a_node_that_cannot_host_the_store_fails():
    class Deaf(FakeNode):
        async def ask(self, command, timeout_s):
            reply = await super().ask(command, timeout_s)
            error = "no answer" if isinstance(command, HostStore) else ""
            return dataclasses.replace(reply, error=error)

    report = check(Deaf("a"), FakeNode("b"), level=LIGHT)
    assert report.failed == {"a": "pairwise store: no answer"}


def test_nodes_that_cannot_host_the_store_do_not_outlast_the_level():
    now_s = 0.0

    class Mute(FakeNode):
        async def ask(self, command, timeout_s):
            nonlocal now_s
            reply = await super().ask(command, timeout_s)
            if isinstance(command, HostStore):
                now_s += timeout_s
                reply = dataclasses.replace(reply, error=f"no answer in {timeout_s:g} s", data={})
            return reply

    report = check(*map(Mute, "abcdefgh"), level=LIGHT, now_s=lambda: now_s)
    assert report.seconds <= LIGHT.limit_s + Policy().reply_timeout_s
    assert set(report.failed) == {"a", "b"}


def test_the_report_is_the_detail_of_an_event():
    detail = check(FakeNode("a"), FakeNode("b"), level=LIGHT).detail()
    assert set(detail) == {
        *("failed", "unreached", "reports", "pairs", "links", "inconclusive", "slow", "verdict", "seconds")
    }
    assert set(detail["slow"]) == {"checks", "nodes", "all_gathers", "products"}
    assert detail["pairs"][0]["members"] == ["a", "b"]


def test_a_node_that_loses_its_connection_in_its_self_check_has_not_failed():
    cut = [FakeNode("b", error="not connected"), FakeNode("c", error="connection closed: 1006")]
    report = check(FakeNode("a"), *cut, FakeNode("d"), level=LIGHT)
    assert report.failed == {}
    assert report.unreached == {"b": "self-check: not connected", "c": "self-check: connection closed: 1006"}
    assert {name for group in report.groups for name in group.members} == {"a", "d"}


class Cut(FakeNode):
    """It loses its connection at the first command of a kind."""

    def __init__(self, name, at, error="connection closed"):
        super().__init__(name)
        self.at, self.error = at, error

    async def ask(self, command, timeout_s):
        reply = await super().ask(command, timeout_s)
        if isinstance(command, self.at):
            reply = dataclasses.replace(reply, error=self.error, data={})
        return reply


def test_a_node_that_loses_its_connection_in_the_rounds_has_not_failed():
    for at in (HostStore, PairCheck):
        report = check(Cut("a", at), *map(FakeNode, "bcd"), level=LIGHT)
        assert report.failed == {}
        assert set(report.unreached) == {"a"}


@pytest.mark.parametrize("at", [HostStore, PairCheck, SelfCheck])
def test_a_node_that_did_nothing_because_its_hub_may_not_lead_has_not_failed(at):
    report = check(Cut("a", at, UNCONFIRMED), *map(FakeNode, "bcd"), level=LIGHT)
    assert report.failed == {}
    assert set(report.unreached) == {"a"}
