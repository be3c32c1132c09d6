"""The longer check of arithmetic: right answers pass, and one wrong element is found."""

import os

import pytest

from pulsetrain.diagnostics import arithmetic, selfcheck
from pulsetrain.faults import arithmetic as faults


def test_every_core_multiplies_correctly_and_keeps_its_affinity():
    before = os.sched_getaffinity(0)
    report = arithmetic.run(seconds=0.05)
    assert (report["ok"], report["wrong"]) == (True, {})
    assert report["places"] >= len(before)
    assert report["products"] >= arithmetic.LEAST_PRODUCTS * len(before)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("kind", arithmetic.LARGEST)
def test_the_answers_are_whole_numbers_that_the_format_holds(kind):
    most = {"float32": 1 << 24, "bfloat16": 256, "float16": 2048}[kind]
    _, _, known = arithmetic.operands(kind)
    assert abs(known).max() <= most
    assert arithmetic.WIDTH * arithmetic.LARGEST[kind] ** 2 <= most


def test_a_product_that_is_wrong_now_and_then_passes_the_self_check_and_is_found_here(tmp_path):
    undo = faults.damage(tmp_path / "fault")
    try:
        faults.begin(tmp_path / "fault", every=5)
        assert selfcheck.gemm_checksum().ok  # three products
        report = arithmetic.run(seconds=0.1)
    finally:
        undo()
    assert not report["ok"]
    assert sum(report["wrong"].values()) == (report["products"] + 3) // 5
    assert arithmetic.run(seconds=0.0)["ok"]
