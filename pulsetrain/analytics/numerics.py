"""NaN and infinity, overflows of gradients, loss spikes, and jumps of the gradient norm.

None of these findings, and no lack of them, rules out silent data corruption.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.robust import sigma
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, SubjectType, Verdict

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

NOISE_STEPS = 30  # steps before a step from which the noise is estimated
MIN_STEPS = 10  # steps before a step that are needed; their median is what is usual
NOISE_SIGMAS = 8.0
MIN_LOSS_RISE = 0.2  # least relative rise of the loss that is a spike
MIN_NORM_RISE = 2.0  # least relative rise of the gradient norm that is a jump: three times its usual value
NEAR_ZERO_SIGMAS = 3.0  # of the noise, below which the usual loss is as good as zero
EXCURSIONS = 3.0  # times the largest one before, from which a loss around zero has a spike
MAX_CHECKED = 4096  # high values of single ranks that are looked at closely
MOST_RANKS = 8  # that are named by findings of their own
MAX_RANK_SHARE = 0.25  # where more of the ranks jump, it is not the fault of single ranks
LASTING = 10  # logged steps in a row, up to the newest, that are more than overflows of a loss scaler
OFTEN_RATIO = (
    0.2  # of the newer half of the logged steps, from which overflows are more than tries of a scaler
)
OFTEN_LOGGED = 50  # logged steps that tell that: a scaler begins with a scale that is too large
FROM_THE_START = "Look at the script's initialization and its data first. The {what} was never finite."
CAVEAT = "finite and smooth numbers do not rule out silent data corruption"
_TINY = 1e-12  # keeps ratios finite


@dataclass(frozen=True, order=True)
class _Jump:
    """A rise at one step. `rise` is relative to `usual`, the median of the steps before.

    `near_zero`: these lie around zero, and `rise` is relative to the largest excursion among them.
    """

    rise: float
    row: int
    usual: float
    value: float
    near_zero: bool = False

    def evidence(self, timings: Timings) -> dict[str, object]:
        return {
            "query": "analysis.steps",
            "step": int(timings.steps[self.row]),
            "value": self.value,
            "usual": self.usual,
            **({"excursions": round(self.rise, 4)} if self.near_zero else {"ratio": round(1 + self.rise, 4)}),
            "caveat": CAVEAT,
        }


def find(timings: Timings) -> list[Verdict]:
    """Return findings of kinds `nan`, `grad_overflow`, `loss_spike` and `grad_norm_jump`.

    Ranks that log nothing are left out, and so are those that log a NaN in place of a loss that they do not
    have. A NaN counts only where it was logged. The verdict is blind where no rank logs a loss or a gradient
    norm.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> loss = np.array([[2.0], [np.nan]])
    >>> timings = from_matrices({"loss": loss}, job="j")
    >>> timings.logged["loss"] = np.ones_like(loss, np.bool_)
    >>> [finding.summary for finding in find(timings)]
    ['The loss is not finite since step 1.']
    """
    logged = {name: _logged(timings, name) for name in ("loss", "grad_norm")}
    without = _without_loss(timings, logged["loss"])
    logged["loss"] = logged["loss"] & ~without
    if not any(mask.any() for mask in logged.values()):
        return [
            Inconclusive(analyzer="numerics", reason="no rank logs a loss or a gradient norm", blind=True)
        ]
    overflows = _overflows(timings, logged)
    findings = [overflows] if overflows else []
    of_what = ("loss",) if overflows else ("loss", "grad_norm")
    findings += [f for name in of_what if (f := _not_finite(timings, name, logged[name])) is not None]
    skipped = tuple(pair for pair in timings.skipped if pair[1] not in set(timings.ranks[without].tolist()))
    if skipped and not _bad(timings, "loss", logged["loss"]).any():
        findings.append(_not_finite_before(replace(timings, skipped=skipped)))
    findings += _jumps_of_job(timings, "loss", "loss_spike", MIN_LOSS_RISE, logged["loss"])
    norm = logged["grad_norm"]
    norm_jumps = _jumps_of_job(timings, "grad_norm", "grad_norm_jump", MIN_NORM_RISE, norm)
    findings += norm_jumps or _jumps_of_ranks(timings, norm)
    if findings:
        return list(findings)
    steps = {name: int(mask.any(axis=1).sum()) for name, mask in logged.items()}
    return [Healthy(analyzer="numerics", numbers={"steps_logged": steps, "caveat": CAVEAT})]


def _logged(timings: Timings, name: str) -> Mask:
    return timings.logged.get(name, np.zeros(timings.numbers[name].shape, np.bool_))


def _without_loss(timings: Timings, logged: Mask) -> Mask:
    """Return which ranks log a NaN in place of a loss, as stages of a pipeline without one do.

    Their losses were never finite, and those of another rank are, in all of its steps or in `MIN_STEPS`. A
    NaN that is real is in the weights of all ranks one step later.
    """
    finite = logged & np.isfinite(timings.numbers["loss"])
    always = logged.any(axis=0) & (finite == logged).all(axis=0)
    has_loss = always | (finite.sum(axis=0) >= MIN_STEPS)
    return np.asarray(logged.any(axis=0) & ~finite.any(axis=0) & has_loss.any(), np.bool_)


def _bad(timings: Timings, name: str, logged: Mask) -> Mask:
    return np.asarray(logged & ~np.isfinite(timings.numbers[name]), np.bool_)


def _of_steps(mask: Mask) -> Mask:
    """Whether it is so on any rank, for each step."""
    return np.asarray(mask.any(axis=1), np.bool_)


def _at_the_end(bad: Mask) -> int:
    """Return how many of the newest values are true in a row."""
    return len(bad) if bad.all() else int(np.argmin(bad[::-1]))


def _overflows(timings: Timings, logged: dict[str, Mask]) -> Finding | None:
    """Return what is known of gradients that overflowed now and then beside a loss that was always finite.

    A loss scaler for fp16 tries a larger scale from time to time, and skips the step that overflows (torch,
    `torch.amp.GradScaler`). That is how it works, and nobody's fault. Where it skips many steps for long, no
    scale fits, and the model hardly learns.
    """
    known = _of_steps(logged["grad_norm"])
    bad = _of_steps(_bad(timings, "grad_norm", logged["grad_norm"]))[known]
    if not bad.any() or _at_the_end(bad) >= LASTING or _bad(timings, "loss", logged["loss"]).any():
        return None
    steps, newer = timings.steps[known][bad], bad[len(bad) // 2 :]
    often = len(bad) >= OFTEN_LOGGED and float(newer.mean()) >= OFTEN_RATIO
    skips = f" A loss scaler skips such updates: {newer.sum()} of the newest {len(newer)}." if often else ""
    return timings.finding(
        "grad_overflow",
        "job",
        timings.job,
        severity="warning" if often else "info",
        confidence=0.9,
        summary=f"The gradient norm overflowed in {len(steps)} of {len(bad)} steps, last at {steps[-1]}."
        + skips,
        evidence={
            "query": "analysis.steps",
            "what": "grad_norm",
            "first_step": int(steps[0]),
            "steps_not_finite": len(steps),
            "steps_logged": len(bad),
        },
    )


def _not_finite(timings: Timings, name: str, logged: Mask) -> Finding | None:
    """Return the first NaN or infinity. It is a rank's where the rank alone has it at that step.

    It is said to be so "since" then if no later step is finite.
    """
    bad = _bad(timings, name, logged)
    if not bad.any():
        return None
    row = int(np.argmax(bad.any(axis=1)))
    columns = np.flatnonzero(bad[row])
    alone = len(columns) == 1 and int(logged[row].sum()) > 1
    subject_type: SubjectType = "rank" if alone else "job"
    subject = str(timings.ranks[columns[0]]) if alone else timings.job
    steps_bad, steps_logged = (int(mask.any(axis=1).sum()) for mask in (bad, logged))
    lasts = _at_the_end(_of_steps(bad)[_of_steps(logged)]) == steps_bad
    when = (
        "is not finite since" if lasts else f"was not finite in {steps_bad} of {steps_logged} steps, first at"
    )
    never = not alone and int(timings.steps[row]) == 0 and steps_bad == steps_logged
    advice = {"suggested_action": FROM_THE_START.format(what=_label(name))} if never else {}
    return timings.finding(
        "nan",
        subject_type,
        subject,
        severity="critical",
        confidence=0.99,
        summary=f"The {_label(name)} {when} step {timings.steps[row]}"
        + (f", first on rank {subject}." if alone else "."),
        evidence={
            "query": "analysis.steps",
            "what": name,
            "first_step": int(timings.steps[row]),
            "ranks": timings.ranks[columns].tolist()[:64],
            "steps_not_finite": steps_bad,
            **advice,
        },
    )


def _not_finite_before(timings: Timings) -> Finding:
    """A loss that was not finite in steps that went by between two looks, and is finite now."""
    first = timings.skipped[0][0]
    ranks = [rank for step, rank in timings.skipped if step == first]
    alone = len(ranks) == 1 and len(timings.ranks) > 1
    count = len({step for step, _ in timings.skipped})
    often = "one step" if count == 1 else f"{count} steps"
    return timings.finding(
        "nan",
        "rank" if alone else "job",
        str(ranks[0]) if alone else timings.job,
        severity="critical",
        confidence=0.99,
        summary=f"The loss was not finite in {often}, first at step {first}"
        + (f" on rank {ranks[0]}." if alone else "."),
        evidence={
            "query": "analysis.losses_not_finite",
            "what": "loss",
            "first_step": first,
            "ranks": ranks,
            "steps_not_finite": count,
        },
    )


def _label(name: str) -> str:
    return {"loss": "loss", "grad_norm": "gradient norm"}[name]


def _jumps_of_job(timings: Timings, name: str, kind: str, min_rise: float, logged: Mask) -> list[Finding]:
    """Return the highest jump of the median over ranks, if there is one beyond the noise.

    A loss around zero, as that of a policy, has no usual size. There a jump must stand out from all that was
    before, and is information. A sum over more tokens, as where more batches are accumulated, is no jump.
    """
    finite = logged & np.isfinite(timings.numbers[name])
    rows = np.flatnonzero(finite.any(axis=1))
    if len(rows) <= MIN_STEPS:
        return []
    values = np.nanmedian(np.where(finite[rows], timings.numbers[name][rows], np.nan), axis=1)
    tokens = _tokens(timings)[rows]
    jumps = []
    for i in _high(values, min_rise):
        past = values[max(0, i - NOISE_STEPS) : i]
        usual, noise = _usual_and_noise(past)
        height = float(values[i]) - usual
        largest = float(np.abs(past - usual).max())
        around = past.min() < 0 < past.max() or abs(usual) < NEAR_ZERO_SIGMAS * noise
        near_zero = bool(name == "loss" and around)
        rise = height / max(largest if near_zero else abs(usual), _TINY)
        if not near_zero and rise <= (1 + min_rise) * _growth(tokens, i) - 1:
            continue
        if height > NOISE_SIGMAS * noise and (not near_zero or rise >= EXCURSIONS):
            jumps.append(_Jump(rise, int(rows[i]), usual, float(values[i]), near_zero))
    if not jumps:
        return []
    jump = max(jumps, key=lambda jump: (not jump.near_zero, jump))
    return [
        timings.finding(
            kind,
            "job",
            timings.job,
            severity="info" if jump.near_zero else "warning",
            confidence=min(0.97, 0.8 + 0.1 * jump.rise / min_rise * 0.5),
            summary=f"The {_label(name)} rose from {jump.usual:.4g} to {jump.value:.4g} "
            f"at step {timings.steps[jump.row]}.",
            evidence=jump.evidence(timings),
        )
    ]


def _tokens(timings: Timings) -> Floats:
    """Return the tokens of a step, as the median over the ranks that counted them. NaN: none did."""
    counted = timings.numbers["tokens"]
    counted = np.where(counted > 0, counted, np.nan)
    known = np.isfinite(counted).any(axis=1)
    tokens = np.full(len(counted), np.nan)
    tokens[known] = np.nanmedian(counted[known], axis=1)
    return tokens


def _growth(tokens: Floats, i: int) -> float:
    """Return how many times the usual tokens step `i` has, at least 1. 1 where they are not known."""
    past = tokens[max(0, i - MIN_STEPS) : i]
    past = past[np.isfinite(past)]
    if not len(past) or not np.isfinite(tokens[i]):
        return 1.0
    return max(1.0, float(tokens[i] / np.median(past)))


def _high(values: Floats, min_rise: float) -> list[int]:
    """Positions of values that rise far enough above the median of those before. Most steps are none."""
    usual = np.median(np.lib.stride_tricks.sliding_window_view(values[:-1], MIN_STEPS), axis=1)
    height = values[MIN_STEPS:] - usual
    high = height > np.maximum(min_rise * np.abs(usual), _TINY)
    return (np.flatnonzero(high) + MIN_STEPS).tolist()


def _usual_and_noise(past: Floats) -> tuple[float, float]:
    """Return the median of the last steps, and the noise of one step.

    The noise is taken from differences of neighbours, so that a falling loss is no noise.
    """
    return float(np.median(past[-MIN_STEPS:])), float(sigma(np.diff(past))) / np.sqrt(2)


def _jumps_of_ranks(timings: Timings, logged: Mask) -> list[Finding]:
    """Return the highest jump of each rank whose own gradient norm rose while those of most did not.

    Such a rank adds to the sum something that differs from what it computed before. Of many ranks, those that
    rose most are named, and the others are counted.
    """
    values = np.where(
        logged & np.isfinite(timings.numbers["grad_norm"]), timings.numbers["grad_norm"], np.nan
    )
    if len(values) <= MIN_STEPS or values.shape[1] < 3:
        return []
    columns = np.flatnonzero(np.isfinite(values).any(axis=0))
    usual = np.nanmedian(values[:, columns], axis=0)
    high = np.argwhere(values[:, columns] > (1 + MIN_NORM_RISE) * np.maximum(usual, _TINY))
    highest: dict[int, _Jump] = {}
    for row, position in high[:MAX_CHECKED].tolist():
        column = int(columns[position])
        jump = _jump_at(values[:, column], row) if row >= MIN_STEPS else None
        if jump is not None and (column not in highest or jump.rise > highest[column].rise):
            highest[column] = jump
    if len(highest) > MAX_RANK_SHARE * len(columns):
        return []
    named = sorted(highest, key=lambda column: (highest[column], -column), reverse=True)[:MOST_RANKS]
    others = len(highest) - len(named)
    return [_rank_finding(timings, column, highest[column], others) for column in sorted(named)]


def _jump_at(series: Floats, row: int) -> _Jump | None:
    """Return the jump of one rank at `row`, or None where the rise is within the noise or too small."""
    past = series[max(0, row - NOISE_STEPS) : row]
    past = past[np.isfinite(past)]
    if len(past) < MIN_STEPS:
        return None
    usual, noise = _usual_and_noise(past)
    height = float(series[row]) - usual
    rise = height / max(abs(usual), _TINY)
    if height <= NOISE_SIGMAS * noise or rise <= MIN_NORM_RISE:
        return None
    return _Jump(rise, row, usual, float(series[row]))


def _rank_finding(timings: Timings, column: int, jump: _Jump, others: int) -> Finding:
    rank, node = int(timings.ranks[column]), timings.node_of(column)
    where = f"rank {rank} on {node}" if node else f"rank {rank}"
    who, more = (where, f" Those of {others:,} other ranks rose less.") if others else (f"{where} alone", "")
    return timings.finding(
        "grad_norm_jump",
        "rank",
        str(rank),
        severity="warning",
        confidence=min(0.97, 0.8 + 0.05 * jump.rise / MIN_NORM_RISE),
        summary=f"The gradient norm of {who} rose from {jump.usual:.4g} to {jump.value:.4g} "
        f"at step {timings.steps[jump.row]}.{more}",
        evidence={**jump.evidence(timings), "ranks_not_named": others},
    )
