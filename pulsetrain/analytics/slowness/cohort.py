"""By how much each rank's compute exceeds that of the ranks with the same work, and how sure that is.

On a quiet machine a rank's level is the trimmed mean of its steps against their median. On an oversubscribed
host, steps are lengthened by whoever else wants the processor; there the level is a low quantile of the
rank's pieces of work (forward, backward, optimizer): what it needs when nothing gets in its way.
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

NOISY = 0.1  # noise of one step, as a ratio, from which a host counts as oversubscribed
RECENT = 30
QUEUED = 0.03  # share of its time outside communication that the usual rank of a busy host stands in a queue
STARVED = 1 / 3  # share of compute that is waiting, from which levels net of it say little on a noisy host
NOISE_STEPS = 200  # newest steps from which noise is measured

# The median of a small cohort follows its members, and the reference is itself an estimate: by simulation of
# normal noise the 99.9 % quantile of a sound rank's excess is 1 + c/n times that of a large one.
_SMALL = 1.8
_SMALL_LOW = 1.1  # the same for levels that are low quantiles


@dataclass(frozen=True, kw_only=True)
class Work:
    """Compute time of each step and rank. `whole` is its log, `pieces` its parts in ns (pieces x steps x
    ranks), both a token where tokens differ; `low_noise` is the noise of a step in the levels of an
    oversubscribed host, None on a quiet one."""

    whole: Floats
    pieces: Floats
    low_noise: float | None = None


@dataclass(frozen=True, kw_only=True)
class Excess:
    """One window of one cohort: by how much (log) each rank exceeds the reference, and how sure that is."""

    columns: Columns
    rows: Rows
    excess: Floats
    error: Floats
    noise: float  # of one step
    recent: Floats  # excess in the last third of the window, at most `RECENT` steps
    noisy: bool
    apart: Floats | None = None  # on a noisy host: how far (log) quick steps lie beyond the others' slow ones


def work_of(t: Timings, rows: Rows) -> Work:
    """The work of all steps; noise is measured in the newest of the usable `rows`."""
    compute, tokens = t.parts["compute"], t.numbers["tokens"]
    known = tokens[np.isfinite(tokens)]
    per = tokens if len(known) and known.min() > 0 and known.max() > 1.01 * known.min() else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        whole: Floats = np.log(np.where(compute > 0, compute, np.nan) / per)
    names = [n for n in ("forward", "backward", "optimizer") if (t.parts[n][rows] > 0).any()]
    pieces = np.stack([t.parts[n] / per for n in (names or ["compute"])])
    return work_from(whole, pieces, t.cohorts, rows)


def oversubscribed(t: Timings) -> bool:
    """Whether the ranks share fewer processors than they need: the noise of their work says so, or the
    kernel, which counts how long they lately stood in a run queue. What passes in communication is not in
    that count, so it is not in what it is held against."""
    rows = np.flatnonzero(t.usable)
    last = rows[-RECENT:]
    lost, whole, wait = (
        np.nansum(m[last]) for m in (t.parts["cpu_wait"], t.numbers["duration_ns"], t.parts["wait"])
    )
    return (
        t.kept is not None
        or bool(lost > QUEUED * (whole - wait) > 0)
        or work_of(t, rows).low_noise is not None
    )


def queued(t: Timings) -> float:
    """Share of its compute as measured that the usual rank waited for a processor, in the newest steps or, if
    more, in all of them; 0: not known."""
    rows = np.flatnonzero(t.usable)
    waited = t.parts["cpu_wait"][rows]
    if not (waited > 0).any():
        return 0.0
    compute = t.measured("compute")[rows]
    told = (compute > 0) & np.isfinite(waited)
    spans = (slice(-RECENT, None), slice(None))
    return max(
        (float(np.median(waited[s][told[s]] / compute[s][told[s]])) for s in spans if told[s].any()),
        default=0.0,
    )


def by_chance(t: Timings) -> bool:
    """Whether ranks wait so much for processors that chance decides which of them is slow for a while: net of
    the waits their steps still scatter."""
    return queued(t) > STARVED and work_of(t, np.flatnonzero(t.usable)).low_noise is not None


def work_from(whole: Floats, pieces: Floats, cohorts: Sequence[Columns], rows: Rows) -> Work:
    """Any times of steps x columns as work: the log of each, and the pieces that it consists of."""
    bare = Work(whole=whole, pieces=pieces)
    return Work(whole=whole, pieces=pieces, low_noise=_low_noise(cohorts, bare, rows[-NOISE_STEPS:]))


def _low_noise(all_cohorts: Sequence[Columns], work: Work, rows: Rows) -> float | None:
    """The lower median over cohorts, for one with a fault in it is noisier; None on a quiet host."""
    cohorts = [c for c in all_cohorts if len(c) > 2 and _complete(work, rows, c)]
    if not cohorts or not len(rows):
        return None
    quiet = [work.whole[np.ix_(rows, c)] for c in cohorts]
    against = [b - np.median(b, axis=1, keepdims=True) for b in quiet]
    if np.median([robust.sigma(b - np.median(b, axis=0)) for b in against]) <= NOISY:
        return None
    noises = [robust.low_noise(work.pieces[:, rows][:, :, c]) for c in cohorts]
    return robust.lower_median(np.array(noises))


def _complete(work: Work, rows: Rows, columns: Columns) -> bool:
    pieces = work.pieces[:, rows][:, :, columns]
    return bool(np.isfinite(work.whole[np.ix_(rows, columns)]).all() and (pieces > 0).all())


def measure(work: Work, columns: Columns, rows: Rows) -> Excess | None:
    """The cohort's excesses in one window; None where fewer than three ranks can be compared.

    Ranks that miss more than a third of the steps are left out, then steps that any other rank misses.
    """
    block = work.whole[np.ix_(rows, columns)]
    present = np.isfinite(block)
    if not present.all():
        kept = present.mean(axis=0) > 2 / 3
        whole = present[:, kept].all(axis=1)
        if kept.sum() < 3 or whole.sum() < 0.6 * len(rows):
            return None
        block, columns, rows = block[np.ix_(whole, kept)], columns[kept], rows[whole]
    if len(columns) < 3 or len(rows) < 5:
        return None
    if work.low_noise is not None and _complete(work, rows, columns):
        return _noisy(work.pieces[:, rows][:, :, columns], columns, rows, work.low_noise)
    return _quiet(block, columns, rows)


def _recent(rows: Rows) -> int:
    return min(RECENT, max(5, len(rows) // 3))


def _quiet(block: Floats, columns: Columns, rows: Rows) -> Excess:
    against = block - np.median(block, axis=1, keepdims=True)
    level = robust.trimmed_mean(against)
    residuals = against - level
    last = robust.trimmed_mean(against[-_recent(rows) :])
    return Excess(
        columns=columns,
        rows=rows,
        excess=level - robust.lower_median(level),
        error=robust.standard_error(residuals) * (1 + _SMALL / len(columns)),
        noise=float(robust.sigma(residuals)),
        recent=last - robust.lower_median(last),
        noisy=False,
    )


def _noisy(pieces: Floats, columns: Columns, rows: Rows, noise: float) -> Excess:
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
        apart=robust.apart(np.log(pieces.sum(axis=0))),
    )
