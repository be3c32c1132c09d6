"""Findings on links that rounds named."""

import pytest

from pulsetrain.diagnostics.link_search import Culprit, SearchVerdict
from pulsetrain.hub.link_findings import found
from pulsetrain.recovery.link_checks import LinkReport
from pulsetrain.recovery.link_suspicion import LinkOutcome
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.recovery.builders import S, hello, job_snapshot, node_snapshot

PORT = Culprit(kind="port", name="b/net", node="b", reason="out: 40% of the usual rate")
DEAD = Culprit(kind="node", name="b", node="b", reason="in: timed out", broken=True)
UPLINK = Culprit(kind="switch", name="s0", node="", reason="uplink: 50% of the usual rate")
PATH = Culprit(kind="path", name="a/net to b/net", node="", reason="50% of the usual rate")


def outcome(*culprits, at_ns=990 * S):
    verdict = SearchVerdict(culprits=culprits, rounds=3, transfers=9)
    return LinkOutcome(report=LinkReport(verdict=verdict), at_ns=at_ns, actor="ann")


def job(*culprits, **changes):
    return job_snapshot(links=outcome(*culprits), **changes)


def test_without_rounds_nothing_is_found():
    assert found(job_snapshot()) == []


@pytest.mark.parametrize(("culprit", "about", "severity", "nodes"), [
    (PORT, ("link", "b/net"), "warning", ["b"]),
    (DEAD, ("node", "b"), "critical", ["b"]),
    (UPLINK, ("link", "switch/s0"), "warning", ["a"]),
    (PATH, ("link", "a/net to b/net"), "warning", ["a", "b"]),
])  # fmt: skip
def test_what_was_named_is_a_finding_with_its_reason_and_nodes(culprit, about, severity, nodes):
    members = (node_snapshot("a", hello=hello("a", switch="s0")), node_snapshot("b"))
    (finding,) = found(job(culprit, nodes=members))
    assert (finding.kind, finding.subject_type, finding.subject) == ("bad_link", *about)
    assert (finding.severity, finding.evidence["nodes"]) == (severity, nodes)
    assert culprit.reason in finding.summary


def test_nothing_is_found_of_a_node_that_is_gone_or_a_job_that_is_over():
    gone = (node_snapshot("a"), node_snapshot("b", state=NodeState.EVICTED))
    assert [f.subject for f in found(job(PORT, UPLINK, nodes=gone))] == ["switch/s0"]
    assert found(job(PORT, phase=Phase.FINISHED)) == []
