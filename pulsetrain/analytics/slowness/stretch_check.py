"""Whether a stretch that stood out is slow indeed, and where exactly it begins and ends.

A change counts where it exceeds a floor and lasts (verification as in GREYHOUND, arXiv 2410.12588). Its edges
are the change points of `change_point` where one is near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.change_point import rolling_median
from pulsetrain.analytics.slowness.fail_slow_config import FailSlowConfig
from pulsetrain.analytics.slowness.window_scan import Candidate

Floats = NDArray[np.float64]
EDGE = 4  # how far, in steps, an edge is moved to a change point nearby


@dataclass(frozen=True, kw_only=True)
class SlowStretch:
    """A stretch [begin, end) of one series, by index. `ratio` is its median over the baseline."""

    row: int
    begin: int
    end: int
    ratio: float
    margin: float  # how far above what would just have counted, which is 1
    drift: bool
    ongoing: bool


def overlap(a: SlowStretch, b: SlowStretch) -> bool:
    """Whether two stretches share a step."""
    return a.begin < b.end and b.begin < a.end


def verified(
    series: Floats, candidate: Candidate, edges: Sequence[int], config: FailSlowConfig
) -> SlowStretch | None:
    """The stretch with its true edges. None where it does not last or is not as slow as it looked.

    `edges` are the indices of change points. `row` is 0, for the caller to replace.
    """
    inside = series[candidate.begin : candidate.end]
    if not np.isfinite(inside).any():
        return None
    height = max(float(np.nanmedian(inside)), candidate.baseline * (1 + config.drift_floor))
    level = (candidate.baseline + height) / 2
    begin, end = _above(series, candidate, level)
    if end <= begin:
        return None
    reaches_end = max(candidate.end, end) > series.size - candidate.width // 5 - 1
    ongoing = reaches_end and _still(series, level, candidate.width)
    drift = _keeps_rising(series[begin:end], candidate.baseline)
    begin = _drift_begin(series, candidate) if drift else _nearest(begin, edges)
    end = series.size if ongoing else _nearest(end, edges)
    part = series[begin:end]
    if end - begin < config.lasting_steps or not np.isfinite(part).any():
        return None
    latest = part[-candidate.width :] if drift else part
    ratio = float(np.nanmedian(latest)) / candidate.baseline
    low_rise = _low_rise(series, begin, latest)
    if ratio < 1 + config.drift_floor or low_rise < config.low_share * (ratio - 1):
        return None
    return SlowStretch(
        row=0, begin=begin, end=end, ratio=ratio, margin=candidate.margin, drift=drift, ongoing=ongoing
    )


def _still(series: Floats, level: float, width: int) -> bool:
    """Whether the newest steps are above `level`. A window may stand out for long after what made it so."""
    newest = series[-max(2 * EDGE, width // 5) :]
    newest = newest[np.isfinite(newest)]
    return newest.size == 0 or float(np.median(newest)) > level


def _low_rise(series: Floats, begin: int, part: Floats) -> float:
    """By how much the lower quartile rose, as a ratio.

    Other people's work on the host lengthens only some steps of a stretch. A slow rank has no quick ones.
    """
    before = series[max(0, begin - 200) : begin]
    before = before[np.isfinite(before)]
    if before.size < 5:
        before = series[np.isfinite(series)]
    return float(np.quantile(part[np.isfinite(part)], 0.25) / np.quantile(before, 0.25) - 1)


def _above(series: Floats, candidate: Candidate, level: float) -> tuple[int, int]:
    """First and one past the last value above `level`, as far as most values around are above it too.

    Where that reaches the border of what is looked at, more is looked at: windows stop standing out before
    the stretch ends, once they make a good part of the history.
    """
    width = candidate.width
    begin, end = max(0, candidate.begin - width), min(series.size, candidate.end + width)
    while True:
        inside = begin + _mostly(series[begin:end] > level)
        if inside.size == 0:
            return begin, begin
        first, last = int(inside[0]), int(inside[-1]) + 1
        wider = (
            max(0, begin - width) if first - begin < EDGE else begin,
            min(series.size, end + width) if end - last < EDGE else end,
        )
        if wider == (begin, end):
            return first, last
        begin, end = wider


def _mostly(above: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Indices that are above and around which most are."""
    near = np.convolve(above, np.ones(2 * EDGE + 1), "same") > EDGE
    return np.flatnonzero(above & near)


def _keeps_rising(inside: Floats, baseline: float) -> bool:
    """Whether the stretch went on rising by a good part of its height after it had begun."""
    third = max(1, inside.size // 3)
    first, last = inside[:third], inside[-third:]
    if not (np.isfinite(first).any() and np.isfinite(last).any()):
        return False
    top = float(np.nanmedian(last))
    return inside.size >= 30 and top - float(np.nanmedian(first)) > 0.3 * (top - baseline) > 0


def _nearest(index: int, edges: Sequence[int]) -> int:
    """The change point next to `index`, or `index` where none is within `EDGE`."""
    near = [e for e in edges if abs(e - index) <= EDGE]
    return min(near, key=lambda e: abs(e - index)) if near else index


def _drift_begin(series: Floats, candidate: Candidate) -> int:
    """Where a drift began: the last window before it that was no higher than the baseline."""
    medians = rolling_median(series[: candidate.begin + candidate.width], candidate.width)
    calm = np.flatnonzero(medians[: candidate.begin] <= candidate.baseline * 1.01)
    return int(calm[-1]) + candidate.width // 2 if calm.size else 0
