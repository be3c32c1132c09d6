"""Where a series of step times is slower than it was, against its peers or its own past. Pure arrays.

Each rank's times are divided by its own median and by what the other ranks of its stage took in the same
step. So a heavier pipeline stage is nobody's fault. Neither is a slow batch of data, nor a longer one that
costs stages unequally. For several window lengths, the median of a window is compared with the median of the
rank's own history (a step) and with its lower quartile (a drift). Neither baseline is a best-ever minimum, so
one lucky window does not make later ones look slow. A stretch counts where it exceeds a floor and several
times the noise of that series and of its peers (`window_scan`), and where it lasts (`stretch_check`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.change_point import changes, rolling_median
from pulsetrain.analytics.slowness.fail_slow_config import FailSlowConfig
from pulsetrain.analytics.slowness.relative_times import over_others, over_own_median, over_similar
from pulsetrain.analytics.slowness.stretch_check import SlowStretch, overlap, verified
from pulsetrain.analytics.slowness.window_scan import scan, wander_of

Floats = NDArray[np.float64]

ROSE = 0.25  # of the stretch's rise that a row's own times must show
BEFORE = 60  # steps before a stretch, with which a row's own times are compared


def slow_against_peers(
    values: Floats,
    config: FailSlowConfig | None = None,
    *,
    cohorts: Sequence[NDArray[np.int64]] | None = None,
) -> list[SlowStretch]:
    """Slow stretches of single rows of `values` [rank, step] against the other rows, worst first.

    NaN is a step that a rank did not report. With fewer than two ranks nothing is found. `cohorts` are the
    rows that do the same work: a row is compared within its cohort, or with all rows where it is alone in it.
    Without `cohorts` all rows do the same work.

    >>> calm = np.tile([1.0, 1.02, 0.99], (6, 40))
    >>> calm[2, 60:90] *= 1.3
    >>> [(s.row, s.begin, s.end) for s in slow_against_peers(calm)]
    [(2, 60, 90)]
    """
    config = config or FailSlowConfig()
    own = over_own_median(values)
    keep = np.flatnonzero(np.isfinite(own).sum(axis=1) >= 2 * config.scales[0].width)
    if keep.size < 2:
        return []
    relative, beside_peers = _relative(own, values, keep, cohorts or [keep])
    wander = {s.width: wander_of(relative, s.width) for s in config.scales if _long_enough(relative, s.width)}
    stretches = [
        replace(stretch, row=int(keep[row]))
        for row in _suspects(relative, config)
        for stretch in _search(relative[row], beside_peers[row], wander, config)
    ]
    stretches = [s for s in stretches if _rose(own[s.row], s)]
    return sorted(stretches, key=lambda s: (-s.margin, s.row, s.begin))


def _relative(
    own: Floats, values: Floats, keep: NDArray[np.int64], cohorts: Sequence[NDArray[np.int64]]
) -> tuple[Floats, Floats]:
    """The rows of `keep` over those of their cohort, by their usual times and by the times themselves."""
    relative, beside_peers = np.empty_like(own[keep]), np.full(own[keep].shape, np.nan)
    place = np.full(len(own), -1)
    place[keep] = np.arange(keep.size)
    beside_all = cache(lambda: over_others(own[keep]))  # once for all rows that are alone
    for cohort in cohorts:
        members = place[cohort][place[cohort] >= 0]
        if members.size > 1:
            relative[members] = over_others(own[keep[members]])
            beside_peers[members] = over_similar(values[keep[members]])
        elif members.size:
            relative[members] = beside_all()[members]
    return relative, beside_peers


def _rose(own: Floats, stretch: SlowStretch) -> bool:
    """Whether a row's own times rose too. Among few rows, the end of another's slowness looks like the begin
    of this one's. Where a longer batch costs most rows less per token, it looks so of the others."""
    before = own[max(0, stretch.begin - BEFORE) : stretch.begin]
    inside = own[stretch.begin : stretch.end][-BEFORE:]
    if not (np.isfinite(before).any() and np.isfinite(inside).any()):
        return True
    return float(np.nanmedian(inside) / np.nanmedian(before) - 1) >= ROSE * (stretch.ratio - 1)


def slow_against_history(values: Floats, config: FailSlowConfig | None = None) -> list[SlowStretch]:
    """Slow stretches that most rows of `values` [rank, step] share, against their own past. `row` is -1.

    >>> calm = np.tile([1.0, 1.02, 0.99], (6, 40))
    >>> calm[:, 60:90] *= 1.3
    >>> [(s.row, s.begin, s.end) for s in slow_against_history(calm)]
    [(-1, 60, 90)]
    """
    config = config or FailSlowConfig()
    own = over_own_median(values)
    enough = np.isfinite(own).sum(axis=0) * 2 > own.shape[0]
    if not enough.any():
        return []
    job = np.full(own.shape[1], np.nan)
    job[enough] = np.nanmedian(own[:, enough], axis=0)
    return [replace(s, row=-1) for s in _search(job, None, {}, config)]


def _long_enough(values: Floats, width: int) -> bool:
    return bool(values.shape[-1] >= 3 * width)


def _suspects(relative: Floats, config: FailSlowConfig) -> list[int]:
    """A quick look over all rows: those with a window clearly above their own lower quartile, worst first."""
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
    series: Floats, beside_peers: Floats | None, wander: Mapping[int, float], config: FailSlowConfig
) -> list[SlowStretch]:
    """Slow stretches of one series, each once, in order of time. `wander`: noise of all series by width."""
    stretches: list[SlowStretch] = []
    edges: list[int] | None = None
    for scale in config.scales:
        if not _long_enough(series, scale.width):
            continue
        candidates = scan(series, beside_peers, scale, wander.get(scale.width, 0.0), config)
        if candidates and edges is None:
            edges = changes(np.log(series))
        checked = (verified(series, candidate, edges or [], config) for candidate in candidates)
        stretches += [stretch for stretch in checked if stretch is not None]
    return _distinct(stretches)


def _distinct(stretches: Iterable[SlowStretch]) -> list[SlowStretch]:
    """Of stretches that overlap, the one that stands out most."""
    kept: list[SlowStretch] = []
    for stretch in sorted(stretches, key=lambda s: -s.margin):
        if not any(overlap(stretch, k) for k in kept):
            kept.append(stretch)
    return sorted(kept, key=lambda s: s.begin)
