"""The worst hours of a simulated pool, as the benchmark prints them."""

from __future__ import annotations

from moving.shares import shares


def test_the_quick_run_has_the_fields_and_keeps_the_guarantees():
    found = shares(quick=True)
    assert found.keys() == {"premium_share", "standard_share"}
    assert 0.95 <= found["premium_share"] <= 1.0
    assert 0.70 <= found["standard_share"] <= 1.0
