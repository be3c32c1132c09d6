"""Model FLOPs utilisation (MFU) of each step, and its decay, attributed to a phase and to ranks.

MFU is the FLOPs that the model needs, without those that recomputation repeats, over the product of step time
and peak of all devices (PaLM, arXiv 2204.02311, appendix B). Warm-up, checkpoint and evaluation steps do not
count. `device_peaks` has the peaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.cohort import oversubscribed, queues
from pulsetrain.analytics.slowness.device_peaks import Peak
from pulsetrain.analytics.slowness.timings import COMPUTED, Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict

Floats = NDArray[np.float64]

NAME = "mfu"
WINDOW = 20  # steps of a level
DECAY = 0.05  # least loss of throughput that is a decay, as a ratio
FALSE_ALARMS = 1e-4
FORMULA = "model FLOPs of the step / (time of its slowest rank x ranks x peak of a device)"
FORMULA_SOURCE = "PaLM, arXiv 2204.02311, appendix B"
MORE_WORK = "; steps may be more work, as their FLOPs are inferred from an early one"
_PARTS = ("forward", "backward", "optimizer", "wait", "data", "checkpoint", "gc", "other")
EXPLAINED = 0.5  # of what a step became longer, from which one phase is the cause


@dataclass(frozen=True, kw_only=True)
class _Decay:
    """A loss of throughput, as differences of the log of FLOP/s."""

    drop: float
    error: float  # standard error of the drop
    since: int  # index of the first slow step

    @property
    def loss(self) -> float:
        """The share of the throughput that is lost."""
        return float(-np.expm1(-self.drop))


def achieved(timings: Timings) -> tuple[NDArray[np.int64], Floats]:
    """(steps, model FLOP/s of a rank) of usable steps whose FLOPs are known."""
    flops, duration = timings.numbers["flops"], timings.numbers["duration_ns"]
    with np.errstate(invalid="ignore"):
        whole = timings.usable & (flops > 0).all(axis=1) & (duration > 0).all(axis=1)
    seconds = duration[whole].max(axis=1) / 1e9 if whole.any() else np.zeros(0)
    rate = flops[whole].sum(axis=1) / np.maximum(seconds, 1e-12) / max(1, len(timings.ranks))
    return timings.steps[whole], rate


def find(
    timings: Timings,
    device: Peak | None = None,
    *,
    inferred: Callable[[], bool] = lambda: False,
    scan: bool = False,
) -> list[Verdict]:
    """A finding of kind `mfu_decay` where the last steps achieve less than the job's own earlier ones.

    With `scan` also where they do no more: the largest decay that there was after any `WINDOW` steps.

    The numbers are FLOP/s of a rank, and MFU too where `device` tells what all ranks run on. `inferred`: the
    FLOPs of one early step stand for all. Then compute that takes longer may be more work. With too few
    steps to see a decay the answer is inconclusive, with the same numbers.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> duration = np.full((120, 2), 1e9)
    >>> duration[80:] *= 1.5
    >>> matrices = {"duration_ns": duration, "flops": np.full((120, 2), 1e12), "data": duration - 1e9}
    >>> [finding] = find(from_matrices(matrices))
    >>> finding.summary
    'Throughput fell by 33% since step 80, mostly in data of all ranks.'
    """
    steps, rate = achieved(timings)
    if not len(rate):
        return [Inconclusive(analyzer=NAME, reason="no step tells its model FLOPs", blind=True)]
    numbers = _numbers(rate, device)
    if len(rate) < 3 * WINDOW:
        reason = f"{len(rate)} steps tell their model FLOPs; {3 * WINDOW} are needed to see a decay"
        return [Inconclusive(analyzer=NAME, reason=reason, numbers=numbers)]
    logs = np.log(rate)
    decay, end = _decay(logs), len(rate)
    if decay is None and scan:
        decay, end = _largest(logs)
    if decay is None:
        return [Healthy(analyzer=NAME, numbers=numbers)]
    return [_finding(timings, steps[:end], decay, numbers, inferred, lasts=end == len(rate))]


def _largest(logs: Floats) -> tuple[_Decay | None, int]:
    """The largest decay as it was at some earlier step, and how many steps there were then."""
    ends = range(len(logs) - WINDOW, 3 * WINDOW - 1, -WINDOW)
    decays = [(decay, end) for end in ends if (decay := _decay(logs[:end])) is not None]
    return max(decays, key=lambda found: found[0].drop, default=(None, len(logs)))


def _numbers(rate: Floats, device: Peak | None) -> dict[str, object]:
    """What the newest steps achieve, and how it was computed."""
    newest = float(np.median(rate[-WINDOW:]))
    numbers: dict[str, object] = {
        "flops_per_s_a_rank": newest,
        "steps": len(rate),
        "formula": FORMULA,
        "formula_source": FORMULA_SOURCE,
    }
    if device is None:
        return numbers
    return numbers | {
        "mfu": newest / device.flops_per_s,
        "device": f"{device.device}/{device.dtype}",
        "peak_flops_per_s": device.flops_per_s,
        "peak_source": device.source,
    }


def _decay(logs: Floats) -> _Decay | None:
    """How far the newest steps fell below the job's usual level. None: no further than noise, or briefly.

    The usual level is the upper quartile of the medians of earlier windows, so that one lucky window does not
    raise it.
    """
    blocks = logs[len(logs) % WINDOW : -WINDOW].reshape(-1, WINDOW)
    levels = np.median(blocks, axis=1)
    base = float(np.quantile(levels, 0.75, method="lower"))
    recent = logs[-WINDOW:]
    drop = base - float(np.median(recent))
    residuals = np.concatenate([(blocks - levels[:, None]).ravel(), recent - np.median(recent)])
    error = float(np.hypot(1.25 * float(robust.sigma(residuals)) * np.sqrt(2 / WINDOW), _wander(levels)))
    halves = (recent[: WINDOW // 2], recent[WINDOW // 2 :])
    lasts = min(base - float(np.median(half)) for half in halves)
    if drop - robust.sigmas_needed(FALSE_ALARMS, 1) * error < DECAY or lasts < drop / 2:
        return None
    return _Decay(drop=drop, error=error, since=int(robust.onset(base - logs, drop)))


def _wander(levels: Floats) -> float:
    """How far a block of steps usually is from the one before. On a shared host more than the steps' noise.

    A decay is one large difference among many, or many small ones, so it hardly changes the median.
    """
    hops = np.abs(np.diff(levels))
    return robust.lower_median(hops) / 2**0.5 if len(hops) >= 2 else 0.0


def _finding(
    timings: Timings,
    steps: NDArray[np.int64],
    decay: _Decay,
    numbers: dict[str, object],
    inferred: Callable[[], bool],
    *,
    lasts: bool,
) -> Finding:
    """On an oversubscribed host it is information: other work there slows the job as much as its own does.

    So it is where compute takes longer and nobody counts the FLOPs of these steps. Where no phase grew as the
    step did, it is a warning at most.
    """
    earlier = steps[: decay.since] if decay.since >= WINDOW else steps[:WINDOW]
    before, after = np.isin(timings.steps, earlier), np.isin(timings.steps, steps[-WINDOW:])
    growth = {
        name: _usual(timings.parts[name], after) - _usual(timings.parts[name], before) for name in _PARTS
    }
    typical = {name: float(np.median(g)) for name, g in growth.items()}
    duration = timings.numbers["duration_ns"]
    longer = float(np.median(_usual(duration, after) - _usual(duration, before)))
    phase, grew = _cause(growth, typical)
    known = grew >= EXPLAINED * longer
    phase = phase if known else ""
    cohort, members = _cohort(timings, growth[phase] if known else np.zeros(len(timings.ranks)))
    busy = oversubscribed(timings)
    uncounted = phase in COMPUTED and inferred()
    first_step = int(steps[decay.since])
    when = "since" if lasts else "for a while from"
    return timings.finding(
        "mfu_decay",
        "job",
        timings.job,
        severity="info" if busy or uncounted else "warning" if decay.loss < 0.2 or not known else "critical",
        confidence=_confidence(decay) * (0.6 if busy or uncounted else 1.0),
        summary=f"Throughput fell by {decay.loss:.0%} {when} step {first_step}, "
        f"{_where(phase, cohort)}{MORE_WORK if uncounted else ''}.",
        evidence={
            "query": "analysis.steps, analysis.step_parts",
            **numbers,
            "loss": round(decay.loss, 4),
            "first_step": first_step,
            "last_step": int(steps[-1]),
            "phase": phase,
            "oversubscribed": queues(timings),
            "growth_ns": {name: int(v) for name, v in typical.items()},
            "step_growth_ns": int(longer),
            "cohort": cohort,
            "ranks": "all" if cohort == "all ranks" else timings.ranks[members].tolist()[:64],
        },
    )


def _confidence(decay: _Decay) -> float:
    margin = decay.drop / max(decay.error, 1e-9)
    return min(0.97, 0.75 + 0.2 * (1 - float(np.exp(-(margin - 4) / 4))))


def _where(phase: str, cohort: str) -> str:
    """Where the time went, as the end of a sentence. `phase` is "" where no phase explains it."""
    named = {"": "in no known phase", "other": f"mostly in other phases of {cohort}"}
    return named.get(phase, f"mostly in {phase} of {cohort}")


def _cause(growth: dict[str, Floats], typical: dict[str, float]) -> tuple[str, float]:
    """The phase that grew most for most ranks, and by how much in ns.

    Waiting is an effect. Where it grew most, the cause is the phase that grew for some rank by at least half
    as much.
    """
    phase = max(typical, key=lambda name: typical[name])
    if phase != "wait":
        return phase, typical[phase]
    worst = {name: float(np.max(g, initial=0.0)) for name, g in growth.items() if name != "wait"}
    cause = max(worst, key=lambda name: worst[name])
    cause = cause if worst[cause] >= 0.5 * typical["wait"] else phase
    return cause, max(typical["wait"], worst.get(cause, 0.0))


def _cohort(timings: Timings, growth: Floats) -> tuple[str, NDArray[np.int64]]:
    """Ranks whose phase grew by at least half of the most: in words, and as columns."""
    leading = np.flatnonzero(growth >= 0.5 * np.max(growth, initial=0.0))
    if not len(leading) or len(leading) > 0.75 * len(growth):
        return "all ranks", np.arange(len(growth))
    if len(leading) == 1:
        return f"rank {timings.ranks[leading[0]]}", leading
    if len(set(timings.nodes[leading].tolist())) == 1:
        return f"node {timings.nodes[leading[0]]}", leading
    stages = set(timings.stages[leading].tolist())
    if len(stages) == 1 and timings.topology_known:
        return f"stage {stages.pop()}", leading
    return f"{len(leading)} ranks", leading


def _usual(part: Floats, rows: NDArray[np.bool_]) -> Floats:
    """Median of each rank over some steps. 0 where nothing is known."""
    block = np.nan_to_num(part[rows])
    result: Floats = np.median(block, axis=0) if len(block) else np.zeros(part.shape[1])
    return result
