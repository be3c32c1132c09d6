"""Work that is spread unevenly by design or by data: pipeline stages, and sequence lengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.timings import Timings
from pulsetrain.analytics.verdict import Healthy, Inconclusive, Verdict, findings

Floats = NDArray[np.float64]

STEPS_NEEDED = 10
RECENT = 40  # newest steps, judged first: what has just begun is not hidden in the hour before it
STAGE_INFO = 1.25  # a stage's compute over that of the others, from which it is told
STAGE_WARNING = 1.4  # from which it asks for action
CORRELATION = 0.75  # of forward with backward time that only the amount of work explains
SPREAD = 0.1  # how much longer than its cohort the heaviest rank of a step computes


def stages(t: Timings) -> list[Verdict]:
    """Findings of kind `stage_imbalance`: a pipeline stage that has more work than the others in nearly all
    steps. A stage's time is the lower median of its ranks, so that half a stage of stragglers is none."""
    rows = np.flatnonzero(t.usable)
    numbers = np.unique(t.stages[t.stages >= 0])
    if len(numbers) < 2:
        return [
            Inconclusive(
                analyzer="stage_imbalance", reason="fewer than two stages are known", blind=not t.placed
            )
        ]
    if len(rows) < STEPS_NEEDED:
        return [Inconclusive(analyzer="stage_imbalance", reason=f"{len(rows)} usable steps")]
    newest = _stages_in(t, rows[-RECENT:], numbers)
    return newest if len(rows) <= RECENT or findings(newest) else _stages_in(t, rows, numbers)


def _stages_in(t: Timings, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> list[Verdict]:
    """The verdict on some steps."""
    levels = np.stack([_lower_median(t.parts["compute"][np.ix_(rows, t.stages == s)]) for s in numbers])
    if not (levels > 0).all():
        return [Inconclusive(analyzer="stage_imbalance", reason="no compute spans", blind=True)]
    found: list[Verdict] = []
    for place, stage in enumerate(numbers.tolist()):
        ratios = levels[place] / np.median(np.delete(levels, place, axis=0), axis=0)
        ratio = float(np.median(ratios))
        steady = float((ratios > 1 + (ratio - 1) / 2).mean())
        if ratio < STAGE_INFO or steady < 0.8:
            continue
        found.append(
            t.finding(
                "stage_imbalance",
                "stage",
                str(stage),
                severity="warning" if ratio >= STAGE_WARNING else "info",
                confidence=0.9 + 0.09 * steady * min(1.0, ratio - 1),
                summary=f"Pipeline stage {stage} computes {ratio:.2f} times as long as the others.",
                evidence={
                    "query": "analysis.step_parts",
                    "ratio": round(ratio, 4),
                    "share_of_steps": round(steady, 4),
                    "compute_ns": {str(s): int(np.median(v)) for s, v in zip(numbers, levels, strict=True)},
                    "ranks": t.ranks[t.stages == stage].tolist()[:64],
                    "first_step": int(t.steps[rows[0]]),
                    "last_step": int(t.steps[rows[-1]]),
                },
            )
        )
    return found or [
        Healthy(analyzer="stage_imbalance", numbers={"stages": len(numbers), "steps": len(rows)})
    ]


def _lower_median(block: Floats) -> Floats:
    """Lower median of each row; missing ranks count as slowest."""
    middle = max(0, (block.shape[1] - 1) // 2)
    filled = np.where(np.isfinite(block), block, np.inf)
    result = np.partition(filled, middle, axis=1)[:, middle]
    return np.where(np.isfinite(result), result, 0.0)


def sequences(t: Timings) -> list[Verdict]:
    """Findings of kind `sequence_imbalance`: the heaviest rank changes from step to step, and forward and
    backward times rise together, as only the amount of work makes them (arXiv 2505.05713)."""
    rows = np.flatnonzero(t.usable)
    if len(rows) < 2 * STEPS_NEEDED:
        return [Inconclusive(analyzer="sequence_imbalance", reason=f"{len(rows)} usable steps")]
    newest = _sequences_in(t, rows[-RECENT:])
    return newest if len(rows) <= RECENT or findings(newest) else _sequences_in(t, rows)


def _sequences_in(t: Timings, rows: NDArray[np.int64]) -> list[Verdict]:
    """The verdict on some steps."""
    pairs = [_cohort(t, rows, columns) for columns in t.cohorts if len(columns) > 1]
    known = [p for p in pairs if p is not None]
    if not known:
        reason = "no forward and backward spans of two ranks with the same work"
        return [Inconclusive(analyzer="sequence_imbalance", reason=reason, blind=True)]
    correlation = float(np.median([p[0] for p in known]))
    spread = float(np.median([p[1] for p in known]))
    numbers = {"correlation": round(correlation, 4), "spread": round(spread, 4), "steps": len(rows)}
    if correlation < CORRELATION or spread < SPREAD:
        return [Healthy(analyzer="sequence_imbalance", numbers=numbers)]
    return [
        t.finding(
            "sequence_imbalance",
            "job",
            t.job,
            severity="info" if spread < 3 * SPREAD else "warning",
            confidence=min(0.97, 0.7 + 0.25 * min(1.0, (correlation - CORRELATION) / 0.2)),
            summary=f"Ranks get unequal sequences: the heaviest of a step computes {spread:.0%} longer.",
            evidence={"query": "analysis.step_parts", **numbers},
        )
    ]


def _cohort(t: Timings, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[float, float] | None:
    """(median correlation of a rank's forward with its backward excess, median spread); None: not told.

    A rank's own level is taken out, so that a slow rank is no imbalance of sequences.
    """
    forward, backward = (t.parts[name][np.ix_(rows, columns)] for name in ("forward", "backward"))
    if not ((forward > 0) & (backward > 0)).all():
        return None
    excess = [_excess(np.log(part)) for part in (forward, backward)]
    scale = np.sqrt((excess[0] ** 2).mean(axis=0) * (excess[1] ** 2).mean(axis=0))
    correlations = (excess[0] * excess[1]).mean(axis=0) / np.maximum(scale, 1e-12)
    whole = _excess(np.log(forward + backward))
    return float(np.median(correlations)), float(np.median(np.expm1(whole.max(axis=1))))


def _excess(logs: Floats) -> Floats:
    against = logs - np.median(logs, axis=1, keepdims=True)
    result: Floats = against - np.median(against, axis=0)
    return result
