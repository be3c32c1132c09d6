"""Ranks without a cohort, compared with their own past.

In a cohort of one or two ranks there is no majority. There a rank is slow where its compute time rose by more
than that of the job's usual rank. Other work on the host can do that too, and it comes and goes. So a small
rise must also last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.cohort import Columns, Floats, Rows
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.suspects import Suspect, quiet_floor
from pulsetrain.analytics.slowness.timings import Timings

KEPT_RATIO = 2 / 3  # of the steps that a rank must have, to be waited for in the others
KEPT_ROWS_RATIO = 0.6  # of the steps that must be left then


@dataclass(frozen=True, kw_only=True)
class _Change:
    """By how much (log) each rank's compute rose beyond that of the job, with one entry for each rank."""

    excess: Floats
    rise: Floats  # with that of the job
    error: Floats  # standard error; infinite where steps are missing
    noise: float  # of one step


def find_changed(
    timings: Timings, work: Floats, columns: Columns, sigmas: float, config: StragglerConfig
) -> list[Suspect]:
    """Ranks of `columns` that became slower than they were.

    `work` is the log of compute time [step, rank]. The newest `config.short` usable steps are compared with
    those before. Nothing is found where there are fewer than twice as many, nor where fewer than two ranks of
    the job have all of them. `sigmas` is the margin needed, in standard errors.
    """
    rows, size = _whole(work, timings.compared), config.short
    if not len(columns) or len(rows) < 2 * size:
        return []
    change = _change(work[rows[-size:]], work[rows[:-size]])
    if change is None:
        return []
    floor = quiet_floor(change.noise, size, config)
    lasting = _lasting(work[rows], sigmas, config)
    return [
        Suspect(
            subject_type="rank",
            subject=str(timings.ranks[column]),
            columns=np.array([column]),
            rows=rows[-size:],
            excess=float(change.excess[column]),
            error=float(change.error[column]),
            noise=change.noise,
            by_history=True,
            lasting=bool(lasting[column]),
        )
        for column in columns.tolist()
        if change.excess[column] > max(sigmas * change.error[column], floor)
        and not _all_rose(change, column, config)
    ]


def _whole(work: Floats, rows: Rows) -> Rows:
    """The rows that no rank misses, except ranks that miss a third of them. All rows if that leaves few."""
    present = np.isfinite(work[rows])
    kept = present.mean(axis=0) > KEPT_RATIO
    whole = present[:, kept].all(axis=1) if kept.any() else np.zeros(len(rows), np.bool_)
    return rows[whole] if whole.mean() >= KEPT_ROWS_RATIO else rows


def _all_rose(change: _Change, column: int, config: StragglerConfig) -> bool:
    """Whether every other rank takes longer too: the job does more work, and not each rank the same.

    One other rank says nothing: what slows a rank from outside often slows its neighbour a little.
    """
    others = np.delete(change.rise, column)
    others = others[np.isfinite(np.delete(change.error, column))]
    return bool(len(others) > 1 and others.min() > np.log1p(config.short_floor))


def _change(recent: Floats, past: Floats) -> _Change | None:
    """`recent` against `past`. None where fewer than two ranks have all steps of both."""
    complete = has_all(recent) & has_all(past)
    if complete.sum() < 2:
        return None
    rise = robust.trimmed_mean(recent) - _usual_level(past, len(recent))
    own = (recent - robust.trimmed_mean(recent))[:, complete]
    error = np.full(len(rise), np.inf)
    error[complete] = robust.standard_error(own) * np.sqrt(2)
    common = max(0.0, robust.lower_median(rise[complete]))  # that another is quick again accuses nobody
    return _Change(excess=rise - common, rise=rise, error=error, noise=float(robust.sigma(own)))


def _lasting(work: Floats, sigmas: float, config: StragglerConfig) -> NDArray[np.bool_]:
    """For each rank, whether it was slower than before in each of the newest `config.lasting` stretches."""
    size, begin = config.short, len(work) - config.short * config.lasting
    result = np.zeros(work.shape[1], np.bool_)
    if begin < size:
        return result
    result[:] = True
    for first in range(begin, len(work), size):
        change = _change(work[first : first + size], work[:begin])
        if change is None:
            return np.zeros_like(result)
        result &= change.excess > np.maximum(sigmas * change.error, np.log1p(config.warning_ratio))
    return result


def _usual_level(past: Floats, size: int) -> Floats:
    """The lower quartile of the levels of blocks of `size` steps, counted back from the newest."""
    ends = range(len(past), size - 1, -size)
    levels = np.stack([robust.trimmed_mean(past[end - size : end]) for end in ends])
    return np.asarray(np.quantile(levels, 0.25, axis=0, method="higher"))


def has_all(values: Floats) -> NDArray[np.bool_]:
    """Columns in which no value is missing."""
    return np.asarray(np.isfinite(values).all(axis=0), np.bool_)
