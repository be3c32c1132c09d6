"""What a check's result means, and the operands whose product every machine must get right."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pulsetrain.diagnostics.measurement import WIDTH, Check, exact_operands


@pytest.mark.parametrize(
    ("value", "limit", "right", "ok"),
    [(2.0, 1.0, True, True), (1.0, 1.0, True, True), (0.9, 1.0, True, False), (9.0, 1.0, False, False)],
)
def test_a_check_passes_if_right_and_not_below_its_limit(value, limit, right, ok):
    check = Check(name="speed", value=value, unit="B/s", limit=limit, right=right)
    assert check.ok is ok
    assert json.loads(json.dumps(check.row()))["ok"] is ok


def test_without_a_limit_only_right_or_wrong_counts():
    assert Check(name="sum", value=0.0, unit="errors").ok
    assert not Check(name="sum", value=1.0, unit="errors", right=False).ok


def test_the_operands_are_the_same_everywhere_and_every_sum_fits_into_float32():
    a, b = exact_operands()
    again, _ = exact_operands()
    assert np.array_equal(a, again)
    assert np.abs(a).max() * np.abs(b).max() * WIDTH < 2**24  # float32 holds every integer below
