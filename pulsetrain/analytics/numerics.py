"""NaN and infinity, loss spikes and jumps of the gradient norm. None of these rules out silent corruption."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.robust import sigma
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, SubjectType, Verdict

Floats = NDArray[np.float64]

HISTORY = 30  # steps that a step is compared with
HISTORY_NEEDED = 10
SIGMAS = 8.0
LOSS_RISE = 0.2  # least relative rise of the loss that is a spike
NORM_RISE = 2.0  # least relative rise of the gradient norm that is a jump (three times its usual value)
MOST_JUMPS = 4096  # suspicious values that are looked at closely
CAVEAT = "finite and smooth numbers do not rule out silent data corruption"


def find(t: Timings) -> list[Verdict]:
    """Findings of kinds `nan`, `loss_spike` and `grad_norm_jump`. Ranks that do not log are left out; a NaN
    counts only where it was logged."""
    logged = {name: t.logged.get(name, np.zeros((0, 0), np.bool_)) for name in ("loss", "grad_norm")}
    if not any(mask.any() for mask in logged.values()):
        return [
            Inconclusive(analyzer="numerics", reason="no rank logs a loss or a gradient norm", blind=True)
        ]
    found = [f for name, mask in logged.items() if (f := _not_finite(t, name, mask)) is not None]
    found += _jumps(t, "loss", "loss_spike", LOSS_RISE, logged["loss"])
    whole = _jumps(t, "grad_norm", "grad_norm_jump", NORM_RISE, logged["grad_norm"])
    found += whole or _jumps_of_ranks(t, logged["grad_norm"])
    if found:
        return list(found)
    steps = {name: int(mask.any(axis=1).sum()) for name, mask in logged.items()}
    return [Healthy(analyzer="numerics", numbers={"steps_logged": steps, "caveat": CAVEAT})]


def _not_finite(t: Timings, name: str, logged: NDArray[np.bool_]) -> Finding | None:
    """The first NaN or infinity logged: the job's where all that logged then agree, else the rank's."""
    bad = logged & ~np.isfinite(t.numbers[name])
    if not bad.any():
        return None
    row = int(np.argmax(bad.any(axis=1)))
    columns = np.flatnonzero(bad[row])
    alone = len(columns) < int(logged[row].sum())
    subject_type: SubjectType = "rank" if alone and len(columns) == 1 else "job"
    subject = str(t.ranks[columns[0]]) if subject_type == "rank" else t.job
    label = name.replace("_", " ")
    return t.finding(
        "nan",
        subject_type,
        subject,
        severity="critical",
        confidence=0.99,
        summary=f"The {label} is not finite since step {t.steps[row]}"
        + (f", first on rank {subject}." if subject_type == "rank" else "."),
        evidence={
            "query": "analysis.steps",
            "what": name,
            "first_step": int(t.steps[row]),
            "ranks": t.ranks[columns].tolist()[:64],
            "steps_not_finite": int(bad.any(axis=1).sum()),
        },
    )


def _jumps(t: Timings, name: str, kind: str, rise: float, logged: NDArray[np.bool_]) -> list[Finding]:
    """The worst step that is far above the median of the ten before it, in their own noise, if any."""
    whole = logged & np.isfinite(t.numbers[name])
    rows = np.flatnonzero(whole.any(axis=1))
    if len(rows) <= HISTORY_NEEDED:
        return []
    values = np.nanmedian(np.where(whole[rows], t.numbers[name][rows], np.nan), axis=1)
    worst: tuple[float, int, float] | None = None
    for i in range(HISTORY_NEEDED, len(values)):
        past = values[max(0, i - HISTORY) : i]
        usual = float(np.median(past[-HISTORY_NEEDED:]))
        noise = float(sigma(np.diff(past))) / np.sqrt(
            2
        )  # of differences, so that a falling loss is not noise
        height = float(values[i]) - usual
        if height > max(SIGMAS * noise, rise * abs(usual), 1e-12):
            score = height / max(abs(usual), 1e-12)
            worst = max(worst or (0.0, i, usual), (score, i, usual))
    if worst is None:
        return []
    score, at, usual = worst
    label = name.replace("_", " ")
    return [
        t.finding(
            kind,
            "job",
            t.job,
            severity="warning",
            confidence=min(0.97, 0.8 + 0.1 * score / rise * 0.5),
            summary=f"The {label} rose from {usual:.4g} to {values[at]:.4g} at step {t.steps[rows[at]]}.",
            evidence={
                "query": "analysis.steps",
                "step": int(t.steps[rows[at]]),
                "value": float(values[at]),
                "usual": usual,
                "ratio": round(1 + score, 4),
                "caveat": CAVEAT,
            },
        )
    ]


def _jumps_of_ranks(t: Timings, logged: NDArray[np.bool_]) -> list[Finding]:
    """Ranks whose own gradient norm left its past while the others' did not, each at its worst step:
    what they add to the sum differs from what they read or computed before."""
    values = np.where(logged & np.isfinite(t.numbers["grad_norm"]), t.numbers["grad_norm"], np.nan)
    if len(values) <= HISTORY_NEEDED or values.shape[1] < 3:
        return []
    told = np.isfinite(values).any(axis=0)
    columns = np.flatnonzero(told)
    usual = np.nanmedian(values[:, columns], axis=0)
    high = np.argwhere(values[:, columns] > (1 + NORM_RISE) * np.maximum(usual, 1e-12))
    worst: dict[int, tuple[float, int, float]] = {}
    for row, place in high[:MOST_JUMPS].tolist():
        if row >= HISTORY_NEEDED:
            score, before = _left(values[: row + 1, columns[place]])
            if score > max(NORM_RISE, worst.get(place, (0.0, 0, 0.0))[0]):
                worst[place] = (score, row, before)
    if len(worst) * 4 > len(columns):
        return []
    return [_rank_jump(t, int(columns[p]), *worst[p], values) for p in sorted(worst)]


def _left(series: Floats) -> tuple[float, float]:
    """(relative rise of the last value over the median of the ten before, that median); 0 in its noise."""
    past = series[-HISTORY - 1 : -1]
    past = past[np.isfinite(past)]
    if len(past) < HISTORY_NEEDED:
        return 0.0, 0.0
    before = float(np.median(past[-HISTORY_NEEDED:]))
    noise = float(sigma(np.diff(past))) / np.sqrt(2)
    rise = float(series[-1]) - before
    return (rise / max(abs(before), 1e-12) if rise > SIGMAS * noise else 0.0), before


def _rank_jump(t: Timings, column: int, score: float, row: int, before: float, values: Floats) -> Finding:
    rank, node = int(t.ranks[column]), t.node_of(column)
    where = f"rank {rank} on {node}" if node else f"rank {rank}"
    return t.finding(
        "grad_norm_jump",
        "rank",
        str(rank),
        severity="warning",
        confidence=min(0.97, 0.8 + 0.05 * score / NORM_RISE),
        summary=f"The gradient norm of {where} alone rose from {before:.4g} to {values[row, column]:.4g} "
        f"at step {t.steps[row]}.",
        evidence={
            "query": "analysis.steps",
            "step": int(t.steps[row]),
            "value": float(values[row, column]),
            "usual": before,
            "ratio": round(1 + score, 4),
            "caveat": CAVEAT,
        },
    )
