"""Time that is neither compute nor communication: waiting for data, and the garbage collector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.newest_steps import in_every_window, newest_first
from pulsetrain.analytics.slowness.robust import lower_median
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Healthy, Inconclusive, Severity, Verdict

Floats = NDArray[np.float64]

STEPS_NEEDED = 10


@dataclass(frozen=True, kw_only=True)
class Stall:
    """One kind of lost time, and the shares of the step time that matter."""

    kind: str
    part: str
    sentence: str
    info: float
    warning: float
    idle: bool  # it passes without a processor, so that waiting in a run queue looks the same


DATA = Stall(kind="data_stall", part="data", sentence="waits for data", info=0.1, warning=0.15, idle=True)
GC = Stall(
    kind="gc_pause", part="gc", sentence="is in the garbage collector", info=0.02, warning=0.08, idle=False
)


def find(timings: Timings, stall: Stall, *, scan: bool = False) -> list[Verdict]:
    """Findings of one kind: the job where most ranks lose the time, else the ranks that lose more.

    A rank's share is its time lost over the time of the newest steps, or else of all usable steps. So a long
    stall in one step weighs by its length. With `scan` it is that of the worst stretch of steps.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> gc, duration = np.zeros((20, 4)), np.full((20, 4), 1e9)
    >>> gc[:, 1] = 1e8
    >>> [finding] = find(from_matrices({"gc": gc, "duration_ns": duration}), GC)
    >>> finding.subject_type, finding.subject, finding.evidence["share"]
    ('rank', '1', 0.1)
    """
    rows = np.flatnonzero(timings.usable)
    if len(rows) < STEPS_NEEDED:
        reason = timings.unusable or f"{len(rows)} usable steps"
        return [Inconclusive(analyzer=stall.kind, reason=reason, blind=bool(timings.unusable))]
    look = in_every_window if scan else newest_first
    return look(rows, lambda some: _among(timings, stall, some))


def _among(timings: Timings, stall: Stall, rows: NDArray[np.int64]) -> list[Verdict]:
    """The verdict on some steps."""
    lost, whole = _lost(timings, stall, rows), timings.numbers["duration_ns"][rows]
    known = np.isfinite(lost) & (whole > 0)
    if not known.any():
        return [Inconclusive(analyzer=stall.kind, reason="no spans in these steps", blind=True)]
    shares = np.where(known, lost, 0).sum(axis=0) / np.maximum(np.where(known, whole, 0).sum(axis=0), 1)
    usual = lower_median(shares)
    if usual >= stall.info:
        return [_finding(timings, stall, float(np.median(shares)), None, rows)]
    worst = np.argsort(-shares)[:8]
    verdicts: list[Verdict] = [
        _finding(timings, stall, float(shares[c]), int(c), rows)
        for c in worst
        if shares[c] - usual >= stall.info
    ]
    return verdicts or [
        Healthy(analyzer=stall.kind, numbers={"highest_share": round(float(shares.max()), 4)})
    ]


def _lost(timings: Timings, stall: Stall, rows: NDArray[np.int64]) -> Floats:
    """The time lost in some steps, without waits in a run queue.

    All of the waits may have passed in an idle kind. In another kind only its share of the step.
    """
    lost, queued = timings.parts[stall.part][rows], np.nan_to_num(timings.parts["cpu_wait"][rows])
    if not stall.idle:
        queued = queued * lost / np.maximum(timings.numbers["duration_ns"][rows], 1.0)
    return np.maximum(lost - queued, 0.0)


def _finding(
    timings: Timings, stall: Stall, share: float, column: int | None, rows: NDArray[np.int64]
) -> Verdict:
    columns = slice(None) if column is None else slice(column, column + 1)
    lost = _lost(timings, stall, rows)[:, columns]
    severity: Severity = "warning" if share >= stall.warning else "info"
    who = "The job" if column is None else f"Rank {timings.ranks[column]} on {timings.node_of(column)}"
    return timings.finding(
        stall.kind,
        "job" if column is None else "rank",
        timings.job if column is None else str(timings.ranks[column]),
        severity=severity,
        confidence=min(0.98, 0.85 + 0.1 * min(1.0, share / stall.warning)),
        summary=f"{who} {stall.sentence} for {share:.0%} of its step time.",
        evidence={
            "query": "analysis.step_parts",
            "share": round(share, 4),
            "longest_ns": int(np.nanmax(lost)),
            "steps_with_any": int((np.nan_to_num(lost).max(axis=1) > 0).sum()),
            "first_step": int(timings.steps[rows[0]]),
            "last_step": int(timings.steps[rows[-1]]),
        },
    )
