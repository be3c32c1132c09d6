"""Generated fleets: the tables that `stream.queries.analysis` answers with, clean or with a planted fault."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pulsetrain.analytics.slowness.load_timings import from_tables
from pulsetrain.analytics.slowness.timings import PARTS, Timings

STEP_NS = 400_000_000


def fleet(
    *,
    ranks: int = 8,
    per_node: int = 2,
    stages: int = 2,
    steps: int = 60,
    noise: float = 0.02,
    seed: int = 0,
    slow: Mapping[int, float] | None = None,
    slow_from: int = 0,
    slow_until: int = 1 << 60,
    everyone: np.ndarray | None = None,
    stage_ratio: Mapping[int, float] | None = None,
    first: int = 0,
) -> dict[str, np.ndarray]:
    """Columns by name, one row a step and rank. `slow` maps ranks to how many times longer they compute in
    steps `slow_from`..`slow_until`; `everyone` multiplies each step's compute for all; waits fill it."""
    rng = np.random.default_rng(seed)
    stage = np.arange(ranks) * stages // ranks
    shares = np.array([0.33, 0.6, 0.07])[:, None, None]  # forward, backward, optimizer: noise of their own
    parts = shares * 0.6 * STEP_NS * np.exp(1.45 * noise * rng.standard_normal((3, steps, ranks)))
    factor = np.ones((steps, ranks))
    numbers = np.arange(first, first + steps)
    for rank, ratio in (slow or {}).items():
        factor[(numbers >= slow_from) & (numbers <= slow_until), rank] *= ratio
    for which, ratio in (stage_ratio or {}).items():
        factor[:, stage == which] *= ratio
    if everyone is not None:
        factor *= everyone[:, None]
    parts = parts * factor
    compute = parts.sum(axis=0)
    whole = compute.max(axis=1, keepdims=True) * (1 + 0.02 * rng.random((steps, 1))) + 0.1 * STEP_NS
    wait = whole - compute
    grid = np.broadcast_arrays(numbers[:, None], np.arange(ranks)[None, :])
    flat = {
        "step": grid[0],
        "rank": grid[1],
        "pp": np.broadcast_to(stage, (steps, ranks)),
        "dp": np.broadcast_to(np.arange(ranks) % max(1, ranks // stages), (steps, ranks)),
        "node": np.broadcast_to(np.char.add("n", (np.arange(ranks) // per_node).astype(str)), (steps, ranks)),
        "start_ns": np.broadcast_to(np.cumsum(whole, axis=0) - whole, (steps, ranks)),
        "duration_ns": np.broadcast_to(whole, (steps, ranks)),
        "compute": compute,
        "wait": wait,
        "forward": parts[0],
        "backward": parts[1],
        "optimizer": parts[2],
    }
    columns = {name: np.ascontiguousarray(values).reshape(-1) for name, values in flat.items()}
    rows = steps * ranks
    return {
        **columns,
        "tokens": np.full(rows, 4096),
        "flops": np.full(rows, 1e9),
        "loss": np.repeat(5 * np.exp(-numbers / 200), ranks),
        "grad_norm": np.repeat(1 + 0.05 * rng.standard_normal(steps), ranks),
        **{name: np.zeros(rows) for name in PARTS if name not in columns},
    }


def timings(columns: Mapping[str, np.ndarray], *, order: np.ndarray | None = None, **more: int) -> Timings:
    """The matrices of a fleet, its rows in `order`."""
    columns = {n: v[order] for n, v in columns.items()} if order is not None else dict(columns)
    steps = {
        n: columns[n]
        for n in (
            "step",
            "rank",
            "node",
            "start_ns",
            "duration_ns",
            "tokens",
            "flops",
            "loss",
            "grad_norm",
        )
    }
    parts = {n: columns[n] for n in ("step", "rank", *PARTS)}
    _, at = np.unique(columns["rank"], return_index=True)
    topology = {n: columns[n][at] for n in ("rank", "node", "pp", "dp")}
    return from_tables(
        steps=pa.table(steps),
        parts=pa.table(parts),
        topology=pa.table(topology),
        job="j",
        now_ns=1,
        **more,
    )


def parts_of(columns):
    """The same fleet with rows missing: all, all but a rank, all but two steps, a rank, every other row."""
    keep = [
        np.zeros(len(columns["rank"]), np.bool_),
        columns["rank"] == 0,
        columns["step"] < 2,
        columns["rank"] != 3,
        np.random.default_rng(0).random(len(columns["rank"])) < 0.5,
    ]
    return [{name: values[mask] for name, values in columns.items()} for mask in keep]


def with_share(columns, part, share, ranks=None):
    """A fleet in which some ranks lose a share of each step to `part`."""
    hit = np.isin(columns["rank"], ranks) if ranks is not None else np.ones(len(columns["rank"]), np.bool_)
    return {**columns, part: np.where(hit, share * columns["duration_ns"], 0.001 * columns["duration_ns"])}
