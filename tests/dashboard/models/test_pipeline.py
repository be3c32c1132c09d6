"""Gauges of agents, facts of the hub."""

import pytest

from pulsetrain.dashboard.models.pipeline import gauge_text, hub_facts, ordered_loops


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("spool_bytes", 2048, "2.00 KiB"),
        ("cpu_ratio", 0.021, "2.1 %"),
        ("lag_s", 1.5, "1.50 s"),
        ("dropped_rows", 12_345.0, "12,345"),
        ("load", 0.5, "0.5"),
        ("dropped_rows", None, "-"),
    ],
)
def test_gauges_have_units(name, value, text):
    assert gauge_text(name, value) == text


def test_the_hub_counts_failures_also_when_there_are_none():
    assert hub_facts({"watch_failures": 0}, 5)["failed analyses"] == "0"
    assert hub_facts({}, 5)["failed analyses"] == "-"


def loop(name, node="", *, stale=False, failures=0):
    process = "agent" if node else "hub"
    return {"process": process, "node": node, "loop": name, "stale": stale, "failures_in_a_row": failures}


def test_loops_that_are_late_or_fail_come_first():
    rows = [
        loop("b"),
        loop("a", "node-10"),
        loop("a", "node-2"),
        loop("late", "n", stale=True),
        loop("bad", failures=2),
    ]
    names = [(row["node"], row["loop"]) for row in ordered_loops(rows)]
    assert names == [("n", "late"), ("", "bad"), ("", "b"), ("node-2", "a"), ("node-10", "a")]
