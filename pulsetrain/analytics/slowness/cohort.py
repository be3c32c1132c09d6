"""By how much each rank's compute exceeds that of the ranks with the same work, and how sure that is.

On a quiet host a rank's level is the trimmed mean of its steps relative to the cohort's median in each step.
On an oversubscribed host, other processes lengthen some steps. There the level is a low quantile of each of
the rank's pieces of work (forward, backward, optimizer): the time it needs when nothing gets in its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.timings import Timings

Floats = NDArray[np.float64]
Columns = NDArray[np.int64]
Rows = NDArray[np.int64]

NO_COMPUTE = "no compute spans in these steps"
NOISY = 0.1  # noise of one step, as a ratio, from which a host counts as oversubscribed
RECENT = 30  # newest steps in which it is seen whether a host is oversubscribed and a rank still slow
QUEUE_RATIO = 0.03  # of the time outside communication, from which waits for a processor count as many
STARVED_RATIO = 1 / 3  # of compute spent waiting, from which levels net of waits say little on a noisy host
LEAST_WHOLE = 0.6  # of the steps of a window, which all ranks that are compared must have
NOISE_STEPS = 200  # newest steps from which noise is measured

# The median of a small cohort follows its members, and the reference is itself an estimate. By simulation of
# normal noise the 99.9 % quantile of a sound rank's excess is 1 + c/n times that of a large cohort.
_SMALL = 1.8
_SMALL_LOW = 1.1  # the same for levels that are low quantiles


@dataclass(frozen=True, kw_only=True)
class Work:
    """Compute time of each step and rank, per token where the tokens of steps differ.

    `low_noise` is the noise of a step in the levels of an oversubscribed host. None on a quiet host.
    """

    whole: Floats  # log of the compute time [step, rank]
    pieces: Floats  # its parts in ns [piece, step, rank]
    low_noise: float | None = None


@dataclass(frozen=True, kw_only=True)
class Excess:
    """One cohort in one window of steps: by how much (log) each rank exceeds the reference."""

    columns: Columns
    rows: Rows
    excess: Floats
    error: Floats  # standard error of `excess`
    noise: float  # of one step
    recent: Floats  # excess in the last third of the window, at most `RECENT` steps
    noisy: bool
    quartile_gap: Floats | None = None  # on a noisy host: see `robust.quartile_gap`


def work_of(timings: Timings, rows: Rows) -> Work:
    """The work of all steps. Noise is measured in the newest of the usable `rows`."""
    compute, tokens = timings.parts["compute"], timings.varying_tokens()
    with np.errstate(divide="ignore", invalid="ignore"):
        whole: Floats = np.log(np.where(compute > 0, compute, np.nan) / tokens)
    names = [n for n in ("forward", "backward", "optimizer") if (timings.parts[n][rows] > 0).any()]
    pieces = np.stack([timings.parts[n] / tokens for n in (names or ["compute"])])
    return work_from(whole, pieces, timings.cohorts, rows)


def oversubscribed(timings: Timings) -> bool:
    """Whether chance may slow ranks: they queue for processors, or their steps scatter as if they did."""
    return queues(timings) or work_of(timings, np.flatnonzero(timings.usable)).low_noise is not None


def queues(timings: Timings) -> bool:
    """Whether the kernel counted that ranks lately waited in a run queue: they share too few processors.

    The count leaves out communication, so it is compared with the time outside of it.
    """
    rows = np.flatnonzero(timings.usable)
    last = rows[-RECENT:]
    matrices = (timings.parts["cpu_wait"], timings.numbers["duration_ns"], timings.parts["wait"])
    queued, whole, communication = (np.nansum(matrix[last]) for matrix in matrices)
    return timings.running_ratio is not None or bool(queued > QUEUE_RATIO * (whole - communication) > 0)


def processor_wait_ratio(timings: Timings) -> float:
    """Share of its measured compute that the usual rank waited for a processor. 0: not known.

    The larger of the share in the newest steps and the share in all usable steps.
    """
    rows = np.flatnonzero(timings.usable)
    waited = timings.parts["cpu_wait"][rows]
    if not (waited > 0).any():
        return 0.0
    compute = timings.measured("compute")[rows]
    known = (compute > 0) & np.isfinite(waited)
    spans = (slice(-RECENT, None), slice(None))
    return max(
        (float(np.median(waited[s][known[s]] / compute[s][known[s]])) for s in spans if known[s].any()),
        default=0.0,
    )


def slowness_is_chance(timings: Timings) -> bool:
    """Whether ranks wait so much for processors that chance decides which one is slow for a while.

    So it is where much of compute is waiting and steps still scatter net of the waits.
    """
    if processor_wait_ratio(timings) <= STARVED_RATIO:
        return False
    return work_of(timings, np.flatnonzero(timings.usable)).low_noise is not None


def work_from(whole: Floats, pieces: Floats, cohorts: Sequence[Columns], rows: Rows) -> Work:
    """Any times [step, column] as work: the log of each, and the pieces that it consists of."""
    bare = Work(whole=whole, pieces=pieces)
    return Work(whole=whole, pieces=pieces, low_noise=_low_noise(cohorts, bare, rows[-NOISE_STEPS:]))


def measure(work: Work, columns: Columns, rows: Rows) -> Excess | None:
    """The excess of each rank of a cohort in one window. None where fewer than three ranks can be compared.

    Ranks that miss more than a third of the steps are left out, then steps that any other rank misses. Where
    fewer than `LEAST_WHOLE` of the steps would be left, ranks that miss most are left out first.
    """
    block = work.whole[np.ix_(rows, columns)]
    present = np.isfinite(block)
    if not present.all():
        kept = _with_few_gaps(present)
        whole = present[:, kept].all(axis=1)
        if kept.sum() < 3 or whole.mean() < LEAST_WHOLE:
            return None
        block, columns, rows = block[np.ix_(whole, kept)], columns[kept], rows[whole]
    if len(columns) < 3 or len(rows) < 5:
        return None
    if work.low_noise is not None and _complete(work, rows, columns):
        return _on_noisy_host(work.pieces[:, rows][:, :, columns], columns, rows, work.low_noise)
    return _on_quiet_host(block, columns, rows)


def _with_few_gaps(present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The ranks that have enough steps in common, of `present` [step, rank]."""
    kept = np.asarray(present.mean(axis=0) > 2 / 3, np.bool_)
    missing = (~present[:, kept]).sum(axis=1)
    steps = present.sum(axis=0)
    for column in np.flatnonzero(kept)[np.argsort(steps[kept], kind="stable")].tolist():
        if (missing == 0).mean() >= LEAST_WHOLE:
            break
        kept[column] = False
        missing = missing - ~present[:, column]
    return kept


def _low_noise(all_cohorts: Sequence[Columns], work: Work, rows: Rows) -> float | None:
    """The lower median over cohorts, since a cohort with a fault is noisier. None on a quiet host."""
    cohorts = [c for c in all_cohorts if len(c) > 2 and _complete(work, rows, c)]
    if not cohorts or not len(rows):
        return None
    blocks = [work.whole[np.ix_(rows, c)] for c in cohorts]
    relative = [b - np.median(b, axis=1, keepdims=True) for b in blocks]
    if np.median([robust.sigma(b - np.median(b, axis=0)) for b in relative]) <= NOISY:
        return None
    noises = [robust.low_noise(work.pieces[:, rows][:, :, c]) for c in cohorts]
    return robust.lower_median(np.array(noises))


def _complete(work: Work, rows: Rows, columns: Columns) -> bool:
    pieces = work.pieces[:, rows][:, :, columns]
    return bool(np.isfinite(work.whole[np.ix_(rows, columns)]).all() and (pieces > 0).all())


def _recent(rows: Rows) -> int:
    return min(RECENT, max(5, len(rows) // 3))


def _on_quiet_host(block: Floats, columns: Columns, rows: Rows) -> Excess:
    relative = block - np.median(block, axis=1, keepdims=True)
    level = robust.trimmed_mean(relative)
    residuals = relative - level
    last = robust.trimmed_mean(relative[-_recent(rows) :])
    return Excess(
        columns=columns,
        rows=rows,
        excess=level - robust.lower_median(level),
        error=robust.standard_error(residuals) * (1 + _SMALL / len(columns)),
        noise=float(robust.sigma(residuals)),
        recent=last - robust.lower_median(last),
        noisy=False,
    )


def _on_noisy_host(pieces: Floats, columns: Columns, rows: Rows, noise: float) -> Excess:
    level = robust.low_level(pieces)
    last = robust.low_level(pieces[:, -_recent(rows) :])
    error = noise / np.sqrt(len(rows)) * (1 + _SMALL_LOW / len(columns))
    return Excess(
        columns=columns,
        rows=rows,
        excess=level - robust.lower_median(level),
        error=np.full(len(columns), error),
        noise=noise,
        recent=last - robust.lower_median(last),
        noisy=True,
        quartile_gap=robust.quartile_gap(np.log(pieces.sum(axis=0))),
    )
