"""Model FLOPs utilisation of each step, and its decay, attributed to a phase and to those who cause it.

MFU is the FLOPs that the model needs (not those that recomputation repeats) over the time of the step times
the peak of all devices (PaLM, arXiv 2204.02311, appendix B). Warm-up, checkpoint and evaluation steps do not
count.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.cohort import oversubscribed
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict
from pulsetrain.core.errors import UsageError

Floats = NDArray[np.float64]

WINDOW = 20
DECAY = 0.05  # least loss of throughput that is a decay, as a ratio
FALSE_ALARMS = 1e-4
FORMULA = "model FLOPs of the step / (time of its slowest rank x ranks x peak of a device)"
FORMULA_SOURCE = "PaLM, arXiv 2204.02311, appendix B"
_PARTS = ("forward", "backward", "optimizer", "wait", "data", "checkpoint", "gc")


def transformer_flops_per_token(
    *, parameters: float, layers: int, heads: int, head_dim: int, sequence: int
) -> float:
    """FLOPs of forward and backward for one token: 6N + 12LHQT (PaLM, arXiv 2204.02311, appendix B).

    `parameters` without embeddings that are only looked up; attention counts the full square.

    >>> transformer_flops_per_token(parameters=1e9, layers=24, heads=16, head_dim=128, sequence=2048)
    7207959552.0
    """
    return 6.0 * parameters + 12.0 * layers * heads * head_dim * sequence


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Dense peak of one device in one data type, FLOP/s, and where the figure comes from."""

    device: str
    dtype: str
    flops_per_s: float
    source: str


@cache
def peaks(site: Path | None = None) -> dict[tuple[str, str], Peak]:
    """The table of device peaks by (device, dtype); lines of the `site` file replace those of the package."""
    texts = [files("pulsetrain.analytics").joinpath("tables/device_peaks.csv").read_text()]
    if site is not None:
        try:
            texts.append(site.read_text())
        except OSError as error:
            raise UsageError(f"device peaks {site}: {error.strerror}") from error
    rows = [r for text in texts for r in csv.DictReader(x for x in text.splitlines() if x[:1] != "#")]
    return {
        (r["device"], r["dtype"]): Peak(
            device=r["device"], dtype=r["dtype"], flops_per_s=float(r["tflops"]) * 1e12, source=r["source"]
        )
        for r in rows
    }


def peak(device: str, dtype: str, site: Path | None = None) -> Peak:
    """The peak of one device. Raises `UsageError` that names the devices that are known."""
    known = peaks(site)
    if (device, dtype) not in known:
        allowed = ", ".join(sorted(f"{d}/{t}" for d, t in known))
        raise UsageError(f"device {device}/{dtype}: no peak on record; known: {allowed}")
    return known[device, dtype]


def achieved(t: Timings) -> tuple[NDArray[np.int64], Floats]:
    """(steps, model FLOP/s a rank) of usable steps whose FLOPs are known."""
    flops, duration = t.numbers["flops"], t.numbers["duration_ns"]
    with np.errstate(invalid="ignore"):
        whole = t.usable & (flops > 0).all(axis=1) & (duration > 0).all(axis=1)
    seconds = duration[whole].max(axis=1) / 1e9 if whole.any() else np.zeros(0)
    return t.steps[whole], flops[whole].sum(axis=1) / np.maximum(seconds, 1e-12) / max(1, len(t.ranks))


def find(t: Timings, device: Peak | None = None) -> list[Verdict]:
    """A finding of kind `mfu_decay` where the last steps achieve less than the job's own earlier ones.

    With the `device` all ranks run on, numbers are MFU too; without it, FLOP/s a rank.
    """
    steps, rate = achieved(t)
    if not len(rate):
        return [Inconclusive(analyzer="mfu", reason="no step tells its model FLOPs", blind=True)]
    numbers: dict[str, object] = {"flops_per_s_a_rank": float(np.median(rate[-WINDOW:])), "steps": len(rate)}
    numbers |= {"formula": FORMULA, "formula_source": FORMULA_SOURCE}
    if device is not None:
        numbers |= {
            "mfu": float(np.median(rate[-WINDOW:])) / device.flops_per_s,
            "device": f"{device.device}/{device.dtype}",
            "peak_flops_per_s": device.flops_per_s,
            "peak_source": device.source,
        }
    if len(rate) < 3 * WINDOW:
        return [Healthy(analyzer="mfu", numbers={**numbers, "decay": "too few steps to judge"})]
    logs = np.log(rate)
    blocks = [logs[i : i + WINDOW] for i in range(len(logs) % WINDOW, len(logs) - WINDOW, WINDOW)]
    levels = np.array([np.median(b) for b in blocks])
    base = float(np.quantile(levels, 0.75, method="lower"))  # one lucky window raises no bar
    recent = logs[-WINDOW:]
    drop = base - float(np.median(recent))
    residuals = np.concatenate([*(b - np.median(b) for b in blocks), recent - np.median(recent)])
    error = float(np.hypot(1.25 * float(robust.sigma(residuals)) * np.sqrt(2 / WINDOW), _wander(levels)))
    lasts = min(base - float(np.median(half)) for half in (recent[: WINDOW // 2], recent[WINDOW // 2 :]))
    if drop - robust.quantile_of(FALSE_ALARMS, 1) * error < DECAY or lasts < drop / 2:
        return [Healthy(analyzer="mfu", numbers=numbers)]
    since = int(robust.onset(base - logs, drop))
    return [_finding(t, steps, since, drop, error, numbers, busy=oversubscribed(t))]


def _wander(levels: Floats) -> float:
    """How far blocks of steps usually stray from the one before: more than their steps' noise, on a shared
    host. A decay is one hop of many, or many small ones."""
    hops = np.abs(np.diff(levels))
    return robust.lower_median(hops) / 2**0.5 if len(hops) >= 2 else 0.0


def _finding(
    t: Timings,
    steps: NDArray[np.int64],
    since: int,
    drop: float,
    error: float,
    numbers: dict[str, object],
    *,
    busy: bool,
) -> Finding:
    before = np.isin(t.steps, steps[:since] if since >= WINDOW else steps[:WINDOW])
    after = np.isin(t.steps, steps[-WINDOW:])
    growth = {
        name: _median_rows(t.parts[name], after) - _median_rows(t.parts[name], before) for name in _PARTS
    }
    typical = {name: float(np.median(g)) for name, g in growth.items()}
    phase = _cause(growth, typical)
    cohort, members = _cohort(t, growth[phase])
    loss = -np.expm1(-drop)
    return t.finding(
        "mfu_decay",
        "job",
        t.job,
        severity="info" if busy else "warning" if loss < 0.2 else "critical",
        confidence=min(0.97, 0.75 + 0.2 * (1 - float(np.exp(-(drop / max(error, 1e-9) - 4) / 4))))
        * (0.6 if busy else 1.0),
        summary=f"Throughput fell by {loss:.0%} since step {steps[since]}, mostly in {phase} of {cohort}.",
        evidence={
            "query": "analysis.steps, analysis.step_parts",
            **numbers,
            "loss": round(float(loss), 4),
            "first_step": int(steps[since]),
            "phase": phase,
            "oversubscribed": busy,
            "growth_ns": {name: int(v) for name, v in typical.items()},
            "cohort": cohort,
            "ranks": "all" if cohort == "all ranks" else t.ranks[members].tolist()[:64],
        },
    )


def _cause(growth: dict[str, Floats], typical: dict[str, float]) -> str:
    """The phase that grew most for most ranks. Waiting is an effect: where it grew, the cause is what grew
    for somebody by at least half as much."""
    phase = max(typical, key=lambda name: typical[name])
    if phase != "wait":
        return phase
    worst = {name: float(np.max(g, initial=0.0)) for name, g in growth.items() if name != "wait"}
    cause = max(worst, key=lambda name: worst[name])
    return cause if worst[cause] >= 0.5 * typical["wait"] else phase


def _cohort(t: Timings, extra: Floats) -> tuple[str, NDArray[np.int64]]:
    """Who carries the growth of a phase, those with at least half of the most: in words, and as columns."""
    leading = np.flatnonzero(extra >= 0.5 * np.max(extra, initial=0.0))
    if not len(leading) or len(leading) > 0.75 * len(extra):
        return "all ranks", np.arange(len(extra))
    if len(leading) == 1:
        return f"rank {t.ranks[leading[0]]}", leading
    if len(set(t.nodes[leading].tolist())) == 1:
        return f"node {t.nodes[leading[0]]}", leading
    stages = set(t.stages[leading].tolist())
    if len(stages) == 1 and t.placed:
        return f"stage {stages.pop()}", leading
    return f"{len(leading)} ranks", leading


def _median_rows(part: Floats, rows: NDArray[np.bool_]) -> Floats:
    """Median of each rank over some steps; 0 where nothing is told."""
    block = np.nan_to_num(part[rows])
    result: Floats = np.median(block, axis=0) if len(block) else np.zeros(part.shape[1])
    return result
