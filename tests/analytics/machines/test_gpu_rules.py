"""What each rule tells from the samples of a GPU, and what it leaves alone."""

from __future__ import annotations

import pytest

from pulsetrain.analytics.machines.gpu_health import find
from pulsetrain.analytics.machines.gpu_rules import limits_of
from pulsetrain.analytics.verdict import findings
from tests.analytics.machines.gpu_rows import SPINNING, reported, rows, table


@pytest.mark.parametrize(
    ("bits", "severity"), [(0x8, "critical"), (0x40, "critical"), (0x80, "critical"), (0x20, "warning")]
)
def test_a_throttled_gpu_is_named(bits, severity):
    assert reported(rows("GPU-1"), rows("GPU-2", gpu_clock_event_reasons=float(bits))) == {
        ("throttle", "n1/GPU-2", severity)
    }


@pytest.mark.parametrize("bits", [0x1, 0x2, 0x4, 0x10])
def test_being_idle_or_at_its_power_cap_is_no_fault(bits):
    assert reported(rows("GPU-1", gpu_clock_event_reasons=float(bits))) == set()


def test_a_throttle_now_and_then_is_no_fault():
    assert reported(rows("GPU-1", gpu_clock_event_reasons=lambda i: 8.0 * (i % 4 == 0))) == set()


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({"gpu_ecc_uncorrected_total": lambda i: float(i > 5)}, "critical"),
        ({"gpu_ecc_corrected_total": lambda i: 17_657.0 * 10 * i}, "critical"),
        ({"gpu_remapped_rows_failed": 1.0}, "critical"),
        ({"gpu_remapped_rows_pending": 1.0}, "warning"),
    ],
)
def test_failing_memory_is_named(change, severity):
    assert reported(rows("GPU-1"), rows("GPU-2", **change)) == {("gpu_fault", "n1/GPU-2", severity)}


def test_old_errors_and_a_reset_count_nothing_new():
    assert reported(rows("GPU-1", gpu_ecc_uncorrected_total=5.0)) == set()
    assert reported(rows("GPU-1", gpu_ecc_uncorrected_total=lambda i: 5.0 if i < 6 else 0.0)) == set()


def test_a_spinning_gpu_is_hung_after_a_minute():
    assert reported(rows("GPU-1"), rows("GPU-2", **SPINNING)) == {("gpu_hang", "n1/GPU-2", "critical")}
    assert reported(rows("GPU-2", samples=6, **SPINNING)) == set()
    broken = {**SPINNING, "gpu_power_watts": lambda i: 95.0 if i != 9 else 500.0}
    assert reported(rows("GPU-2", **broken)) == set()


def test_what_is_cold_depends_on_the_model():
    warmer = {**SPINNING, "gpu_power_watts": 140.0}
    assert reported(rows("GPU-2", **warmer)) == set()
    assert reported(rows("GPU-2", **warmer), models={"GPU-2": "NVIDIA H200"}) != set()
    assert limits_of("NVIDIA H100 80GB HBM3")["hang_clock_hz"] == 1.9e9
    assert limits_of("")["hang_power_watts"] == 100


def test_a_narrow_bus_is_named_and_an_idle_one_is_not():
    assert reported(rows("GPU-1", gpu_pcie_width=8.0)) == {("pcie_degraded", "n1/GPU-1", "warning")}
    assert reported(rows("GPU-1", gpu_pcie_generation=1.0)) == {("pcie_degraded", "n1/GPU-1", "warning")}
    idle = {"gpu_pcie_generation": 1.0, "gpu_utilization_ratio": 0.0}
    assert reported(rows("GPU-1", **idle)) == set()


def test_nvlink_errors_are_named_and_old_ones_and_resets_are_not():
    bad = rows("GPU-2", gpu_nvlink_replays_total=lambda i: 40.0 + 6 * i)
    old = rows("GPU-1", gpu_nvlink_replays_total=4_000.0, gpu_nvlink_transmit_bytes=lambda i: 1e12 * i)
    reset = rows("GPU-3", gpu_nvlink_crc_data_errors_total=lambda i: 900.0 if i < 6 else 0.0)
    assert reported(old, bad, reset) == {("link_errors", "n1/GPU-2", "warning")}


WORSE = {
    "throttle": [{"gpu_clock_event_reasons": lambda i, n=n: 8.0 * (i < n)} for n in (0, 3, 6, 9, 12)],
    "memory": [{"gpu_ecc_corrected_total": lambda i, n=n: float(n) * i} for n in (0, 10, 1e3, 1e5, 1e6)],
    "bus": [{"gpu_pcie_width": width} for width in (16.0, 8.0, 4.0, 1.0)],
}


@pytest.mark.parametrize("changes", WORSE.values(), ids=WORSE.keys())
def test_a_worse_gpu_is_never_milder(changes):
    order = {"info": 1, "warning": 2, "critical": 3}
    weights = [
        max(((order[f.severity], f.confidence) for f in found), default=(0, 0.0))
        for found in (findings(find(table(rows("GPU-1", **change)), now_ns=1)) for change in changes)
    ]
    assert weights == sorted(weights)
    assert weights[0] == (0, 0.0) < weights[-1]
