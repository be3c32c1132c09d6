"""What samples of GPUs say without help of the script: throttling, memory errors, slow buses, hangs.

Bits of the clock event reasons, remapped rows and ECC counts are NVML's (nvml.h). The hang fingerprint needs
no instrumentation: a kernel that spins keeps a GPU busy at a high clock while power, memory and bus are idle.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, Verdict
from pulsetrain.records.counters import counters

NAME = "gpu_health"
S = 1_000_000_000
Series = tuple[NDArray[np.int64], NDArray[np.float64]]

HARDWARE_BITS = {0x08: "hardware slowdown", 0x40: "hardware thermal", 0x80: "power brake"}
SOFTWARE_BITS = {0x20: "software thermal"}


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
    """how long the hang fingerprint must hold"""
    hang_utilization_ratio: float = 0.95
    """utilization that a spinning GPU shows at least"""
    hang_memory_ratio: float = 0.05
    """memory activity that it shows at most"""
    hang_pcie_bytes_per_s: float = 300e6
    """bus traffic that it shows at most, each way"""
    nvlink_errors_per_minute: float = 1.0
    """errors and replays of its NVLinks from which a link is suspect"""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Samples of one GPU by metric."""

    node: str
    uuid: str
    series: Mapping[str, Series]
    model: str = ""

    def values(self, name: str) -> NDArray[np.float64]:
        """Samples in order of time; empty where there are none."""
        return self.series[name][1] if name in self.series else np.empty(0)

    def grown(self, name: str) -> float:
        """What a counter counted over the range; a smaller value is a reset, after which it counts from 0."""
        values = self.values(name)
        if values.size < 2:
            return 0.0
        steps = np.diff(values)
        return float(np.where(steps < 0, values[1:], steps).sum())

    def seconds(self, name: str) -> float:
        """Time between the first and the last sample."""
        return float(self.series[name][0][-1] - self.series[name][0][0]) / S if name in self.series else 0.0


def gpus(table: pa.Table, models: Mapping[str, str] | None = None) -> list[Gpu]:
    """GPUs from rows of `metrics` in any order; `models` names the model by UUID where known."""
    columns = [table[name].to_pylist() for name in ("node", "device", "name", "value")]
    times = table["ts"].cast(pa.int64()).to_pylist()
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for node, device, name, value, ts_ns in zip(*columns, times, strict=True):
        if name.startswith("gpu_") and value is not None and np.isfinite(value):
            found.setdefault((node, device), {}).setdefault(name, {})[ts_ns] = value
    return [
        Gpu(
            node=node,
            uuid=uuid,
            model=(models or {}).get(uuid, ""),
            series={
                name: (np.array(sorted(v), np.int64), np.array([v[t] for t in sorted(v)]))
                for name, v in metrics.items()
            },
        )
        for (node, uuid), metrics in sorted(found.items())
    ]


def find(
    table: pa.Table,
    *,
    now_ns: int,
    job: str = "",
    models: Mapping[str, str] | None = None,
    config: GpuConfig | None = None,
) -> list[Verdict]:
    """Findings of kind `throttle`, `gpu_fault`, `gpu_hang`, `pcie_degraded` and `link_errors` from `metrics`.

    `Inconclusive` and blind where no GPU was sampled.
    """
    config = config or GpuConfig()
    known = gpus(table, models)
    if not known:
        return [Inconclusive(analyzer=NAME, reason="no sample of a GPU", blind=True)]
    found: list[Verdict] = []
    for gpu in known:
        for rule in RULES:
            said = rule(gpu, config)
            if said is not None:
                found.append(_finding(gpu, said, now_ns, job))
    return found or [Healthy(analyzer=NAME, numbers={"gpus": len(known)})]


@dataclass(frozen=True, kw_only=True)
class _Said:
    kind: str
    severity: Severity
    confidence: float
    summary: str
    evidence: Mapping[str, Any]
    action: str


def _finding(gpu: Gpu, said: _Said, now_ns: int, job: str) -> Finding:
    subject = f"{gpu.node}/{gpu.uuid}" if gpu.node else gpu.uuid
    return Finding(
        ts_ns=now_ns,
        job=job,
        attempt=-1,
        kind=said.kind,
        subject_type="gpu",
        subject=subject,
        severity=said.severity,
        confidence=said.confidence,
        summary=f"{subject} {said.summary}",
        evidence={
            "query": "metrics gpu_*",
            "node": gpu.node,
            "uuid": gpu.uuid,
            "suggested_action": said.action,
            **said.evidence,
        },
    )


# -- rules ------------------------------------------------------------------------------------------------


def _throttle(gpu: Gpu, config: GpuConfig) -> _Said | None:
    reasons = gpu.values("gpu_clock_event_reasons").astype(np.int64)
    if reasons.size < config.least_samples:
        return None
    shares = {
        name: float(((reasons & bit) > 0).mean()) for bit, name in (HARDWARE_BITS | SOFTWARE_BITS).items()
    }
    worst = max(shares, key=lambda n: (shares[n], n))
    if shares[worst] < config.throttled_ratio:
        return None
    hard = worst in HARDWARE_BITS.values()
    return _Said(
        kind="throttle",
        severity="critical" if hard and shares[worst] > 0.9 else "warning",
        confidence=round(0.6 + 0.35 * shares[worst], 2),
        summary=f"is throttled: {worst} in {shares[worst]:.0%} of the samples",
        evidence={"shares": {k: round(v, 3) for k, v in shares.items() if v}, "samples": int(reasons.size)},
        action="Check cooling and power of the node; evict it when others wait for it.",
    )


def _memory(gpu: Gpu, config: GpuConfig) -> _Said | None:
    failed, pending = (gpu.values(f"gpu_remapped_rows_{n}") for n in ("failed", "pending"))
    uncorrected = gpu.grown("gpu_ecc_uncorrected_total")
    seconds = gpu.seconds("gpu_ecc_corrected_total")
    rate = gpu.grown("gpu_ecc_corrected_total") / seconds if seconds else 0.0
    numbers = {"uncorrected": uncorrected, "corrected_per_s": round(rate, 2)}
    if failed.size and failed[-1] > 0:
        what, sure, action = "could not remap a memory row", 0.97, "Replace the GPU."
    elif uncorrected > 0:
        what, sure, action = (
            f"had {uncorrected:.0f} uncorrected memory errors",
            0.95,
            "Evict and reset the GPU.",
        )
    elif rate >= config.corrected_per_s:
        what, sure, action = (
            f"corrects {rate:.0f} memory errors a second",
            0.85,
            "Evict; its memory is failing.",
        )
    elif pending.size and pending[-1] > 0:
        return _Said(
            kind="gpu_fault",
            severity="warning",
            confidence=0.8,
            summary="has a memory row to remap at its next reset",
            evidence={"cause": "remap_pending", **numbers},
            action="Reset the GPU when the job pauses.",
        )
    else:
        return None
    return _Said(
        kind="gpu_fault",
        severity="critical",
        confidence=sure,
        summary=what,
        evidence={"cause": "memory", **numbers},
        action=action,
    )


def _hang(gpu: Gpu, config: GpuConfig) -> _Said | None:
    needed = {
        name: gpu.series.get(name)
        for name in (
            "gpu_utilization_ratio",
            "gpu_sm_clock_hz",
            "gpu_power_watts",
            "gpu_memory_activity_ratio",
            "gpu_pcie_transmit_bytes_per_s",
            "gpu_pcie_receive_bytes_per_s",
        )
    }
    if any(s is None or s[1].size < config.least_samples for s in needed.values()):
        return None
    limits = limits_of(gpu.model)
    times = np.unique(np.concatenate([s[0] for s in needed.values() if s is not None]))
    at = {n: _hold(s, times) for n, s in needed.items() if s is not None}
    spinning = (
        (at["gpu_utilization_ratio"] >= config.hang_utilization_ratio)
        & (at["gpu_sm_clock_hz"] >= limits["hang_clock_hz"])
        & (at["gpu_power_watts"] < limits["hang_power_watts"])
        & (at["gpu_memory_activity_ratio"] < config.hang_memory_ratio)
        & (at["gpu_pcie_transmit_bytes_per_s"] < config.hang_pcie_bytes_per_s)
        & (at["gpu_pcie_receive_bytes_per_s"] < config.hang_pcie_bytes_per_s)
    )
    calm = np.flatnonzero(~spinning)
    begin = int(calm[-1]) + 1 if calm.size else 0
    if times.size - begin < config.least_samples or (times[-1] - times[begin]) / S < config.hang_s:
        return None
    held_s = float(times[-1] - times[begin]) / S
    return _Said(
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


def _pcie(gpu: Gpu, config: GpuConfig) -> _Said | None:
    """The bus is narrower than it could be, or slower while the GPU is busy (an idle GPU slows it down)."""
    busy = gpu.values("gpu_utilization_ratio")
    degraded: dict[str, tuple[float, float]] = {}
    for name in ("width", "generation"):
        now, best = gpu.values(f"gpu_pcie_{name}"), gpu.values(f"gpu_pcie_{name}_max")
        if now.size and best.size and now[-1] < best[-1]:
            if name == "generation" and not (busy.size and busy[-1] > 0.5):
                continue
            degraded[name] = (float(now[-1]), float(best[-1]))
    if not degraded:
        return None
    told = ", ".join(f"{name} {now:.0f} of {best:.0f}" for name, (now, best) in degraded.items())
    return _Said(
        kind="pcie_degraded",
        severity="warning",
        confidence=0.8,
        summary=f"has a degraded bus: {told}",
        evidence={"degraded": {k: list(v) for k, v in degraded.items()}},
        action="Reseat the GPU or its riser; restart the machine.",
    )


def _nvlink(gpu: Gpu, config: GpuConfig) -> _Said | None:
    """Errors, replays and recoveries of its NVLinks; a reset begins them again at 0."""
    grown: dict[str, float] = {}
    for metric, counter in counters("nvlink").items():
        minutes = gpu.seconds(metric) / 60
        if counter.reveals != "traffic" and gpu.values(metric).size >= config.least_samples:
            grown[metric] = round(gpu.grown(metric) / max(minutes, 1.0), 2)
    bad = {metric: rate for metric, rate in grown.items() if rate >= config.nvlink_errors_per_minute}
    if not bad:
        return None
    worst = max(bad, key=lambda metric: bad[metric])
    return _Said(
        kind="link_errors",
        severity="warning",
        confidence=round(min(0.9, 0.6 + 0.1 * float(np.log10(1 + bad[worst]))), 2),
        summary=f"has NVLink errors: {worst} {bad[worst]:.3g} a minute",
        evidence={"per_minute": bad},
        action="Evict; reset the GPU, and check the link when it comes back.",
    )


RULES: tuple[Callable[[Gpu, GpuConfig], _Said | None], ...] = (
    _throttle,
    _memory,
    _hang,
    _pcie,
    _nvlink,
)


def _hold(series: Series, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """The last sample at each time; NaN before the first."""
    place = np.searchsorted(series[0], times, side="right") - 1
    return np.where(place >= 0, series[1][np.maximum(place, 0)], np.nan)


@cache
def _limits() -> tuple[dict[str, Any], ...]:
    text = files("pulsetrain.analytics").joinpath("tables/gpu_limits.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        {
            "model": re.compile(r["model"]),
            "hang_clock_hz": float(r["hang_clock_hz"]),
            "hang_power_watts": float(r["hang_power_watts"]),
        }
        for r in rows
    )


def limits_of(model: str) -> dict[str, float]:
    """The row of gpu_limits.csv for a model."""
    row = next(r for r in _limits() if r["model"].search(model))
    return {k: v for k, v in row.items() if k != "model"}
