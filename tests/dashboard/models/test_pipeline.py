"""Gauges of agents, facts of the hub."""

import pytest

from pulsetrain.dashboard.models.pipeline import gauge_text, hub_facts


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
