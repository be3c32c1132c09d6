"""Rules that each tell one kind of trouble from the samples of one GPU.

Bits of the clock event reasons, remapped rows and ECC counts are NVML's (nvml.h). The hang rule needs no
instrumentation: a kernel that spins keeps a GPU busy at a high clock while power, memory and bus are idle.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.machines.gpu_samples import Gpu, values_at
from pulsetrain.analytics.machines.metric_series import NS_PER_S
from pulsetrain.records.counters import counters
from pulsetrain.records.findings import Severity

HARDWARE_BITS = {0x08: "hardware slowdown", 0x40: "hardware thermal", 0x80: "power brake"}
SOFTWARE_BITS = {0x20: "software thermal"}
HANG_METRICS = (
    "gpu_utilization_ratio",
    "gpu_sm_clock_hz",
    "gpu_power_watts",
    "gpu_memory_activity_ratio",
    "gpu_pcie_transmit_bytes_per_s",
    "gpu_pcie_receive_bytes_per_s",
)


@dataclass(frozen=True, kw_only=True)
class GpuConfig:
    """What counts as trouble."""

    throttled_ratio: float = 0.5
    """share of the samples with a throttle reason from which a GPU is throttled"""
    least_samples: int = 5
    """fewer samples say nothing"""
    corrected_per_s: float = 1000.0
    """corrected memory errors from which the memory is failing (10^3 to 10^4 seen on failing HBM)"""
    hang_s: float = 60.0
    """how long the signs of a hang must hold"""
    hang_utilization_ratio: float = 0.95
    """least utilization of a spinning GPU"""
    hang_memory_ratio: float = 0.05
    """its memory activity is below this"""
    hang_pcie_bytes_per_s: float = 300e6
    """its bus traffic is below this, each way"""
    nvlink_errors_per_minute: float = 1.0
    """errors and replays of its NVLinks from which a link is suspect"""


@dataclass(frozen=True, kw_only=True)
class GpuFault:
    """What a rule found. `summary` follows the name of the GPU in a sentence."""

    kind: str
    severity: Severity
    confidence: float
    summary: str
    action: str
    evidence: Mapping[str, object] = field(default_factory=dict)


Rule = Callable[[Gpu, GpuConfig], GpuFault | None]


def throttle(gpu: Gpu, config: GpuConfig) -> GpuFault | None:
    """A reason other than idleness or the power cap lowers the clock most of the time."""
    reasons = gpu.values("gpu_clock_event_reasons").astype(np.int64)
    if reasons.size < config.least_samples:
        return None
    shares = {
        name: float(((reasons & bit) > 0).mean()) for bit, name in (HARDWARE_BITS | SOFTWARE_BITS).items()
    }
    worst = max(shares, key=lambda n: (shares[n], n))
    if shares[worst] < config.throttled_ratio:
        return None
    hardware = worst in HARDWARE_BITS.values()
    return GpuFault(
        kind="throttle",
        severity="critical" if hardware and shares[worst] > 0.9 else "warning",
        confidence=round(0.6 + 0.35 * shares[worst], 2),
        summary=f"is throttled: {worst} in {shares[worst]:.0%} of the samples",
        evidence={"shares": {k: round(v, 3) for k, v in shares.items() if v}, "samples": int(reasons.size)},
        action="Check cooling and power of the node; evict it when others wait for it.",
    )


def memory(gpu: Gpu, config: GpuConfig) -> GpuFault | None:
    """Rows that could not be remapped, uncorrected errors, many corrected errors, or a row yet to remap."""
    failed, pending = (gpu.values(f"gpu_remapped_rows_{n}") for n in ("failed", "pending"))
    uncorrected = gpu.increase("gpu_ecc_uncorrected_total")
    seconds = gpu.seconds("gpu_ecc_corrected_total")
    rate = gpu.increase("gpu_ecc_corrected_total") / seconds if seconds else 0.0
    numbers = {"uncorrected": uncorrected, "corrected_per_s": round(rate, 2)}
    if failed.size and failed[-1] > 0:
        return _memory_fault(0.97, "could not remap a memory row", "Replace the GPU.", numbers)
    if uncorrected > 0:
        what = f"had {uncorrected:.0f} uncorrected memory errors"
        return _memory_fault(0.95, what, "Evict and reset the GPU.", numbers)
    if rate >= config.corrected_per_s:
        what = f"corrects {rate:.0f} memory errors a second"
        return _memory_fault(0.85, what, "Evict; its memory is failing.", numbers)
    if pending.size and pending[-1] > 0:
        return GpuFault(
            kind="gpu_fault",
            severity="warning",
            confidence=0.8,
            summary="has a memory row to remap at its next reset",
            evidence={"cause": "remap_pending", **numbers},
            action="Reset the GPU when the job pauses.",
        )
    return None


def _memory_fault(confidence: float, summary: str, action: str, numbers: Mapping[str, object]) -> GpuFault:
    return GpuFault(
        kind="gpu_fault",
        severity="critical",
        confidence=confidence,
        summary=summary,
        evidence={"cause": "memory", **numbers},
        action=action,
    )


def hang(gpu: Gpu, config: GpuConfig) -> GpuFault | None:
    """The GPU has been busy at a high clock for long, while power, memory and bus are idle."""
    series = {name: gpu.series[name] for name in HANG_METRICS if name in gpu.series}
    if len(series) < len(HANG_METRICS) or any(v.size < config.least_samples for _, v in series.values()):
        return None
    limits = limits_of(gpu.model)
    times = np.unique(np.concatenate([t for t, _ in series.values()]))
    at = {name: values_at(s, times) for name, s in series.items()}
    calm = np.flatnonzero(~_spins(at, limits, config))
    begin = int(calm[-1]) + 1 if calm.size else 0
    if times.size - begin < config.least_samples:
        return None
    held_s = float(times[-1] - times[begin]) / NS_PER_S
    if held_s < config.hang_s:
        return None
    return GpuFault(
        kind="gpu_hang",
        severity="critical",
        confidence=0.8,
        summary=f"spins without progress for {held_s:.0f} s: busy and fast, yet cold, memory and bus idle",
        evidence={
            "held_s": held_s,
            "since_ns": int(times[begin]),
            "power_watts": float(at["gpu_power_watts"][-1]),
            "limits": limits,
        },
        action="Take the stacks of the ranks of this GPU's collectives: one of them is missing.",
    )


def _spins(
    at: Mapping[str, NDArray[np.float64]], limits: Mapping[str, float], config: GpuConfig
) -> NDArray[np.bool_]:
    """At which times every sign of a spinning kernel is there."""
    return np.asarray(
        (at["gpu_utilization_ratio"] >= config.hang_utilization_ratio)
        & (at["gpu_sm_clock_hz"] >= limits["hang_clock_hz"])
        & (at["gpu_power_watts"] < limits["hang_power_watts"])
        & (at["gpu_memory_activity_ratio"] < config.hang_memory_ratio)
        & (at["gpu_pcie_transmit_bytes_per_s"] < config.hang_pcie_bytes_per_s)
        & (at["gpu_pcie_receive_bytes_per_s"] < config.hang_pcie_bytes_per_s)
    )


def pcie(gpu: Gpu, config: GpuConfig) -> GpuFault | None:
    """The bus is narrower than it could be, or slower while the GPU is busy (an idle GPU slows it down)."""
    utilization = gpu.values("gpu_utilization_ratio")
    busy = bool(utilization.size and utilization[-1] > 0.5)
    degraded: dict[str, tuple[float, float]] = {}
    for name in ("width", "generation"):
        now, best = gpu.values(f"gpu_pcie_{name}"), gpu.values(f"gpu_pcie_{name}_max")
        if now.size and best.size and now[-1] < best[-1] and (busy or name != "generation"):
            degraded[name] = (float(now[-1]), float(best[-1]))
    if not degraded:
        return None
    what = ", ".join(f"{name} {now:.0f} of {best:.0f}" for name, (now, best) in degraded.items())
    return GpuFault(
        kind="pcie_degraded",
        severity="warning",
        confidence=0.8,
        summary=f"has a degraded bus: {what}",
        evidence={"degraded": {k: list(v) for k, v in degraded.items()}},
        action="Reseat the GPU or its riser; restart the machine.",
    )


def nvlink(gpu: Gpu, config: GpuConfig) -> GpuFault | None:
    """Errors, replays and recoveries of its NVLinks. A reset of the GPU sets them to 0."""
    per_minute: dict[str, float] = {}
    for metric, counter in counters("nvlink").items():
        minutes = gpu.seconds(metric) / 60
        if counter.reveals != "traffic" and gpu.values(metric).size >= config.least_samples:
            per_minute[metric] = round(gpu.increase(metric) / max(minutes, 1.0), 2)
    bad = {metric: rate for metric, rate in per_minute.items() if rate >= config.nvlink_errors_per_minute}
    if not bad:
        return None
    worst = max(bad, key=lambda metric: bad[metric])
    return GpuFault(
        kind="link_errors",
        severity="warning",
        confidence=round(min(0.9, 0.6 + 0.1 * float(np.log10(1 + bad[worst]))), 2),
        summary=f"has NVLink errors: {worst} {bad[worst]:.3g} a minute",
        evidence={"per_minute": bad},
        action="Evict; reset the GPU, and check the link when it comes back.",
    )


RULES: tuple[Rule, ...] = (throttle, memory, hang, pcie, nvlink)


@dataclass(frozen=True, kw_only=True)
class _ModelLimits:
    """One row of gpu_limits.csv."""

    model: re.Pattern[str]
    limits: Mapping[str, float]


@cache
def _limits() -> tuple[_ModelLimits, ...]:
    text = files("pulsetrain.analytics").joinpath("tables/gpu_limits.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    names = ("hang_clock_hz", "hang_power_watts")
    return tuple(
        _ModelLimits(model=re.compile(row["model"]), limits={name: float(row[name]) for name in names})
        for row in rows
    )


def limits_of(model: str) -> Mapping[str, float]:
    """The hang limits of a model from gpu_limits.csv: hang_clock_hz and hang_power_watts.

    >>> limits_of("NVIDIA H100 80GB HBM3")["hang_clock_hz"]
    1900000000.0
    """
    return next(row.limits for row in _limits() if row.model.search(model))
