"""GPUs that lost clock while they are busy, though their peers did not: heat, power, a bad regulator.

The driver does not always give a reason for a lower clock. So each GPU's clock is compared with what it used
to be, and that change with the change of its peers, which run the same job. A job that draws more power
lowers the clock of all of them, and that is no fault. The spreads are measured: of the GPU's own values, and
of the peers' changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.machines.gpu_rules import GpuFault
from pulsetrain.analytics.machines.gpu_samples import Gpu, values_at
from pulsetrain.analytics.slowness.robust import sigma
from pulsetrain.diagnostics.slow_nodes import LEAST_COHORT, deviations_limit

Floats = NDArray[np.float64]

CLOCK = "gpu_sm_clock_hz"
UTILIZATION, REASONS = "gpu_utilization_ratio", "gpu_clock_event_reasons"
METRICS = (CLOCK, UTILIZATION, REASONS)
"""All that is read here."""
FARTHER = 2.0
"""A change so many times as far out as that of any peer is the GPU's own. The spread of few peers is not well
known, so the limit in standard deviations alone would hide a drop of 10 % among six."""
ON_PURPOSE = 0x2 | 0x4
"""clocks set by a person, and the power cap (nvml.h: nvmlClocksEventReason...)"""


@dataclass(frozen=True, kw_only=True)
class ClockConfig:
    """What counts as a drop. Samples come once a second."""

    busy_ratio: float = 0.5
    """an idle GPU lowers its clock on purpose, so only samples above this utilization count"""
    window: int = 5
    """samples that make one value: their mean without the highest and the lowest"""
    recent: int = 2
    """so many of the newest values must all be low"""
    least_before: int = 4
    """what the clock held for so many values is usual"""
    alone_s: float = 120.0
    """so much of the past counts without peers: a GPU that warms up slowly loses clock over minutes"""
    least_drop: float = 0.05
    """a smaller drop is not worth a name: GPUs of one model differ by more (Sinha et al., SC22)"""


@dataclass(frozen=True, kw_only=True)
class ClockChange:
    """The clock of one GPU now, beside its own past. `spread` is of the logarithm, `change` the logarithm of
    `now_hz` over `usual_hz`. `reasons` are the bits that most of the newest samples have."""

    gpu: Gpu
    usual_hz: float
    now_hz: float
    spread: float
    values: int
    reasons: int

    @property
    def change(self) -> float:
        """Below 0: it is slower than it was."""
        return math.log(self.now_hz / self.usual_hz)


def find(gpus: Sequence[Gpu], config: ClockConfig | None = None) -> dict[str, GpuFault]:
    """Map names of GPUs to a fault of kind `throttle`. GPUs of one model are peers.

    A GPU is named if its newest values are all below its own past, by `least_drop` and far outside the
    spread, and if its change is far outside that of its peers. With fewer than three of a model there are no
    peers: then a drop that the driver calls on purpose names nobody.
    """
    config = config or ClockConfig()
    found: dict[str, GpuFault] = {}
    for model in sorted({gpu.model for gpu in gpus}):
        peers = [gpu for gpu in gpus if gpu.model == model]
        cohort = _changes(peers, config)
        if len(cohort) < LEAST_COHORT:
            cohort = _changes([_newest(gpu, config.alone_s) for gpu in peers], config)
        for own in cohort:
            if _dropped(own, config) and _alone(own, cohort, config):
                found[own.gpu.name] = _fault(own, cohort)
    return found


def _changes(gpus: Sequence[Gpu], config: ClockConfig) -> list[ClockChange]:
    return [change for gpu in gpus if (change := change_of(gpu, config)) is not None]


def _newest(gpu: Gpu, seconds: float) -> Gpu:
    """The GPU with the samples of the last `seconds` alone."""
    end_ns = max((int(times[-1]) for times, _ in gpu.series.values() if times.size), default=0)
    since_ns = end_ns - int(seconds * 1e9)
    series = {
        name: (times[times >= since_ns], values[times >= since_ns])
        for name, (times, values) in gpu.series.items()
    }
    return replace(gpu, series=series)


def change_of(gpu: Gpu, config: ClockConfig) -> ClockChange | None:
    """The clock while the GPU is busy. None where too little of it is known.

    `now_hz` is the highest of the newest values: all of them are as low as that. `usual_hz` is the highest
    clock that it held for `least_before` values, so that a drop that lasts is not forgotten. The spread comes
    from neighbouring values, so that a drop does not widen it.
    """
    busy = _busy_clock(gpu, config)
    count = busy.size // config.window
    if count < config.recent + config.least_before:
        return None
    windows = np.sort(busy[busy.size - count * config.window :].reshape(count, config.window), axis=1)
    values = windows[:, 1:-1].mean(axis=1)  # clocks come in steps, so a median would too
    before, recent = np.log(values[: -config.recent]), values[-config.recent :]
    held = np.median(np.lib.stride_tricks.sliding_window_view(before, config.least_before), axis=1)
    return ClockChange(
        gpu=gpu,
        usual_hz=float(np.exp(held.max())),
        now_hz=float(recent.max()),
        spread=float(sigma(np.diff(before))) / math.sqrt(2),
        values=count,
        reasons=_reasons(gpu, config),
    )


def _busy_clock(gpu: Gpu, config: ClockConfig) -> Floats:
    """Samples of the clock while the GPU was busy, in order of time."""
    utilization = gpu.series.get(UTILIZATION)
    if CLOCK not in gpu.series or utilization is None or not utilization[1].size:
        return np.empty(0)
    times, clock = gpu.series[CLOCK]
    busy = np.nan_to_num(values_at(utilization, times)) >= config.busy_ratio
    return np.asarray(clock[busy & (clock > 0)], np.float64)


def _reasons(gpu: Gpu, config: ClockConfig) -> int:
    """Bits that more than half of the newest samples have."""
    newest = gpu.values(REASONS)[-config.window * config.recent :].astype(np.int64)
    bits = [1 << i for i in range(16)] if newest.size else []
    return sum(bit for bit in bits if ((newest & bit) > 0).mean() > 0.5)


def _dropped(own: ClockChange, config: ClockConfig) -> bool:
    limit = deviations_limit(own.values) * own.spread
    return own.change < -max(-math.log1p(-config.least_drop), limit)


def _alone(own: ClockChange, cohort: Sequence[ClockChange], config: ClockConfig) -> bool:
    """Whether the peers did not lose clock likewise. `_dropped` has shown that it is no noise."""
    if len(cohort) < LEAST_COHORT:
        return not own.reasons & ON_PURPOSE
    peers = np.array([peer.change for peer in cohort if peer is not own])
    middle = float(np.median(peers))
    apart = np.abs(peers - middle)
    limit = min(deviations_limit(len(cohort)) * float(sigma(apart)), FARTHER * float(apart.max()))
    return own.change - middle < -max(-math.log1p(-config.least_drop), limit)


def _fault(own: ClockChange, cohort: Sequence[ClockChange]) -> GpuFault:
    ratio, peers = own.now_hz / own.usual_hz, len(cohort) - 1
    compared = peers + 1 >= LEAST_COHORT
    beside = f"its {peers} peers did not" if compared else "it has no peers to compare with"
    return GpuFault(
        kind="throttle",
        severity="warning",
        confidence=0.85 if compared else 0.6,
        summary=f"runs at {ratio:.0%} of its usual clock while it is busy, {beside}",
        evidence={
            "clock_ratio": round(ratio, 4),
            "usual_hz": own.usual_hz,
            "now_hz": own.now_hz,
            "spread": round(own.spread, 5),
            "peers": peers,
            "reasons": own.reasons,
        },
        action="Check cooling and power of the node; evict it when others wait for it.",
    )
