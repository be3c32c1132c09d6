"""Rounds over links: who is asked, what is named, and what a silent node means."""

import asyncio
import itertools

import pytest

from pulsetrain.protocol.messages import LinkSend, LinkSink, Reply
from pulsetrain.recovery import link_checks
from pulsetrain.recovery.link_checks import LinkOptions
from tests.recovery import virtual_time
from tests.recovery.builders import hello


class FakeNode:
    """A node of a fleet. `factors` has the share of the usual rate by (sender, receiver), "" for all."""

    def __init__(
        self,
        name,
        factors=(),
        *,
        error="",
        switch="",
        memory_port=0,
        rdma=(),
        refuses="",
        speed=0.0,
        own=8e9,
        machine="",
        others=(),
        rails=None,
    ):
        """`rdma` has its RDMA ports. It `refuses` to send by RDMA with this error.

        `rails` are addresses of other interfaces, "at-NAME-RAIL" if only names are given.
        Its ports have negotiated `speed`, and a stream to itself reaches `own`.
        """
        self.memory_port, self.rdma, self.refuses = memory_port, rdma, refuses
        self.speed, self.own, self.machine, self.others = speed, own, machine, list(others)
        made = rails if isinstance(rails, dict) else {rail: f"at-{name}-{rail}" for rail in rails or ()}
        self.rails = {rail: {"address": at, "port": 4242} for rail, at in made.items()}
        self.others += self.rails
        self.name, self.error, self.factors = name, error, dict(factors)
        self.hello = hello(name, address=f"at-{name}", switch=switch)
        self.commands = []

    async def ask(self, command, timeout_s):
        self.commands.append(command)
        if self.error:
            return Reply(id=command.id, node=self.name, error=self.error)
        if isinstance(command, LinkSink):
            ports = {"1": self.memory_port} if self.memory_port else {}
            data = {"port": 4242 if command.seconds else 0, "memory_ports": ports}
            data |= {"speed_bits_per_s": self.speed} if self.speed else {}
            data |= {"machine": self.machine} if self.machine else {}
            data |= {"others": self.others} if self.others else {}
            data |= {"rails": self.rails} if self.rails else {}
            if self.rdma:
                port = {"active": True, "memories": ["1"], "speed_bits_per_s": self.speed}
                data["rdma"] = {"port": 4242, "ports": dict.fromkeys(self.rdma, port), "why_not": ""}
            return Reply(id=command.id, node=self.name, data=data)
        if command.rdma_port and self.refuses:
            return Reply(id=command.id, node=self.name, error=self.refuses)
        to = command.address.removeprefix("at-")
        if to == self.name:
            return Reply(id=command.id, node=self.name, data={"bits_per_s": self.own, "error": ""})
        to = f"{to}:{command.port}" if command.port != 4242 else to
        to += f"@{command.rdma_port}{command.memory}" if command.rdma_port else ""
        factor = self.factors.get((self.name, command.rail or "")) or self.factors.get(("", to)) or 1.0
        if ("", f"{to}?") in self.factors:
            return Reply(id=command.id, node=self.name, data={"unmeasured": "no right to lock memory"})
        if factor < 0:
            return Reply(id=command.id, node=self.name, data={"bits_per_s": 0.0, "error": "timed out"})
        return Reply(id=command.id, node=self.name, data={"bits_per_s": 1e9 * factor, "error": ""})

    def sent(self, kind):
        return [c for c in self.commands if isinstance(c, kind)]


def measure(*nodes, now_s=None, **options):
    now_s = now_s or itertools.count(0, 0.01).__next__
    made = LinkOptions(**options)
    return asyncio.run(link_checks.run(nodes, itertools.count(1).__next__, made, now_s=now_s))


def named(report):
    return [(c.kind, c.name) for c in report.verdict.culprits]


def test_a_slow_node_is_named_with_both_directions():
    slow = {("c", ""): 0.4, ("", "c"): 0.4}
    report = measure(*(FakeNode(name, slow) for name in "abcdef"))
    assert named(report) == [("node", "c")]
    assert report.verdict.culprits[0].reason == "in: 40% of the usual rate; out: 40% of the usual rate"
    assert report.detail()["state"] == "found"
    assert report.nodes == list("abcdef")


def test_a_slower_port_beside_faster_ones_is_good_as_long_as_it_reaches_its_own_rate():
    for share, expected in ((0.24, []), (0.1, [("node", "c")])):
        slow = {("c", ""): share, ("", f"c@{RDMA[0]}"): share, ("", f"c@{RDMA[0]}1"): share}
        nodes = [FakeNode(n, slow, rdma=RDMA[:1], speed=2.5e8 if n == "c" else 1e9) for n in "abcdefgh"]
        assert named(measure(*nodes)) == expected


@pytest.mark.parametrize(
    ("other", "expected"), [("old", []), ("new", [("node", "c")]), ("", [("node", "c")])]
)
def test_a_machine_of_another_kind_that_takes_less_is_no_bad_link(other, expected):
    slow = {("c", ""): 0.6, ("", "c"): 0.6}
    report = measure(*(FakeNode(n, slow, machine=other if n == "c" else "new") for n in "abcdefgh"))
    assert named(report) == expected


def test_ports_that_are_all_far_below_their_own_rate_are_told():
    report = measure(*(FakeNode(name, speed=1e10) for name in "abcd"))
    assert named(report) == [("port", f"{name}/net") for name in "abcd"]
    assert {c.reason for c in report.verdict.culprits} == {
        "in: 25% of its own 4 Gbit/s; out: 25% of its own 4 Gbit/s"
    }
    assert all(c.own_rate for c in report.verdict.culprits)


@pytest.mark.parametrize(("speed", "own", "limit"), [(0.0, 8e9, 0.0), (1e10, 3.9e9, 0.0), (1e10, 8e9, 1.5e9)])
def test_a_port_promises_no_more_than_half_a_stream_in_its_machine_and_than_was_asked(speed, own, limit):
    nodes = [FakeNode(name, speed=speed, own=own) for name in "abcd"]
    assert named(measure(*nodes, bits_per_s=limit)) == []


def test_by_rdma_a_port_promises_its_own_rate_whatever_a_stream_reaches():
    report = measure(*(FakeNode(name, rdma=("mlx5_0/1",), speed=4e11, own=0.0) for name in "abcd"))
    assert named(report) == [("port", f"{name}/mlx5_0/1") for name in "abcd"]
    assert report.verdict.culprits[0].reason.startswith("in: 0% of its own 400 Gbit/s")
    assert named(measure(*(FakeNode(name, rdma=("mlx5_0/1",), speed=1.1e9) for name in "abcd"))) == []


def test_where_a_machine_cannot_send_to_itself_its_port_has_no_rate():
    assert named(measure(*(FakeNode(name, speed=1e10, own=0.0) for name in "abcd"))) == []


def test_a_port_that_is_slow_in_one_direction_is_named_as_a_port():
    report = measure(*(FakeNode(name, {("b", ""): 0.5}) for name in "abcde"))
    assert named(report) == [("port", "b/net")]


def test_what_nothing_gets_through_is_broken():
    report = measure(*(FakeNode(name, {("", "b"): -1, ("b", ""): -1}) for name in "abcde"))
    assert named(report) == [("node", "b")]
    assert report.verdict.culprits[0].broken


def test_a_port_that_is_slow_towards_its_other_memory_is_named_with_it():
    slow = {("", "c:77"): 0.5}
    report = measure(*(FakeNode(name, slow, memory_port=77) for name in "abcdef"))
    assert named(report) == [("memory", "c/net to memory 1")]
    assert report.verdict.culprits[0].node == "c"


RDMA = ("mlx5_0/1", "mlx5_1/1")


def test_where_all_nodes_have_the_same_rdma_ports_these_are_measured_and_named():
    slow = {("", "c@mlx5_1/1"): 0.4, ("", "c@mlx5_1/11"): 0.4}
    nodes = [FakeNode(name, slow, rdma=RDMA) for name in "abcdef"]
    report = measure(*nodes)
    assert named(report) == [("port", "c/mlx5_1/1")]
    assert report.verdict.culprits[0].node == "c"
    assert {c.rdma_port for n in nodes for c in n.sent(LinkSend)} == set(RDMA)
    detail = report.detail()
    assert (detail["transport"], detail["rdma_ports"], detail["why_tcp"]) == ("rdma", list(RDMA), "")


def test_an_rdma_port_that_is_slow_towards_its_other_memory_is_named_with_it():
    slow = {("", "c@mlx5_0/11"): 0.5}
    report = measure(*(FakeNode(name, slow, rdma=RDMA[:1]) for name in "abcdef"))
    assert named(report) == [("memory", "c/mlx5_0/1 to memory 1")]


def test_one_node_without_rdma_and_all_are_measured_over_tcp():
    nodes = [FakeNode(name, rdma=() if name == "b" else RDMA) for name in "abcde"]
    report = measure(*nodes)
    assert {c.rdma_port for n in nodes for c in n.sent(LinkSend)} == {""}
    assert report.detail()["transport"] == "tcp"
    assert report.detail()["why_tcp"] == "b: its agent knows no RDMA"


@pytest.mark.parametrize(("rdma", "unmeasured"), [((), ["eth1", "eth2"]), (RDMA, [])])
def test_over_tcp_the_ports_that_are_not_measured_are_named(rdma, unmeasured):
    others = {"a": ["eth1"], "b": ["eth2", "eth1"]}
    report = measure(*(FakeNode(name, rdma=rdma, others=others.get(name, ())) for name in "abcde"))
    assert report.detail()["unmeasured"] == unmeasured


RAILS = ("eth1", "eth2")


def test_over_tcp_other_interfaces_are_measured_too_and_a_slow_one_is_named():
    slow = {("c", "eth2"): 0.4, ("", "c-eth2"): 0.4}
    nodes = [FakeNode(name, slow, rails=RAILS) for name in "abcdef"]
    report = measure(*nodes)
    (culprit,) = report.verdict.culprits
    assert (culprit.kind, culprit.name, culprit.node, culprit.evicts) == ("port", "c/eth2", "c", False)
    detail = report.detail()
    assert (detail["rails"], detail["unmeasured"]) == ({"eth1": "", "eth2": ""}, [])
    sent = [c for node in nodes for c in node.sent(LinkSend) if c.rail]
    assert {(c.rail, c.address.rpartition("-")[2]) for c in sent} == {(rail, rail) for rail in RAILS}


def test_an_interface_that_does_not_join_the_nodes_is_told_as_unmeasured_and_named_nowhere():
    cannot = {("", f"{name}-eth2?"): 1.0 for name in "abcdef"}
    report = measure(*(FakeNode(name, cannot, rails=RAILS) for name in "abcdef"))
    assert (named(report), report.silent, report.detail()["state"]) == ([], {}, "healthy")
    assert (report.rails, report.unmeasured) == ({"eth1": ""}, ["eth2"])


def test_a_node_whose_other_interface_reaches_nobody_is_no_bad_link():
    cannot = {("", "c-eth1?"): 1.0}
    report = measure(*(FakeNode(name, cannot, rails=RAILS[:1]) for name in "abcdef"))
    assert (named(report), report.silent) == ([], {})


def test_an_agents_own_port_that_is_slow_is_named_beside_good_other_interfaces():
    slow = {("c", ""): 0.4, ("", "c"): 0.4}
    report = measure(*(FakeNode(name, slow, rails=RAILS) for name in "abcdef"))
    assert named(report) == [("node", "c")]
    assert report.verdict.culprits[0].evicts


@pytest.mark.parametrize(
    "rails",
    [
        [{"eth1": "10.0.0.1"}] * 4,  # of one machine, or of containers that all look alike
        [{"eth1": "10.0.0.1"}, {"eth1": "10.0.0.2"}, {}, {}],
        [{"eth1": "10.0.0.1"}, {"eth2": "10.0.0.2"}, {"eth3": "10.0.0.3"}, {"eth4": "10.0.0.4"}],
    ],
)
def test_interfaces_that_three_nodes_do_not_have_by_one_name_are_not_measured(rails):
    nodes = [FakeNode(name, rails=own) for name, own in zip("abcd", rails, strict=True)]
    report = measure(*nodes)
    assert report.rails == {}
    assert report.unmeasured == sorted({name for own in rails for name in own})
    assert not [c for node in nodes for c in node.sent(LinkSend) if c.rail]


def test_other_interfaces_of_nodes_with_rdma_are_left_alone():
    nodes = [FakeNode(name, rdma=RDMA, rails=RAILS) for name in "abcd"]
    assert measure(*nodes).rails == {}
    assert not [c for node in nodes for c in node.sent(LinkSend) if c.rail]


def test_a_receiver_that_cannot_take_part_in_rdma_is_told_and_blames_nobody():
    cannot = {("", f"b@{RDMA[0]}{memory}?"): 1.0 for memory in ("", "1")}
    report = measure(*(FakeNode(name, cannot, rdma=RDMA[:1]) for name in "abcdefg"))
    assert (named(report), report.silent) == ([], {"b": "no right to lock memory"})
    assert report.transport.rails == RDMA[:1]


def test_where_nobody_can_use_rdma_after_all_tcp_is_used():
    nodes = [FakeNode(name, {("c", ""): 0.4}, rdma=RDMA, refuses="no memory") for name in "abcdef"]
    report = measure(*nodes)
    assert named(report) == [("port", "c/net")]
    assert (report.transport.rails, report.silent) == ((), {})
    assert report.transport.why_tcp.startswith("a: no memory (and ")


def test_links_without_trouble_name_nobody():
    report = measure(*(FakeNode(name, switch="s" + name) for name in "abcdef"))
    assert (named(report), report.detail()["state"]) == ([], "healthy")


def test_a_node_that_does_not_answer_is_told_and_blames_nobody():
    nodes = [FakeNode(name, error="no answer in 8 s" if name == "d" else "") for name in "abcde"]
    report = measure(*nodes)
    assert named(report) == []
    assert report.silent == {"d": "no answer in 8 s"}
    assert not nodes[3].sent(LinkSend)
    assert len(nodes[3].sent(LinkSink)) == 1  # the job does not wait for it once more at the end


def test_with_two_nodes_that_answer_nothing_is_said():
    nodes = [FakeNode("a"), FakeNode("b"), FakeNode("c", error="not connected")]
    report = measure(*nodes)
    assert report.verdict.reason == "only 2 nodes take part; 3 are needed"
    assert not nodes[0].sent(LinkSend)


def test_the_sinks_end_also_where_the_time_is_up_before_the_first_round():
    nodes = [FakeNode(name) for name in "abcd"]
    report = measure(*nodes, now_s=itertools.count(0, 50.0).__next__)
    assert report.verdict.reason == "no transfer was measured"
    assert [bool(c.seconds) for c in nodes[0].sent(LinkSink)] == [True, False]


class Tardy(FakeNode):
    """A transfer takes it so long. It does not say that its sink has ended."""

    takes_s = 5.5

    async def ask(self, command, timeout_s):
        late = isinstance(command, LinkSink) and not command.seconds
        await asyncio.sleep(timeout_s if late else self.takes_s * isinstance(command, LinkSend))
        return await super().ask(command, timeout_s)


def test_a_job_waits_no_longer_than_the_limit_also_for_a_round_that_is_under_way():
    nodes, ids = [Tardy(name, {("c", ""): 0.4}) for name in "abcdef"], itertools.count(1).__next__
    options = LinkOptions(limit_s=20.0)
    report = virtual_time.run(lambda now_s: link_checks.run(nodes, ids, options, now_s=now_s))
    assert 19.0 < report.seconds <= 20.0 + link_checks.CLOSE_S
    assert (report.verdict.rounds, report.silent) == (3, {})


def test_the_limit_on_traffic_goes_with_every_transfer():
    nodes = [FakeNode(name) for name in "abc"]
    measure(*nodes, bits_per_s=1e8, seconds=0.3)
    assert {(c.bits_per_s, c.seconds) for n in nodes for c in n.sent(LinkSend)} == {(1e8, 0.3)}


@pytest.mark.parametrize(
    ("options", "words"), [({"seconds": 0.0}, "seconds = 0"), ({"bits_per_s": -1.0}, "bits_per_s = -1")]
)
def test_what_cannot_be_measured_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        LinkOptions(**options)
