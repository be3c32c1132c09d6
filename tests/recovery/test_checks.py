"""The check before a relaunch: which nodes fail it, and on what evidence."""

import asyncio
import dataclasses
import itertools

from pulsetrain.protocol.messages import HostStore, PairCheck, Reply, SelfCheck
from pulsetrain.recovery import checks
from pulsetrain.recovery.policy import Policy
from tests.recovery.builders import hello


class FakeNode:
    """Answers checks.

    `ok` says how its self-check ends. A pair with a member in `deaf` fails, or whose store is one of them.
    """

    def __init__(self, name, *, ok=True, deaf=(), error=""):
        self.name, self.hello = name, hello(name)
        self.ok, self.deaf, self.error = ok, deaf, error
        self.hello = dataclasses.replace(self.hello, address=f"at-{name}")
        self.commands = []

    async def ask(self, command, timeout_s):
        self.commands.append(command)
        data, error = {}, ""
        match command:
            case SelfCheck():
                data, error = {"ok": self.ok, "failed": [] if self.ok else ["gemm"]}, self.error
            case HostStore():
                data = {"port": 4242}
            case PairCheck():
                store = command.store_address.removeprefix("at-")
                failed = {*command.members, store} & set(self.deaf)
                data = {"ok": not failed, "seconds": 0.1, "error": "timeout" if failed else ""}
        return Reply(id=command.id, node=self.name, error=error, data=data)


def check(*nodes, thorough=False):
    return asyncio.run(checks.run(nodes, Policy(), itertools.count(1).__next__, thorough=thorough))


def test_a_node_that_fails_or_does_not_answer_its_self_check_is_named_with_the_reason():
    report = check(FakeNode("a"), FakeNode("b", ok=False), FakeNode("c", error="no answer in 8 s"))
    assert report.failed == {"b": "self-check failed: gemm", "c": "self-check: no answer in 8 s"}
    assert set(report.reports) == {"a", "b", "c"}


def test_without_doubt_no_pairs_are_checked():
    nodes = [FakeNode("a"), FakeNode("b")]
    report = check(*nodes)
    assert (report.groups, report.verdict) == ((), None)
    assert not any(isinstance(c, PairCheck) for node in nodes for c in node.commands)


def test_a_node_that_cannot_talk_to_good_ones_is_found_and_its_partners_are_not_blamed():
    nodes = [FakeNode(name, deaf=("b",)) for name in "abcd"]
    report = check(*nodes, thorough=True)
    assert set(report.failed) == {"b"}
    assert report.verdict.reason == ""


def test_a_broken_node_is_found_though_it_hosts_the_first_store():
    nodes = [FakeNode(name, deaf=("a",)) for name in "abcde"]
    assert set(check(*nodes, thorough=True).failed) == {"a"}


def test_a_link_is_told_and_fails_no_node():
    class Far(FakeNode):
        async def ask(self, command, timeout_s):
            reply = await super().ask(command, timeout_s)
            if isinstance(command, PairCheck) and {"c", "d"} <= set(command.members):
                reply = dataclasses.replace(reply, data={"ok": False, "seconds": 0.1})
            return reply

    report = check(*map(Far, "abcdef"), thorough=True)
    assert report.failed == {}
    assert report.detail()["links"][0]["nodes"] == ["c", "d"]


def test_no_round_begins_when_the_time_is_up():
    now_s = itertools.count(0, 4).__next__  # four seconds pass between two looks at the clock
    nodes = [FakeNode(name, deaf=("b",)) for name in "abcd"]
    rounds = checks._Rounds(nodes, Policy(), itertools.count(1).__next__, now_s)
    verdict = asyncio.run(rounds.run())
    assert {r.round for r in rounds.results} == {0}
    assert (verdict.faulty, verdict.undecided) == ({}, ("a", "b"))
    assert "never passed" in verdict.reason


def test_a_node_that_failed_alone_takes_part_in_no_pair():
    nodes = [FakeNode("a"), FakeNode("b", ok=False), FakeNode("c")]
    report = check(*nodes, thorough=True)
    assert report.groups
    assert not any("b" in group.members for group in report.groups)


def test_a_node_that_cannot_host_the_store_fails():
    class Deaf(FakeNode):
        async def ask(self, command, timeout_s):
            reply = await super().ask(command, timeout_s)
            error = "no answer" if isinstance(command, HostStore) else ""
            return dataclasses.replace(reply, error=error)

    report = check(Deaf("a"), FakeNode("b"), thorough=True)
    assert report.failed == {"a": "pairwise store: no answer"}


def test_the_report_is_the_detail_of_an_event():
    detail = check(FakeNode("a"), FakeNode("b"), thorough=True).detail()
    assert set(detail) == {"failed", "reports", "pairs", "links", "inconclusive", "slow"}
    assert detail["pairs"][0]["members"] == ["a", "b"]
