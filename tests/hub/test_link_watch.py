"""Findings on links that were named: open until something says that they are over."""

import asyncio

import pytest

from pulsetrain.diagnostics.link_search import Culprit, SearchVerdict
from pulsetrain.hub.link_watch import SOURCE, LinkWatch
from pulsetrain.recovery.link_checks import LinkReport
from pulsetrain.recovery.link_suspicion import LinkOutcome
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.hub.fakes import FakeJob, Sink
from tests.recovery.builders import S, hello, node_snapshot

PORT = Culprit(kind="port", name="b/net", node="b", reason="out: 40% of the usual rate")
DEAD = Culprit(kind="node", name="b", node="b", reason="in: timed out", broken=True)
UPLINK = Culprit(kind="switch", name="s0", node="", reason="uplink: 50% of the usual rate")
PATH = Culprit(kind="path", name="a/net to b/net", node="", reason="50% of the usual rate")


def outcome(*culprits, at_ns=990 * S):
    verdict = SearchVerdict(culprits=culprits, rounds=3, transfers=9)
    return LinkOutcome(report=LinkReport(verdict=verdict), at_ns=at_ns, actor="ann")


@pytest.fixture
def site():
    class Site:
        sink, job = Sink(), FakeJob()

        def __init__(self):
            self.watch = LinkWatch({"j": self.job}, self.sink)

        def look(self, **changes):
            self.job.changes |= changes
            asyncio.run(self.watch.turn())
            return self.sink.still_open.get(("j", SOURCE), [])

    return Site()


def test_without_rounds_nothing_is_reported(site):
    assert site.look() == []
    assert site.sink.still_open == {}


@pytest.mark.parametrize(("culprit", "about", "severity", "nodes"), [
    (PORT, ("link", "b/net"), "warning", ["b"]),
    (DEAD, ("node", "b"), "critical", ["b"]),
    (UPLINK, ("link", "switch/s0"), "warning", ["a"]),
    (PATH, ("link", "a/net to b/net"), "warning", ["a", "b"]),
])  # fmt: skip
def test_what_was_named_is_a_finding_with_its_reason_and_nodes(site, culprit, about, severity, nodes):
    members = (node_snapshot("a", hello=hello("a", switch="s0")), node_snapshot("b"))
    (finding,) = site.look(links=outcome(culprit), nodes=members)
    assert (finding.kind, finding.subject_type, finding.subject) == ("bad_link", *about)
    assert (finding.severity, finding.evidence["nodes"]) == (severity, nodes)
    assert culprit.reason in finding.summary


def test_it_is_new_once_and_stays_open_over_a_restart_of_the_job(site):
    site.look(links=outcome(PORT))
    for _ in range(20):
        site.look()
    assert len(site.sink.new) == 1
    assert [f.attempt for f in site.look(attempt=1)] == [1]


def test_it_ends_with_rounds_that_find_the_link_good(site):
    site.look(links=outcome(PORT))
    assert site.look(links=outcome(at_ns=995 * S)) == []


def test_it_ends_when_its_node_is_gone_or_the_job_is_over(site):
    site.look(links=outcome(PORT, UPLINK))
    gone = (node_snapshot("a"), node_snapshot("b", state=NodeState.EVICTED))
    assert [f.subject for f in site.look(nodes=gone)] == ["switch/s0"]
    assert site.look(phase=Phase.FINISHED) == []
