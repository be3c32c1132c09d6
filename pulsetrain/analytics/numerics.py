"""NaN and infinity, loss spikes and jumps of the gradient norm. None of these rules out silent corruption."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.robust import sigma
from pulsetrain.analytics.timings import Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, SubjectType, Verdict

Floats = NDArray[np.float64]

HISTORY = 30  # steps that a step is compared with
HISTORY_NEEDED = 10
SIGMAS = 8.0
LOSS_RISE = 0.2  # least relative rise of the loss that is a spike
NORM_RISE = 2.0  # least relative rise of the gradient norm that is a jump (three times its usual value)
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
    found += _jumps(t, "grad_norm", "grad_norm_jump", NORM_RISE, logged["grad_norm"])
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
