"""The timeline's lines."""

from __future__ import annotations

import json

import pytest

from pulsetrain.demo.sentences import event_line, finding_line


def line(kind, detail, node="node-a", rank=-1, attempt=2):
    row = {"kind": kind, "node": node, "rank": rank, "attempt": attempt, "detail": json.dumps(detail)}
    return event_line(row)


@pytest.mark.parametrize(
    ("kind", "detail", "says"),
    [
        ("node_joined", {"address": "127.0.0.2"}, "node-a joined from 127.0.0.2"),
        (
            "attempt_started",
            {"world": ["a", "b"], "restore_step": -1},
            "attempt 2 starts on a, b",
        ),
        (
            "attempt_started",
            {"world": ["a", "b"], "restore_step": 7, "sources": {"0": "memory", "1": "peer:b"}},
            "attempt 2 starts on a, b, after step 7 from memory and peer",
        ),
        ("rank_exit", {"code": -9}, "rank -1 on node-a ended with signal 9"),
        ("rank_exit", {"code": 3}, "rank -1 on node-a ended with status 3"),
        (
            "self_check",
            {"failed": {}, "reports": {"a": 1}, "pairs": [1]},
            "1 nodes checked, 1 pairs: all pass",
        ),
        (
            "self_check",
            {"failed": {"b": "no answer"}, "reports": {"a": 1, "b": 2}},
            "2 nodes checked: b fails (no answer)",
        ),
        (
            "self_check",
            {"links": [{"nodes": ["a", "b"]}], "inconclusive": "c never passed"},
            "0 nodes checked: link a to b fails; inconclusive (c never passed)",
        ),
        ("evict", {"reason": "fan"}, "node-a is evicted: fan"),
        ("standby_promoted", {"replaces": "node-d"}, "node-a takes the place of node-d"),
        ("recovery", {"total_ns": 5_000_000_000, "reason": "x"}, "training again 5.0 s after the fault: x"),
        ("waiting", {"missing_nodes": 1}, "waiting for 1 more nodes"),
        ("job_finished", {"reason": "job finished"}, "job finished"),
        ("spool_full", {}, ""),
    ],
)
def test_events(kind, detail, says):
    assert line(kind, detail) == says


@pytest.mark.parametrize("detail", ["", "not json", "[1]", None])
def test_a_detail_that_cannot_be_read_is_no_reason_to_stop(detail):
    assert event_line({"kind": "evict", "node": "n", "detail": detail}) == "n is evicted: "


def test_findings():
    row = {"kind": "fail_slow", "summary": "rank 3 is slow", "confidence": 0.874}
    assert finding_line(row) == "FAIL SLOW: rank 3 is slow (87% sure)"
