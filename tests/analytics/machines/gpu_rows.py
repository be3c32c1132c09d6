"""Samples of GPUs, as rows of `metrics`."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.analytics.machines.gpu_health import find
from pulsetrain.analytics.verdict import findings

S = 1_000_000_000


WELL = {
    "gpu_clock_event_reasons": 0.0,
    "gpu_sm_clock_hz": 1.98e9,
    "gpu_power_watts": 600.0,
    "gpu_utilization_ratio": 0.98,
    "gpu_memory_activity_ratio": 0.6,
    "gpu_pcie_transmit_bytes_per_s": 5e9,
    "gpu_pcie_receive_bytes_per_s": 5e9,
    "gpu_pcie_width": 16.0,
    "gpu_pcie_width_max": 16.0,
    "gpu_pcie_generation": 5.0,
    "gpu_pcie_generation_max": 5.0,
    "gpu_ecc_corrected_total": 7.0,
    "gpu_ecc_uncorrected_total": 0.0,
    "gpu_remapped_rows_pending": 0.0,
    "gpu_remapped_rows_failed": 0.0,
}


SPINNING = {
    "gpu_power_watts": 95.0,
    "gpu_utilization_ratio": 1.0,
    "gpu_memory_activity_ratio": 0.0,
    "gpu_pcie_transmit_bytes_per_s": 1e6,
    "gpu_pcie_receive_bytes_per_s": 1e6,
}


def rows(uuid, samples=12, node="n1", period_s=10, **changes):
    """Samples of one GPU; a change is a value, or a function of the number of the sample."""
    made = []
    for i in range(samples):
        for name, value in (WELL | changes).items():
            made.append((node, uuid, name, i * period_s * S, value(i) if callable(value) else value))
    return made


def table(*lists):
    flat = [row for rows_ in lists for row in rows_] or [("", "", "x", 0, 0.0)]
    columns = list(zip(*flat, strict=True))
    return pa.table(
        {
            "node": list(columns[0]),
            "device": list(columns[1]),
            "name": list(columns[2]),
            "ts": pa.array(columns[3], pa.timestamp("ns", "UTC")),
            "value": list(columns[4]),
        }
    )


def reported(*lists, **more):
    return {(f.kind, f.subject, f.severity) for f in findings(find(table(*lists), now_ns=1, **more))}
