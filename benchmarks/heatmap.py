"""The heatmap's query over large fleets, from the rollup and, beside it, from the raw spans.

    python benchmarks/heatmap.py [--fleet 12288x1000] [--fleet 100000x100] [--raw-steps 60]

Each fleet (ranks x steps, eight phases, every hundredth rank a third slower in forward) is written into a
store of its own by SQL, as the materialised view would have left it. What is timed is the dashboard's own
query, on as many steps as the dashboard looks at: `seconds` is the median of five runs, over the whole window
of steps. `raw_seconds` is the same query over the raw spans of the same ranks; these are only written for the
first `--raw-steps` steps, so that it looks at no more than those. The last line is one JSON object (minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pulsetrain.dashboard.models.steps import sample
from pulsetrain.stream.queries import views
from pulsetrain.stream.queries.queryable import Queryable
from pulsetrain.stream.store.clickhouse import Store, open_store

JOB = "fleet"
PHASES = ("data", "forward", "backward", "all_reduce", "send", "recv", "optimizer", "gc")
MICROBATCHES = 4  # of forward, backward, send and recv: that many raw spans for one row of the rollup

_PLACES = """
INSERT INTO topology (job, rank, node, pp, ts)
SELECT '{job}', number, concat('node-', toString(intDiv(number, 8))), intDiv(number * 8, {ranks}), now64(9)
FROM numbers({ranks})
"""
_ROWS = """
SELECT '{job}' AS job, toInt64(intDiv(number, {ranks} * {width})) AS step,
  toInt32(intDiv(number, {width}) % {ranks}) AS rank, number % {width} AS place,
  [{phases}][place + 1] AS phase,
  if(phase IN ('all_reduce', 'send', 'recv'), 'communication', 'compute') AS category,
  concat('node-', toString(intDiv(rank, 8))) AS node,
  toInt64((1e7 + cityHash64(number) % 200000) * if(phase = 'forward' AND rank % 100 = 37, 1.33, 1)) AS took,
  toDateTime64('2026-01-01 00:00:00', 9, 'UTC') + step AS began
FROM numbers_mt({count})
"""
_ROLLUP = """
INSERT INTO span_rollup
SELECT job, 0, step, rank, phase, category, '', node, 1, took, took, 0, began, today() FROM ({rows})
"""
_SPANS = """
INSERT INTO spans (job, attempt, node, rank, step, microbatch, phase, category, lane, seq, start, duration_ns)
SELECT job, 0, node, rank, step, place, phase, category, 'main', -1, began, took FROM ({rows})
"""


class Raw:
    """A store whose rollup is its raw spans: for the same query without the rollup."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def query(self, sql: str, params: Mapping[str, Any] | None = None) -> pa.Table:
        """The answer from the raw spans."""
        return self._store.query(sql.replace("FROM span_rollup", "FROM spans"), params)


def fill(store: Store, ranks: int, steps: int, raw_steps: int) -> tuple[int, int]:
    """Write a fleet; rows of the rollup and of the raw spans."""
    store.command("DROP VIEW span_rollup_feed")
    store.command(_PLACES.format(job=JOB, ranks=ranks))
    many = [
        p for p in PHASES for _ in range(MICROBATCHES if p in ("forward", "backward", "send", "recv") else 1)
    ]
    rolled, raw = ranks * steps * len(PHASES), ranks * min(steps, raw_steps) * len(many)
    for sql, phases, count in ((_ROLLUP, PHASES, rolled), (_SPANS, many, raw)):
        quoted = ", ".join(f"'{phase}'" for phase in phases)
        rows = _ROWS.format(job=JOB, ranks=ranks, width=len(phases), phases=quoted, count=count)
        store.command(sql.format(rows=rows))
    return rolled, raw


def settle(store: Store, longest_s: float = 60.0) -> None:
    """Wait until the engine has merged what was written at once, which a job writes over hours."""
    deadline = time.monotonic() + longest_s
    while store.query("SELECT count() AS n FROM system.merges")["n"][0].as_py():
        if time.monotonic() > deadline:
            return
        time.sleep(0.5)


def timed(store: Queryable, last: int, looked_at: int, runs: int = 5) -> tuple[float, pa.Table]:
    """Median seconds of the heatmap's query by rank, and its answer."""
    shown = views.HeatmapRange(by="rank", first=0, last=last, sample=looked_at)
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        answer = views.heat_by_phase(store, JOB, shown)
        took.append(time.perf_counter() - began)
    return statistics.median(took), answer


def measure(ranks: int, steps: int, raw_steps: int, folder: Path) -> dict[str, Any]:
    """One fleet."""
    with contextlib.closing(open_store(f"chdb://{folder}")) as store:
        store.migrate()
        rolled, raw = fill(store, ranks, steps, raw_steps)
        settle(store)
        looked_at = min(steps, sample([{"job": JOB, "ranks": ranks}], JOB))
        seconds, answer = timed(store, steps - 1, looked_at)
        worst = {row["rank"] for row in answer.slice(0, 50).to_pylist() if row["phase"] == "forward"}
        assert worst, "the query found nothing"
        assert {rank % 100 for rank in worst} == {37}, worst
        raw_looked_at = min(looked_at, raw_steps)
        raw_seconds, _ = timed(Raw(store), min(steps, raw_steps) - 1, raw_looked_at, runs=2)
    return {
        "ranks": ranks,
        "steps": steps,
        "steps_looked_at": looked_at,
        "seconds": round(seconds, 3),
        "rollup_rows": rolled,
        "raw_seconds": round(raw_seconds, 3),
        "raw_steps_looked_at": raw_looked_at,
        "raw_rows": raw,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fleet", action="append", metavar="RANKSxSTEPS", help="repeatable")
    parser.add_argument("--raw-steps", type=int, default=60, help="steps of which raw spans are written")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    found = []
    for fleet in options.fleet or ["12288x1000", "100000x100"]:
        ranks, steps = map(int, fleet.split("x"))
        with tempfile.TemporaryDirectory(prefix="pulsetrain-bench-") as folder:
            found.append(measure(ranks, steps, options.raw_steps, Path(folder) / "store"))
        print(found[-1], file=sys.stderr, flush=True)
    print(json.dumps({"fleets": found, "cores": len(os.sched_getaffinity(0)), "load_before": load}))


if __name__ == "__main__":
    main()
