"""Ranks without a cohort, compared with their own past.

In a cohort of one or two ranks there is no majority. There a rank is slow where its compute time rose by more
than that of the job's usual rank. Other work on the host can do that too, and it comes and goes. So a small
rise must also last. Where steps came to be other work, or a whole stage takes longer, nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.cohort import Columns, Floats, Rows
from pulsetrain.analytics.slowness.step_work import since_change
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.suspects import Suspect, quiet_floor
from pulsetrain.analytics.slowness.timings import Timings

KEPT_RATIO = 2 / 3  # of the steps that a rank must have, to be waited for in the others
ALIKE = 0.5  # of a rank's excess, by which the other ranks of its stage are as slow
KEPT_ROWS_RATIO = 0.6  # of the steps that must be left then


@dataclass(frozen=True, kw_only=True)
class _Change:
    """By how much (log) each rank's compute rose beyond that of the job, with one entry for each rank."""

    excess: Floats
    rise: Floats  # with that of the job
    error: Floats  # standard error; infinite where steps are missing
    noise: float  # of one step


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Ranks that became slower than they were, the columns that could be compared, and a reason to doubt.

    `doubt`: why a rank that takes longer may just have more work. "" for none.
    """

    suspects: list[Suspect]
    compared: Columns
    doubt: str = ""


def find_changed(
    timings: Timings, work: Floats, columns: Columns, sigmas: float, config: StragglerConfig
) -> Changes:
    """Ranks of `columns` that became slower than they were.

    `work` is the log of compute time [step, rank]. The newest `config.short` usable steps are compared with
    those before, as far back as a step was as much work. Nobody is compared where there are fewer than twice
    as many, nor where fewer than two ranks of the job have all of them. `sigmas` is the margin needed, in
    standard errors.
    """
    size, nobody = config.short, Changes(suspects=[], compared=columns[:0])
    rows = comparable(timings, work) if len(columns) else columns
    if len(rows) < 2 * size:
        return nobody
    change = _change(work[rows[-size:]], work[rows[:-size]])
    if change is None:
        return nobody
    floor = quiet_floor(change.noise, size, config)
    lasting = _lasting(work[rows], sigmas, config)
    slower = columns[change.excess[columns] > np.maximum(sigmas * change.error[columns], floor)]
    doubts = {column: _more_work(timings, change, column, config) for column in slower.tolist()}
    suspects = [
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
        for column, doubt in doubts.items()
        if not doubt
    ]
    compared = columns[np.isfinite(change.error[columns])]
    return Changes(suspects=suspects, compared=compared, doubt=next(filter(None, doubts.values()), ""))


def comparable(timings: Timings, work: Floats) -> Rows:
    """The rows in which ranks are compared with their own past."""
    return since_change(timings, _whole(work, timings.compared))


def _whole(work: Floats, rows: Rows) -> Rows:
    """The rows that no rank misses, except ranks that miss a third of them. All rows if that leaves few."""
    present = np.isfinite(work[rows])
    kept = present.mean(axis=0) > KEPT_RATIO
    whole = present[:, kept].all(axis=1) if kept.any() else np.zeros(len(rows), np.bool_)
    return rows[whole] if whole.mean() >= KEPT_ROWS_RATIO else rows


def _more_work(timings: Timings, change: _Change, column: int, config: StragglerConfig) -> str:
    """Why a rank that takes longer may just have more work. "" for none.

    Either every other rank takes longer too, or the other ranks of its stage do by about as much. One other
    rank of the job says nothing: what slows a rank from outside often slows its neighbour a little.
    """
    known = np.isfinite(change.error)
    others = known & (np.arange(len(known)) != column)
    mates = others & (timings.stages == timings.stages[column])
    longer = f"rank {timings.ranks[column]} computes {np.expm1(change.rise[column]):.0%} longer than before"
    if others.sum() > 1 and change.rise[others].min() > np.log1p(config.short_floor):
        return f"{longer}, and all other ranks take longer too: steps may be more work"
    apart = mates.any() and mates.sum() < others.sum()
    if apart and robust.lower_median(change.excess[mates]) >= ALIKE * change.excess[column]:
        return f"{longer}, and so do the other ranks of its stage: the stage may have more work"
    return ""


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
