"""What samples of GPUs say, on samples made here."""

from __future__ import annotations

import random

from pulsetrain.analytics.machines.gpu_health import find
from pulsetrain.analytics.verdict import Healthy, Inconclusive
from tests.analytics.machines.gpu_rows import SPINNING, reported, rows, table


def test_a_sound_gpu_has_no_finding():
    (verdict,) = find(table(rows("GPU-1"), rows("GPU-2")), now_ns=1)
    assert isinstance(verdict, Healthy)


def test_no_sample_is_blind_and_little_is_quiet():
    (verdict,) = find(table(), now_ns=1)
    assert isinstance(verdict, Inconclusive)
    assert verdict.blind
    assert reported(rows("GPU-1", samples=1, gpu_clock_event_reasons=8.0)) == set()
    assert reported(rows("GPU-1", gpu_power_watts=float("nan"))) == set()


def test_order_and_copies_of_rows_change_nothing_and_renaming_renames():
    mixed = rows("GPU-1") + rows("GPU-2", gpu_remapped_rows_failed=1.0)
    straight = find(table(mixed), now_ns=1)
    random.Random(3).shuffle(mixed)
    assert find(table(mixed, mixed[:20]), now_ns=1) == straight
    assert reported(rows("GPU-9", node="b", gpu_remapped_rows_failed=1.0)) == {
        ("gpu_fault", "b/GPU-9", "critical")
    }


def test_one_gpu_with_several_faults_has_a_finding_for_each():
    changes = SPINNING | {"gpu_remapped_rows_failed": 1.0, "gpu_pcie_width": 8.0}
    kinds = {kind for kind, _, _ in reported(rows("GPU-1"), rows("GPU-2", **changes))}
    assert kinds == {"gpu_hang", "gpu_fault", "pcie_degraded"}
