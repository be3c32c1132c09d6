"""Ranks, and whole jobs, that became slower than they were: fail-slow as verdicts.

Ranks are judged by the time they compute, against their peers; the job, which has no peers, by its own
history (a slow-down of all ranks alike has no relative signal). How stretches are found is in `slow_windows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.cohort import by_chance, oversubscribed
from pulsetrain.analytics.slowness.slow_windows import FailSlowConfig, Slow, in_history, in_peers, overlap
from pulsetrain.analytics.slowness.timings import NUMBERS, PARTS, WARM_STEPS, Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, Verdict
from pulsetrain.core.errors import UsageError

Floats = NDArray[np.float64]
NAME = "fail_slow"
PATIENT_STEPS = 20  # shortest slow-down of what has no peers, or of ranks that share too few processors
MOST = 2.0**62  # beyond any rank or step
SINGLE_LOOK = 1.25  # on noise alone (10 ranks x 300 steps, autocorrelation 0.9): 3 false of 200, not 18
RANK_COLUMNS = ("rank", "worker")
STEP_COLUMNS = ("step", "iteration", "time")
TIME_COLUMNS = ("duration_ns", "duration_s", "duration", "batch_time", "batch_time_norm")


def find(t: Timings, *, config: FailSlowConfig | None = None, recovered: bool = True) -> list[Verdict]:
    """Findings of kind `fail_slow` for ranks by their compute time and for the job by its step time.

    Steps that warm up, checkpoint or evaluate are left out. Where there are no compute spans the ranks' step
    times are used, which a barrier makes alike. `recovered`: also report what is over by now, as information.
    """
    config = config or FailSlowConfig()
    usable = t.usable if t.usable.any() else np.ones(t.steps.size, bool)
    compute, duration = _per_token(t, "compute")[usable].T, _per_token(t, "duration_ns")[usable].T
    steps = t.steps[usable]
    if steps.size < 3 * config.scales[0].width:
        reason = f"{steps.size} usable steps; {3 * config.scales[0].width} are needed"
        return [Inconclusive(analyzer=NAME, reason=reason, blind=steps.size == 0)]
    spans = bool(np.isfinite(compute).any())
    busy = spans and oversubscribed(t)
    ranks = (
        []
        if busy and by_chance(t)
        else in_peers(compute if spans else duration, patient(config) if busy else config)
    )
    found: list[Verdict] = [
        _rank_finding(t, s, steps, "compute" if spans else "step") for s in ranks if recovered or s.ongoing
    ]
    wait = t.parts["wait"][usable].T
    for measure, slow in _of_the_job(duration, compute if spans else None, config, busy=busy):
        blamed = any(overlap(slow, r) and r.ratio > 1 for r in ranks)
        if not blamed and (recovered or slow.ongoing):
            cause = _cause(slow, compute, wait)
            found.append(_job_finding(t, slow, steps, cause, measure, busy=busy))
    return found or [Healthy(analyzer=NAME, numbers={"ranks": int(t.ranks.size), "steps": int(steps.size)})]


def patient(config: FailSlowConfig) -> FailSlowConfig:
    """For a host that has less processors than work: longer windows, and more that must be slow in a row."""
    scales = tuple(
        replace(s, step_sigmas=1.5 * s.step_sigmas) for s in config.scales if s.width >= PATIENT_STEPS
    )
    return replace(config, scales=scales, lasting_steps=max(config.lasting_steps, PATIENT_STEPS))


def single_look(config: FailSlowConfig | None = None) -> FailSlowConfig:
    """For a whole recording judged once: more sigmas, for chance has had its try at every stretch of every
    rank and no second look will confirm what just counts, as it does in a running job."""
    config = config or FailSlowConfig()
    scales = tuple(replace(s, step_sigmas=SINGLE_LOOK * s.step_sigmas) for s in config.scales)
    return replace(config, scales=scales)


def _of_the_job(
    duration: Floats, compute: Floats | None, config: FailSlowConfig, *, busy: bool
) -> list[tuple[str, Slow]]:
    """What all ranks share: compute, which neither the network nor waits for a processor disturb, then the
    step time, which must be slow three times as long on a busy host. There is no cohort to compare with."""
    calm = patient(config)
    found = [("compute", s) for s in in_history(compute, calm)] if compute is not None else []
    if busy:
        calm = replace(calm, scales=calm.scales[-1:], lasting_steps=3 * PATIENT_STEPS)
    steps = [("step", s) for s in in_history(duration, calm) if not any(overlap(s, c) for _, c in found)]
    return found + steps


def _per_token(t: Timings, name: str) -> Floats:
    """Times [step, rank], divided by the step's tokens where those differ."""
    times = t.parts[name] if name in t.parts else t.numbers[name]
    tokens = t.numbers["tokens"]
    known = tokens[np.isfinite(tokens)]
    if known.size and known.min() > 0 and known.max() > 1.01 * known.min():
        return np.asarray(times / tokens)
    return times


def _cause(slow: Slow, compute: Floats, wait: Floats) -> dict[str, Any]:
    """Which part of the step grew for most ranks; nothing is known of that without spans."""
    grew: dict[str, Any] = {}
    for name, part in (("compute", compute), ("communication", wait)):
        before, during = part[:, : slow.begin], part[:, slow.begin : slow.end]
        if np.isfinite(before).any() and np.isfinite(during).any() and np.nanmedian(before) > 0:
            grew[name] = round(float(np.nanmedian(during) / np.nanmedian(before)), 3)
    worse = [name for name, ratio in grew.items() if ratio > 1.05]
    text = {
        (): "neither compute nor communication" if grew else "unknown",
        ("compute",): "compute of all ranks: code, data or a shared host limit",
        ("communication",): "communication: the network",
        ("compute", "communication"): "compute and communication of all ranks",
    }[tuple(worse)]
    return {"grew": grew, "cause": text}


def confidence(slow: Slow) -> float:
    """0.7 for what just counts, towards 0.99 for what cannot be missed."""
    return round(0.99 - 0.29 * float(np.exp(1 - slow.margin)), 3)


def _severity(slow: Slow) -> Severity:
    return "critical" if slow.ongoing and slow.ratio >= 1.5 else "warning"


def evidence(slow: Slow, steps: NDArray[Any]) -> dict[str, Any]:
    """The numbers of one stretch: first and last step, and how it was found."""
    return {
        "first_step": steps[slow.begin].item(),
        "last_step": steps[slow.end - 1].item(),
        "steps": slow.end - slow.begin,
        "share_of_run": [round(slow.begin / steps.size, 3), round(slow.end / steps.size, 3)],
        "slow_ratio": round(slow.ratio, 3),
        "margin": round(slow.margin, 2),
        "shape": "drift" if slow.drift else "step",
        "ongoing": slow.ongoing,
    }


def _rank_finding(t: Timings, slow: Slow, steps: NDArray[np.int64], what: str) -> Finding:
    rank, node = int(t.ranks[slow.row]), t.node_of(slow.row)
    numbers = evidence(slow, steps)
    where = f"rank {rank} on {node}" if node else f"rank {rank}"
    return t.finding(
        NAME,
        "rank",
        str(rank),
        severity=_severity(slow),
        confidence=confidence(slow),
        summary=f"{where} {_sentence(numbers, what)}",
        evidence={**numbers, "query": "step_parts", "measure": what, "node": node},
    )


def _job_finding(
    t: Timings, slow: Slow, steps: NDArray[np.int64], cause: dict[str, Any], measure: str, *, busy: bool
) -> Finding:
    """On a busy host it is information: what else runs there slows the job as much as the job itself can."""
    numbers = evidence(slow, steps)
    doubt = "; the host has fewer processors than work" if busy else ""
    return t.finding(
        NAME,
        "job",
        t.job,
        severity="info" if busy else _severity(slow),
        confidence=confidence(slow) * (0.6 if busy else 1.0),
        summary=f"the whole job {_sentence(numbers, measure)}; what grew: {cause['cause']}{doubt}",
        evidence={**numbers, **cause, "query": "steps", "measure": measure, "oversubscribed": busy},
    )


def _sentence(numbers: dict[str, Any], what: str) -> str:
    how = "drifted to" if numbers["shape"] == "drift" else "became"
    until = "and still is" if numbers["ongoing"] else f"until step {numbers['last_step']}"
    return f"{how} {numbers['slow_ratio']:.2f}x slower ({what} time) at step {numbers['first_step']} {until}"


# -- files ------------------------------------------------------------------------------------------------


def read(path: Path) -> Timings:
    """Step times from a CSV or Parquet file with one row for each rank and step, in any order.

    Columns: one of `RANK_COLUMNS`, one of `STEP_COLUMNS` and one of `TIME_COLUMNS`; the unit of time does not
    matter. Rows without a rank or step are left out. Raises `UsageError` where the file cannot be read or
    lacks one of them.
    """
    table = _table(path)
    rank, step, time = (_pick(table, names, path) for names in (RANK_COLUMNS, STEP_COLUMNS, TIME_COLUMNS))
    placed = (np.abs(rank) < MOST) & (np.abs(step) < MOST)  # false for NaN
    rank, step, time = rank[placed], step[placed], time[placed]
    ranks, row = np.unique(rank.astype(np.int64), return_inverse=True)
    steps, column = np.unique(step.astype(np.int64), return_inverse=True)
    if ranks.size * steps.size > 4 * max(rank.size, 1):  # each rank has a clock of its own: go by position
        column, steps = _positions(row, step), np.arange(np.bincount(row).max(initial=0))
    matrix = np.full((steps.size, ranks.size), np.nan)
    matrix[column, row] = time
    empty = np.full(matrix.shape, np.nan)
    return Timings(
        job=path.stem,
        attempt=0,
        now_ns=0,
        steps=steps,
        ranks=ranks,
        nodes=np.full(ranks.size, "", np.str_),
        stages=np.full(ranks.size, -1, np.int64),
        parts={name: empty if name != "checkpoint" else np.zeros(matrix.shape) for name in PARTS},
        numbers={name: matrix if name == "duration_ns" else empty for name in NUMBERS},
        first_step=int(steps[0]) - WARM_STEPS if steps.size else 0,
    )


def _table(path: Path) -> pa.Table:
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path)
        from pyarrow import csv

        return csv.read_csv(path)
    except OSError as error:
        raise UsageError(f"step times {path}: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise UsageError(
            f"step times {path}: neither CSV nor Parquet ({str(error).splitlines()[0]})"
        ) from error


def _pick(table: pa.Table, names: Sequence[str], path: Path) -> Floats:
    for name in names:
        if name in table.column_names:
            try:
                return np.asarray(table[name].to_numpy(), np.float64)
            except (TypeError, ValueError) as error:
                raise UsageError(f"step times {path}: column {name} is not numeric") from error
    raise UsageError(
        f"step times {path}: no column {' or '.join(names)}; it has {', '.join(table.column_names)}"
    )


def _positions(row: NDArray[np.int64], step: Floats) -> NDArray[np.int64]:
    """The position of each value among its own row's, by step."""
    order = np.lexsort((step, row))
    count = np.bincount(row)
    first = np.repeat(np.cumsum(count) - count, count)
    positions = np.empty(row.size, np.int64)
    positions[order] = np.arange(row.size) - first
    return positions
