"""Nodes, and what evicting one would cost."""

import pytest

from pulsetrain.dashboard.models.nodes import (
    can_be_evicted,
    heartbeat_age_text,
    ordered_nodes,
    past_nodes,
    plan,
)


def test_nodes_in_trouble_come_first_then_by_number():
    nodes = [
        {"node": name, "state": state, "job": job}
        for name, state, job in (
            ("n10", "active", "j"), ("n2", "active", "j"), ("n3", "lost", "j"), ("s", "standby", ""),
            ("x", "active", "k"),
        )
    ]  # fmt: skip
    assert [n["node"] for n in ordered_nodes(nodes, job="j")] == ["n3", "s", "n2", "n10"]
    assert [n["node"] for n in ordered_nodes(nodes, job="", find="N1")] == ["n10"]
    assert [n["node"] for n in nodes if can_be_evicted(n)] == ["n10", "n2", "s", "x"]


ANSWER = {
    "node": "n3", "job": "gpt", "ranks": [6, 7], "standby": "n5", "resume_step": 119, "lost_steps": 1,
    "expected_s": 3.8, "allowed": True, "why_not": "",
}  # fmt: skip


def test_a_plan_says_what_it_costs():
    answer = plan(ANSWER)
    assert answer.allowed
    assert answer.sentences == (
        "n3 runs ranks 6-7 of gpt.",
        "Its place goes to n5.",
        "The job resumes from step 119; 1 step is done again.",
        "Expected pause: 3.80 s.",
    )


def test_a_plan_says_what_is_missing():
    answer = plan(
        ANSWER
        | {"standby": None, "resume_step": -1, "expected_s": None, "allowed": False, "why_not": "budget"}
    )
    text = " ".join(answer.sentences)
    assert not answer.allowed
    for words in ("No standby is free", "start from its first step", "The hub refuses: budget."):
        assert words in text


@pytest.mark.parametrize(
    "why_not",
    ["no standby: the job would go on with 3 node(s)", "no standby: the job would wait for a node"],
)
def test_without_a_standby_the_plan_says_what_the_hub_says(why_not):
    sentences = plan(ANSWER | {"standby": None, "why_not": why_not}).sentences
    assert sentences[1] == f"N{why_not[1:]}."
    assert sum("standby" in sentence for sentence in sentences) == 1


def test_evicting_a_spare_costs_nothing():
    assert plan(ANSWER | {"ranks": [], "standby": None}).sentences == (
        "n3 runs no ranks: the job does not stop.",
    )


def test_when_a_node_was_heard():
    assert (heartbeat_age_text(0.04), heartbeat_age_text(71), heartbeat_age_text(None)) == (
        "0.0 s ago",
        "1 min 11 s ago",
        "never",
    )


def test_a_job_that_does_not_run_still_has_its_nodes():
    placed = [
        {"node": "a", "address": "10.0.0.1", "ranks": [0, 1]},
        {"node": "c", "address": "", "ranks": [2]},
    ]
    rows = past_nodes("j", placed, [{"node": "b", "kind": "evict"}, {"node": "d", "kind": "node_lost"}])
    assert [(r["node"], r["state"], r["ranks"]) for r in rows] == [
        ("a", "left", [0, 1]), ("c", "left", [2]), ("b", "evicted", []), ("d", "lost", []),
    ]  # fmt: skip
    assert {r["job"] for r in rows} == {"j"}
