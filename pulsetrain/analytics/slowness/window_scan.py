"""Windows of a series whose median stands out against the windows before them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.change_point import rolling_median
from pulsetrain.analytics.slowness.fail_slow_config import FailSlowConfig, Scale

Floats = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826  # of a normal distribution
BELOW_MEDIAN = 0.67  # the lower quartile of a normal distribution, in sigmas


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A stretch [begin, end) of windows that stand out. `baseline` is what the series was before."""

    begin: int
    end: int
    baseline: float
    margin: float  # how many times what would just have counted
    drift: bool
    width: int


@dataclass(frozen=True, kw_only=True)
class _Excess:
    """How many times what would just count a window is, over which baseline."""

    margin: float
    baseline: float
    drift: bool


def scan(
    series: Floats, beside_peers: Floats | None, scale: Scale, wander: float, config: FailSlowConfig
) -> list[Candidate]:
    """Windows that stand out against the history before them, joined where they overlap.

    A window that stands out never becomes history. `beside_peers`: the same series relative to the other
    ranks, where there are any. `wander`: how much windows of all ranks usually stray, see `wander_of`.
    """
    stride = max(1, scale.width // 5)
    gap = scale.width // stride
    medians = rolling_median(series, scale.width, stride)
    peers = None if beside_peers is None else rolling_median(beside_peers, scale.width, stride)
    flagged = np.zeros(medians.size, bool)
    candidates: list[Candidate] = []
    for k in range(2 * gap, medians.size):
        before = medians[: k - gap + 1]
        history = before[~flagged[: k - gap + 1] & np.isfinite(before)][-config.history_windows :]
        if history.size < gap or not np.isfinite(medians[k]):
            continue
        if peers is not None and peers[k] < 1 + config.peers_floor:
            continue
        if _excess(medians[k], history, 0.0, scale, config).margin < 1:
            continue  # noise only makes it less
        noise = max(wander, _noise(history) / float(np.median(history)), _hops(medians[: k + 1], 2 * gap))
        noise *= float(np.sqrt(1 + 2 * gap / history.size))  # a short baseline is a noisy one
        excess = _excess(medians[k], history, noise, scale, config)
        if excess.margin >= 1:
            flagged[k] = True
            _append(candidates, excess, k * stride, scale.width)
    return candidates


def wander_of(relative: Floats, width: int) -> float:
    """How far window medians of this width usually stray from their row's median, over all rows [rank, step].

    Where all ranks wander by themselves, none may be named because it was calm for a while.
    """
    rows = relative[:: max(1, relative.shape[0] // 256)]
    medians = rolling_median(rows, width, max(1, width // 3))
    usable = np.isfinite(medians).any(axis=1)
    if not usable.any():
        return 0.0
    part = medians[usable]
    stray = np.abs(part / np.nanmedian(part, axis=1)[:, None] - 1)
    return MAD_TO_SIGMA * float(np.nanmedian(stray))


def _append(candidates: list[Candidate], excess: _Excess, begin: int, width: int) -> None:
    """Add one window, or widen the last candidate where the window overlaps it."""
    if candidates and begin <= candidates[-1].end:
        last = candidates[-1]
        candidates[-1] = replace(last, end=begin + width, margin=max(last.margin, excess.margin))
        return
    candidates.append(
        Candidate(
            begin=begin,
            end=begin + width,
            baseline=excess.baseline,
            margin=excess.margin,
            drift=excess.drift,
            width=width,
        )
    )


def _excess(median: float, history: Floats, noise: float, scale: Scale, config: FailSlowConfig) -> _Excess:
    """A window against the median of its history (a step), or against the lower quartile (a drift)."""
    least = float(history.min())
    if median < least * (1 + min(scale.step_floor, config.drift_floor)):  # clear without any quantile
        return _Excess(margin=0.0, baseline=least, drift=False)
    middle = float(np.median(history))
    step = (median / middle - 1) / max(scale.step_floor, scale.step_sigmas * noise)
    if scale.drifts and history.size >= 20:
        low = float(np.quantile(history, 0.25))
        drift = (median / low - 1) / max(config.drift_floor, (scale.step_sigmas + BELOW_MEDIAN) * noise)
        if step < 1 < drift:
            return _Excess(margin=float(drift), baseline=low, drift=True)
    return _Excess(margin=float(step), baseline=middle, drift=False)


def _hops(medians: Floats, lag: int) -> float:
    """How far window medians `lag` apart usually differ. One step or a drift hardly changes that."""
    hops = medians[lag:] - medians[:-lag] if medians.size > 2 * lag else np.empty(0)
    hops = hops[np.isfinite(hops)]
    if hops.size < lag:
        return 0.0
    centre = float(np.nanmedian(medians))
    return MAD_TO_SIGMA * float(np.median(np.abs(hops - np.median(hops)))) / centre / float(np.sqrt(2))


def _noise(history: Floats) -> float:
    """Spread of window medians around their own trend, so that a drift does not hide itself."""
    n = history.size
    third = max(1, n // 3)
    rise = float(np.median(history[-third:]) - np.median(history[:third])) / max(1, n - third)
    residual = history - rise * (np.arange(n) - (n - 1) / 2)
    return MAD_TO_SIGMA * float(np.median(np.abs(residual - np.median(residual))))
