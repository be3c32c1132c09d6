"""Which ranks and nodes take longest to compute now: what a person who watches looks at first.

It is a ranking and accuses nobody. Some rank is always the slowest. `straggler` says whether one is slow by
more than chance.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.timings import Timings

Floats = NDArray[np.float64]

STEPS = 30  # newest usable steps that are looked at
MOST = 8  # ranks and nodes that are listed


class SlowRank(TypedDict):
    """One rank. `compute_s` is its median compute time of a step.

    `slower_ratio` is by how much that exceeds the median of its pipeline stage, per token where the tokens of
    steps differ. It is None for a rank that is alone in its stage.
    """

    rank: int
    node: str
    stage: int
    compute_s: float
    slower_ratio: float | None


class SlowNode(TypedDict):
    """One node with how many ranks. `slower_ratio` is the median of its ranks."""

    node: str
    ranks: int
    slower_ratio: float


class Slowest(TypedDict):
    """The ranking over `steps` steps up to `last_step`, the slowest first."""

    steps: int
    last_step: int
    ranks: list[SlowRank]
    nodes: list[SlowNode]


def slowest(timings: Timings, *, most: int = MOST) -> Slowest | None:
    """Return the ranks and nodes that take longest in the newest steps. None where no compute time is known.

    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> compute = np.full((40, 4), 1e8)
    >>> compute[:, 3] *= 1.25
    >>> slowest(from_matrices({"compute": compute}), most=1)["ranks"]
    [{'rank': 3, 'node': '', 'stage': -1, 'compute_s': 0.125, 'slower_ratio': 0.25}]
    """
    rows = timings.compared[-STEPS:]
    compute = timings.parts["compute"][rows]
    compute = np.where(compute > 0, compute, np.nan)
    if not np.isfinite(compute).any():
        return None
    tokens = timings.varying_tokens()
    with np.errstate(divide="ignore", invalid="ignore"):
        comparable = compute / (tokens if isinstance(tokens, float) else tokens[rows])
    ratio = _slower(_lower_medians(np.where(np.isfinite(comparable), comparable, np.nan)), timings)
    level = _lower_medians(compute)
    order = np.lexsort((timings.ranks, -np.nan_to_num(level), -np.nan_to_num(ratio, nan=-np.inf)))
    known = [column for column in order.tolist() if np.isfinite(level[column])]
    return {
        "steps": len(rows),
        "last_step": int(timings.steps[rows[-1]]),
        "ranks": [_rank(timings, column, level, ratio) for column in known[:most]],
        "nodes": _nodes(timings, ratio)[:most],
    }


def _lower_medians(values: Floats) -> Floats:
    """The lower median of each column without its NaN. NaN for a column that has nothing else."""
    ordered = np.sort(values, axis=0)  # NaN last
    count = np.isfinite(values).sum(axis=0)
    return np.asarray(ordered[np.maximum(count - 1, 0) // 2, np.arange(values.shape[1])])


def _slower(level: Floats, timings: Timings) -> Floats:
    """By how much each rank's level exceeds the lower median of its stage. NaN where there is no other."""
    ratio = np.full(len(level), np.nan)
    for columns in timings.cohorts:
        known = columns[np.isfinite(level[columns])]
        if len(known) > 1:
            ratio[known] = level[known] / _lower_medians(level[known][:, None])[0] - 1
    return ratio


def _rank(timings: Timings, column: int, level: Floats, ratio: Floats) -> SlowRank:
    return {
        "rank": int(timings.ranks[column]),
        "node": timings.node_of(column),
        "stage": int(timings.stages[column]),
        "compute_s": round(float(level[column]) / 1e9, 6),
        "slower_ratio": round(float(ratio[column]), 4) if np.isfinite(ratio[column]) else None,
    }


def _nodes(timings: Timings, ratio: Floats) -> list[SlowNode]:
    """Nodes by the median of their ranks. A rank without a ratio, or without a node, does not count."""
    counted = np.flatnonzero(np.isfinite(ratio) & (timings.nodes != ""))
    if not len(counted):
        return []
    order = np.lexsort((ratio[counted], timings.nodes[counted]))
    names, first, count = np.unique(timings.nodes[counted][order], return_index=True, return_counts=True)
    medians = ratio[counted][order][first + (count - 1) // 2]
    return [
        {"node": str(names[i]), "ranks": int(count[i]), "slower_ratio": round(float(medians[i]), 4)}
        for i in np.lexsort((names, -medians)).tolist()
    ]
