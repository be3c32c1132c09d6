"""The page Nodes."""

import pytest

from pulsetrain.core.errors import UsageError

PLAN = {
    "node": "node-1", "job": "gpt", "ranks": [2, 3], "standby": "node-5", "resume_step": 9, "lost_steps": 1,
    "expected_s": 3.8, "allowed": True, "why_not": "", "attempt": 4, "state": "active",
}  # fmt: skip


def node(name, state="active", ranks=(0, 1)):
    return {
        "node": name, "job": "gpt", "state": state, "node_rank": 0, "ranks": list(ranks),
        "address": "10.0.0.1", "last_heartbeat_age_s": 0.4, "reason": "<why>",
    }  # fmt: skip


@pytest.fixture
def nodes(source):
    source.answers["nodes"] = [node("node-10"), node("node-1"), node("node-2", "lost", ())]
    source.client.plan = PLAN
    return source


def test_the_most_urgent_node_comes_first(draw, nodes):
    rows = draw("nodes").rows()
    assert [row[0] for row in rows] == ["node-2", "node-1", "node-10"]
    assert rows[0][3:] == ["-", "10.0.0.1", "0.4 s ago", "<why>"]


def test_a_node_is_slow_for_a_reason(draw, nodes):
    found = {
        "severity": "warning", "kind": "straggler", "subject_type": "rank", "subject": "7", "evidence": "{}",
        "summary": "Rank 7 computes slower.", "confidence": 0.9,
    }  # fmt: skip
    nodes.answers["status"]["jobs"][0]["findings"] = [found]
    nodes.answers["nodes"] = [
        {**node("node-1", ranks=(6, 7)), "reason": ""},
        {**node("node-2"), "reason": ""},
    ]
    assert [(row[0], row[-1]) for row in draw("nodes").rows()] == [
        ("node-1", "Rank 7 computes slower."),
        ("node-2", "-"),
    ]


def test_find_keeps_what_matches(draw, nodes):
    assert [row[0] for row in draw("nodes", find="node-10").rows()] == ["node-10"]
    assert "No node matches." in draw("nodes", find="nosuch").text


def test_nothing_is_evicted_before_its_cost_was_shown_and_a_reason_given(draw, nodes):
    shown = draw("nodes", node="node-1").click("dry_run")
    assert nodes.client.done == [("evict", "node-1", "gpt", "dry run from the dashboard", True)]
    assert "Its place goes to node-5." in shown.text
    assert shown.app.button(key="evict").label == "Evict node-1 of gpt"
    shown.click("evict")
    assert len(nodes.client.done) == 1
    shown.app.text_input(key="reason").set_value("fan failed")
    shown.click("evict")
    assert nodes.client.done[1] == ("evict", "node-1", "gpt", "fan failed", False)
    assert nodes.client.seen == {"attempt": 4, "state": "active"}
    assert "node-1 was evicted: fan failed" in shown.app.success[0].value


def test_the_cost_for_another_job_cannot_be_confirmed(draw, nodes):
    nodes.client.plan = PLAN | {"job": "other"}
    shown = draw("nodes", node="node-1").click("dry_run")
    assert "evict" not in [button.key for button in shown.app.button]


def test_a_refusal_is_shown_and_cannot_be_confirmed(draw, nodes):
    nodes.client.refusal = UsageError("no such node")
    shown = draw("nodes", node="node-1").click("dry_run")
    assert "The hub refuses: no such node." in shown.text
    assert shown.app.button(key="evict").disabled


def test_a_hub_without_agents(draw):
    assert "No data: no agent has connected" in draw("nodes").text
