"""What the page Pool shows of the hub's pool."""

from __future__ import annotations

import pytest

from pulsetrain.dashboard.models import pool as model


def row(job="gpt", tier="premium", **changes):
    return {
        "job": job, "tier": tier, "promised": True, "devices": 4, "most_devices": 8, "hour_share": 0.97,
        "why_waits": "", **changes,
    }  # fmt: skip


def one(live=(), **changes):
    (job,) = model.pool_jobs({"jobs": [row(**changes)]}, live)
    return job


def test_the_best_tier_comes_first():
    pool = {"jobs": [row("b", "basic"), row("s", "standard"), row("z"), row("a"), row("x", "new")]}
    assert [job.job for job in model.pool_jobs(pool, [])] == ["a", "z", "s", "b", "x"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "97.0%"),
        ({"hour_share": 0.949}, "94.9% ▲ below 95%"),
        ({"hour_share": 0.949, "promised": False}, "94.9%"),
        ({"hour_share": 0.69, "tier": "standard"}, "69.0% ▲ below 70%"),
        ({"hour_share": 0.0, "tier": "basic"}, "0.0%"),
        ({"hour_share": None}, "-"),
    ],
)
def test_a_share_below_the_guarantee_is_marked(changes, text):
    assert model.share_text(one(**changes)) == text


def test_nodes_are_those_that_hold_ranks():
    nodes = [{"node": "b", "ranks": [2]}, {"node": "a", "ranks": [0, 1]}, {"node": "c", "ranks": []}]
    live = [{"job": "gpt", "state": "running", "nodes": nodes}]
    assert one(live).nodes == ("a", "b")
    assert one(live, devices=0).nodes == ()


def test_a_move_under_way_comes_before_what_is_waited_for():
    move = {"what": "preempt", "node": "", "actor": "pool", "reason": "room for a", "newer_than": 41}
    live = [{"job": "gpt", "state": "running", "nodes": [], "move": move}]
    assert one(live, why_waits="no device is free").doing.startswith("pool pre-empts it: room for a.")
    assert one(why_waits="no device is free").doing == "waits: no device is free"
    assert one().doing == ""


def test_an_action_that_gives_up_everything_says_nothing_is_left():
    assert model.change_text({"from": {"b": 1, "a": 2}, "to": {}}) == "a 2, b 1 → nothing"


def test_an_action_that_is_not_known_keeps_its_name():
    assert [model.action_text({"what": what}) for what in ("preempt", "lend")] == ["pre-empt", "lend"]
