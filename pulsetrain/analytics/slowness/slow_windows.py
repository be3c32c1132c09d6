"""Where a series of step times is slower than it was, against its peers or its own past. Pure arrays.

Each rank's times are divided by its own median and by what the other ranks did at the same step, so that a
heavier stage is nobody's fault and a slow data batch is everybody's. Over several window lengths the median
of a window is compared with the median of the rank's own history (a step), and with its lower quartile (a
drift). Both decay and neither is a best-ever minimum, so one lucky window raises no bar. A change counts
where it exceeds a floor and several times the noise of that very series and of its peers, and lasts
(verification as in GREYHOUND, arXiv 2410.12588); its edges are the change points of `change_point`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.change_point import changes, rolling_median

Floats = NDArray[np.float64]
EDGE = 4  # how far, in steps, an edge is moved to a change point nearby
BELOW_MEDIAN = 0.67  # the lower quartile of a normal distribution, in sigmas


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One window length. Short windows are noisier, so they need a larger change."""

    width: int
    step_floor: float
    step_sigmas: float
    drifts: bool


@dataclass(frozen=True, kw_only=True)
class FailSlowConfig:
    """How much is slow, how long is lasting."""

    scales: tuple[Scale, ...] = (
        Scale(width=10, step_floor=0.11, step_sigmas=5.0, drifts=False),
        Scale(width=20, step_floor=0.10, step_sigmas=4.5, drifts=True),
        Scale(width=60, step_floor=0.10, step_sigmas=4.5, drifts=True),
    )
    """window lengths in steps, with the least change (ratio) and the least number of sigmas for each"""
    drift_floor: float = 0.075
    """least rise over the lower quartile of the history, as a ratio"""
    peers_floor: float = 0.05
    """a rank must also be slower than its peers by this ratio"""
    lasting_steps: int = 8
    """a slow-down that lasts less is not one"""
    low_share: float = 0.5
    """share of the slow-down that the lower quartile of the steps must show too"""
    history_windows: int = 2000
    """how many past window medians the baseline is made of; older ones are forgotten"""
    most_suspects: int = 256
    """ranks that are searched closely; the quick look over all picks the worst"""


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A stretch [begin, end) of one series, by index. `ratio` is its median over the baseline."""

    row: int
    begin: int
    end: int
    ratio: float
    margin: float  # how far above what would just have counted; 1 is just so
    drift: bool
    ongoing: bool


def in_peers(values: Floats, config: FailSlowConfig | None = None) -> list[Slow]:
    """Slow stretches of single rows of `values` [rank, step] against the other rows, worst first.

    NaN is a step that a rank did not report. Fewer than two ranks have no peers: nothing is found here.

    >>> calm = np.tile([1.0, 1.02, 0.99], (6, 40))
    >>> calm[2, 60:90] *= 1.3
    >>> [(s.row, s.begin, s.end) for s in in_peers(calm)]
    [(2, 60, 90)]
    """
    config = config or FailSlowConfig()
    own = _normal(values)
    keep = np.flatnonzero(np.isfinite(own).sum(axis=1) >= 2 * config.scales[0].width)
    if keep.size < 2:
        return []
    own, absolute = own[keep], _normal_by_cohort(values[keep])
    relative = own / _others(own)
    found: list[Slow] = []
    wander = {s.width: _wander(relative, s.width) for s in config.scales if relative.shape[1] >= 3 * s.width}
    for row in _suspects(relative, config):
        slow = _search(relative[row], absolute[row], wander, config)
        found += [replace(s, row=int(keep[row])) for s in slow]
    return sorted(found, key=lambda s: (-s.margin, s.row, s.begin))


def in_history(values: Floats, config: FailSlowConfig | None = None) -> list[Slow]:
    """Slow stretches that most rows of `values` [rank, step] share, against their own past; `row` is -1."""
    config = config or FailSlowConfig()
    own = _normal(values)
    enough = np.isfinite(own).sum(axis=0) * 2 > own.shape[0]
    if not enough.any():
        return []
    job = np.full(own.shape[1], np.nan)
    job[enough] = np.nanmedian(own[:, enough], axis=0)
    return [replace(s, row=-1) for s in _search(job, None, {}, config)]


def _normal(values: Floats) -> Floats:
    """Each row over its own median; zero, negative and infinite times count as missing."""
    usable, centre = _centred(values)
    return np.asarray(usable / np.where(np.isnan(centre), 1.0, centre)[:, None])


def _centred(values: Floats) -> tuple[Floats, Floats]:
    """The values with what cannot be a time missing, and each row's median, NaN where nothing is left."""
    told = np.isfinite(values) & (values > 0)
    if told.all():  # many times faster than with gaps
        return values, np.median(values, axis=1) if values.shape[1] else np.full(len(values), np.nan)
    usable = np.where(told, values, np.nan)
    centre = np.full(values.shape[0], np.nan)
    some = told.any(axis=1)
    if some.any():
        centre[some] = np.nanmedian(usable[some], axis=1)
    return usable, centre


def _normal_by_cohort(values: Floats) -> Floats:
    """Each step over the median of the rows whose usual time is within a fifth of this row's."""
    usable, centre = _centred(values)
    order = np.argsort(centre, kind="stable")
    group = np.zeros(centre.size, np.int64)
    anchor, number = centre[order[0]], 0
    for i in order:
        if centre[i] > 1.2 * anchor:
            anchor, number = centre[i], number + 1
        group[i] = number
    out = np.full(values.shape, np.nan)
    for g in range(number + 1):
        members = np.flatnonzero(group == g)
        if members.size >= 3:
            out[members] = usable[members] / _others(usable[members])
    return out


def _others(own: Floats) -> Floats:
    """Median of the other rows at each step; of all rows where one more or less makes no difference."""
    count = own.shape[0]
    if count >= 5:
        return _median_rows(own)[None]
    return np.stack([_median_rows(np.delete(own, row, axis=0)) for row in range(count)])


def _median_rows(values: Floats) -> Floats:
    filled = np.isfinite(values).any(axis=0)
    out = np.full(values.shape[1], np.nan)
    if filled.any():
        part = values[:, filled]
        out[filled] = np.nanmedian(part, axis=0) if np.isnan(part).any() else np.median(part, axis=0)
    return out


def _suspects(relative: Floats, config: FailSlowConfig) -> list[int]:
    """A quick look over all rows: those with a window clearly above their own lower quartile."""
    width = min(config.scales[0].width, relative.shape[1])
    medians = rolling_median(relative, width, max(1, width // 3))
    filled = np.isfinite(medians).any(axis=1)
    excess = np.zeros(relative.shape[0])
    if filled.any():
        part = medians[filled]
        low = np.nanquantile(part, 0.25, axis=1) if np.isnan(part).any() else np.quantile(part, 0.25, axis=1)
        excess[filled] = np.nanmax(part, axis=1) / low - 1
    worst = np.argsort(-excess, kind="stable")[: config.most_suspects]
    return [int(r) for r in worst if excess[r] >= 0.75 * config.drift_floor]


def _search(
    series: Floats, absolute: Floats | None, wander: Mapping[int, float], config: FailSlowConfig
) -> list[Slow]:
    """Slow stretches of one series, each once, in order of time. `wander`: noise of all series by width."""
    found: list[Slow] = []
    edges: list[int] | None = None
    for scale in config.scales:
        if series.size < 3 * scale.width:
            continue
        raw = _scan(series, absolute, scale, wander.get(scale.width, 0.0), config)
        if raw and edges is None:
            edges = changes(np.log(series))
        found += [s for s in (_verified(series, r, edges or [], config) for r in raw) if s is not None]
    return _distinct(found)


@dataclass(frozen=True, kw_only=True)
class _Raw:
    """A stretch as the windows saw it; `baseline` is what the series was before."""

    begin: int
    end: int
    baseline: float
    margin: float
    drift: bool
    width: int


def _scan(
    series: Floats, absolute: Floats | None, scale: Scale, wander: float, config: FailSlowConfig
) -> list[_Raw]:
    """Windows that stand out against the history before them; flagged windows never enter the history."""
    stride = max(1, scale.width // 5)
    medians = rolling_median(series, scale.width, stride)
    beside = None if absolute is None else rolling_median(absolute, scale.width, stride)
    flagged = np.zeros(medians.size, bool)
    found: list[_Raw] = []
    gap = scale.width // stride
    for k in range(2 * gap, medians.size):
        usable = ~flagged[: k - gap + 1] & np.isfinite(medians[: k - gap + 1])
        history = medians[: k - gap + 1][usable][-config.history_windows :]
        if history.size < gap or not np.isfinite(medians[k]):
            continue
        if beside is not None and beside[k] < 1 + config.peers_floor:
            continue
        noise = max(wander, _noise(history) / float(np.median(history)), _hops(medians[: k + 1], 2 * gap))
        noise *= float(np.sqrt(1 + 2 * gap / history.size))  # the baseline is as noisy as it is short
        margin, baseline, drift = _margin(medians[k], history, noise, scale, config)
        if margin < 1:
            continue
        flagged[k] = True
        raw = _Raw(
            begin=k * stride,
            end=k * stride + scale.width,
            baseline=baseline,
            margin=margin,
            drift=drift,
            width=scale.width,
        )
        if found and raw.begin <= found[-1].end:
            last = found[-1]
            found[-1] = replace(last, end=raw.end, margin=max(last.margin, margin))
        else:
            found.append(raw)
    return found


def _margin(
    median: float, history: Floats, noise: float, scale: Scale, config: FailSlowConfig
) -> tuple[float, float, bool]:
    """How far the window is above what would just count, the baseline, and whether it is a drift."""
    middle = float(np.median(history))
    step = (median / middle - 1) / max(scale.step_floor, scale.step_sigmas * noise)
    if scale.drifts and history.size >= 20:
        low = float(np.quantile(history, 0.25))
        drift = (median / low - 1) / max(config.drift_floor, (scale.step_sigmas + BELOW_MEDIAN) * noise)
        if step < 1 < drift:
            return float(drift), low, True
    return float(step), middle, False


def _wander(relative: Floats, width: int) -> float:
    """How far window medians of this width usually stray from their row's median, over all rows: a job whose
    ranks wander by themselves must not raise alarms because one of them was calm for a while."""
    rows = relative[:: max(1, relative.shape[0] // 256)]
    medians = rolling_median(rows, width, max(1, width // 3))
    rows_usable = np.isfinite(medians).any(axis=1)
    if not rows_usable.any():
        return 0.0
    part = medians[rows_usable]
    stray = np.abs(part / np.nanmedian(part, axis=1)[:, None] - 1)
    return 1.4826 * float(np.nanmedian(stray))


def _hops(medians: Floats, lag: int) -> float:
    """The same for one series, from windows that do not overlap: one step or a drift leaves it as it is."""
    hops = medians[lag:] - medians[:-lag] if medians.size > 2 * lag else np.empty(0)
    hops = hops[np.isfinite(hops)]
    if hops.size < lag:
        return 0.0
    centre = float(np.nanmedian(medians))
    return 1.4826 * float(np.median(np.abs(hops - np.median(hops)))) / centre / float(np.sqrt(2))


def _noise(history: Floats) -> float:
    """Spread of window medians around their own trend, so that a drift does not hide itself."""
    n = history.size
    third = max(1, n // 3)
    rise = float(np.median(history[-third:]) - np.median(history[:third])) / max(1, n - third)
    residual = history - rise * (np.arange(n) - (n - 1) / 2)
    return 1.4826 * float(np.median(np.abs(residual - np.median(residual))))


def _verified(series: Floats, raw: _Raw, edges: Sequence[int], config: FailSlowConfig) -> Slow | None:
    """The stretch with its true edges, or None where it does not last or is not as slow as it looked."""
    inside = series[raw.begin : raw.end]
    if not np.isfinite(inside).any():
        return None
    height = max(float(np.nanmedian(inside)), raw.baseline * (1 + config.drift_floor))
    begin, end = _edges(series, raw, (raw.baseline + height) / 2)
    if end <= begin:
        return None
    ongoing = max(raw.end, end) > series.size - raw.width // 5 - 1
    drift = _gradual(series[begin:end], raw.baseline)
    begin = _rise(series, raw) if drift else _snap(begin, edges, EDGE)
    end = series.size if ongoing else _snap(end, edges, EDGE)
    part = series[begin:end]
    if end - begin < config.lasting_steps or not np.isfinite(part).any():
        return None
    latest = part[-raw.width :] if drift else part
    ratio = float(np.nanmedian(latest)) / raw.baseline
    if ratio < 1 + config.drift_floor or _low_rise(series, begin, latest) < config.low_share * (ratio - 1):
        return None
    return Slow(row=0, begin=begin, end=end, ratio=ratio, margin=raw.margin, drift=drift, ongoing=ongoing)


def _low_rise(series: Floats, begin: int, part: Floats) -> float:
    """By how much the lower quartile rose, as a ratio: what a step takes when nothing is in its way. A burst
    of other people's work lengthens some steps of a stretch; a slow rank has no fast ones."""
    before = series[max(0, begin - 200) : begin]
    before = before[np.isfinite(before)]
    if before.size < 5:
        before = series[np.isfinite(series)]
    return float(np.quantile(part[np.isfinite(part)], 0.25) / np.quantile(before, 0.25) - 1)


def _edges(series: Floats, raw: _Raw, level: float) -> tuple[int, int]:
    """First and one past the last value above `level`, as far as most values around are above it too. Where
    it is still so at the border of what is looked at, that is widened: windows stop counting as slow before
    the stretch does, once they make a good part of the history."""
    begin, end = max(0, raw.begin - raw.width), min(series.size, raw.end + raw.width)
    while True:
        inside = begin + _lasting(series[begin:end] > level)
        if inside.size == 0:
            return begin, begin
        first, last = int(inside[0]), int(inside[-1]) + 1
        wider = (
            max(0, begin - raw.width) if first - begin < EDGE else begin,
            min(series.size, end + raw.width) if end - last < EDGE else end,
        )
        if wider == (begin, end):
            return first, last
        begin, end = wider


def _lasting(above: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Indices of those around which most are."""
    near = np.convolve(above, np.ones(2 * EDGE + 1), "same") > EDGE
    return np.flatnonzero(above & near)


def _gradual(inside: Floats, baseline: float) -> bool:
    """Whether the stretch went on rising by a good part of its height after it had begun."""
    third = max(1, inside.size // 3)
    first, last = inside[:third], inside[-third:]
    if not (np.isfinite(first).any() and np.isfinite(last).any()):
        return False
    top = float(np.nanmedian(last))
    return inside.size >= 30 and top - float(np.nanmedian(first)) > 0.3 * (top - baseline) > 0


def _snap(index: int, edges: Sequence[int], within: int) -> int:
    near = [e for e in edges if abs(e - index) <= within]
    return min(near, key=lambda e: abs(e - index)) if near else index


def _rise(series: Floats, raw: _Raw) -> int:
    """Where a drift began: the last window before it that was no higher than the baseline."""
    medians = rolling_median(series[: raw.begin + raw.width], raw.width)
    calm = np.flatnonzero(medians[: raw.begin] <= raw.baseline * 1.01)
    return int(calm[-1]) + raw.width // 2 if calm.size else 0


def _distinct(found: Iterable[Slow]) -> list[Slow]:
    """Of stretches that overlap, the one that stands out most."""
    kept: list[Slow] = []
    for slow in sorted(found, key=lambda s: -s.margin):
        if not any(overlap(slow, k) for k in kept):
            kept.append(slow)
    return sorted(kept, key=lambda s: s.begin)


def overlap(a: Slow, b: Slow) -> bool:
    """Whether two stretches share a step."""
    return a.begin < b.end and b.begin < a.end
