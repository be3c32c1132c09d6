"""What the controller waits for with trouble of machines."""

import json

import pytest

from pulsetrain.dashboard.models.answer import CONTROLLER_KINDS, answer
from pulsetrain.dashboard.models.waits import waits

S = 10**9
NOW = 100_000 * S
NO_STANDBY = "no standby: the node trains on"
CHECKPOINT = "it waits for a checkpoint that holds without the node"


def finding(node="n3", response="evict_at_step", **more):
    evidence = json.dumps({"node": node, "response": response})
    return {
        "kind": "gpu_fault", "subject_type": "gpu", "subject": f"{node}/GPU-1", "severity": "critical",
        "confidence": 0.9, "summary": f"{node}/GPU-1: Xid 48", "evidence": evidence, **more,
    }  # fmt: skip


def job(*findings, state="active", **more):
    nodes = [{"node": "n3", "state": state}, {"node": "n4", "state": "active"}]
    return {
        "job": "gpt", "state": "running", "attempt": 2, "findings": list(findings), "nodes": nodes, **more,
    }  # fmt: skip


def event(kind, age_s=20, *, node="", attempt=2, actor="controller", **detail):
    return {
        "kind": kind, "ts_ns": NOW - age_s * S, "node": node, "rank": -1, "attempt": attempt, "actor": actor,
        "detail": json.dumps(detail),
    }  # fmt: skip


def deferred(why_not=NO_STANDBY, **more):
    return event("eviction_deferred", node="n3", why_not=why_not, **more)


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (deferred(), "It waits for a standby before it evicts n3. The node trains on. n3/GPU-1: Xid 48."),
        (
            deferred(CHECKPOINT),
            "It waits for a checkpoint that holds without n3, then it evicts it. n3/GPU-1: Xid 48.",
        ),
        (deferred("of the moon"), "It waits before it evicts n3: of the moon. n3/GPU-1: Xid 48."),
        (
            event("eviction_refused", node="n3", why_not="3 evictions in an hour"),
            "It does not evict n3: 3 evictions in an hour. n3/GPU-1: Xid 48.",
        ),
    ],
)
def test_while_an_eviction_is_held_back_it_is_said_however_old_the_event_is(held, says):
    held["ts_ns"] = NOW - 7200 * S
    assert waits(job(finding()), [event("cordon", node="n3"), held], NOW) == [says]


@pytest.mark.parametrize(
    ("now", "held"),
    [
        (job(), deferred()),
        (job(finding(response="cordon")), deferred()),
        (job(finding(), state="evicted"), deferred()),
        (job(finding()), deferred(attempt=1)),
        (job(finding("n4")), deferred()),
        (job(finding(evidence="{")), deferred()),
        (job(finding(evidence=None)), deferred()),
    ],
)
def test_what_is_over_is_not_waited_for(now, held):
    assert waits(now, [held], NOW) == []


def test_the_newest_reason_counts():
    assert "checkpoint" in waits(job(finding()), [deferred(CHECKPOINT), deferred(age_s=90)], NOW)[0]


def test_checks_that_wait_for_a_stop_are_said_until_they_were_done():
    links = event(
        "links_suspected", nodes=["b", "c"], reason="slow group", checked="at the next stop of the job"
    )
    nan = event(
        "arithmetic_suspected", nodes=[], reason="a NaN", checked="at the next stop or end of the job"
    )
    assert waits(job(), [links, nan], NOW) == [
        "It measures the links of b, c at the next stop of the job: slow group.",
        "It checks the arithmetic of all nodes at the next stop or end of the job: a NaN.",
    ]
    asked_for = event("link_check", actor="ann")
    assert len(waits(job(), [asked_for, event("link_check_skipped"), links], NOW)) == 1
    assert waits(job(), [event("link_check"), links], NOW) == []
    assert waits(job(), [event("arithmetic_check"), nan], NOW) == []
    assert waits(job(), [{**links, "ts_ns": NOW - 3700 * S}], NOW) == []


def test_overview_does_not_say_that_nothing_needs_to_be_done():
    said = answer(job(finding()), [], [deferred()], observe_only=False, now_ns=NOW).controller
    assert said.startswith("It waits for a standby before it evicts n3.")
    assert {"eviction_deferred", "cordon", "links_suspected", "arithmetic_suspected"} <= {*CONTROLLER_KINDS}
