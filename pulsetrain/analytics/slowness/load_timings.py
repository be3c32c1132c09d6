"""Read the timings of an attempt from a store, or from the tables that its queries return."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.slowness.timings import COMPUTED, LOGGED, NUMBERS, PARTS, Timings, running_ratio
from pulsetrain.records.arrow import number_array
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable

CELLS_AT_ONCE = 400_000  # steps x ranks of one query: bounds the memory of the store's aggregation


def load(store: Queryable, steps: AttemptSteps, *, first_step: int, now_ns: int) -> Timings:
    """The timings of these steps. `first_step` is that of the attempt.

    They are read in pieces, so that memory holds the matrices and little else.
    """
    names = analysis.phase_names(store, steps).to_pylist()
    compute = sorted({n["phase"] for n in names if n["category"] == "compute"})
    communication = sorted({n["phase"] for n in names if n["category"] == "communication"})
    nodes = analysis.rank_nodes(store, steps)
    builder = _TimingsBuilder(np.arange(steps.first, steps.last + 1), np.unique(_ints(nodes, "rank")))
    for part in steps.parts(max(1, CELLS_AT_ONCE // max(1, nodes.num_rows))):
        builder.add(analysis.steps(store, part))
        builder.add(analysis.step_parts(store, part, compute=compute, communication=communication))
    topology = analysis.topology(store, steps.job, steps.attempt)
    return builder.timings(
        nodes, topology, job=steps.job, attempt=steps.attempt, first_step=first_step, now_ns=now_ns
    )


def from_tables(
    *,
    steps: pa.Table,
    parts: pa.Table,
    topology: pa.Table,
    job: str = "",
    attempt: int = 0,
    first_step: int = 0,
    now_ns: int = 0,
) -> Timings:
    """Timings from the tables of `stream.queries.analysis`, rows in any order. `steps` may have `node`."""
    numbers, ranks = (
        np.unique(np.concatenate([_ints(table, name) for table in (steps, parts)]))
        for name in ("step", "rank")
    )
    every_step = np.arange(numbers[0], numbers[-1] + 1) if len(numbers) else np.zeros(1, np.int64)
    builder = _TimingsBuilder(every_step, ranks)
    builder.add(steps)
    builder.add(parts)
    return builder.timings(steps, topology, job=job, attempt=attempt, first_step=first_step, now_ns=now_ns)


class _TimingsBuilder:
    """Fills matrices from tables with columns step and rank, piece by piece. `steps` has no gap."""

    def __init__(self, steps: NDArray[np.int64], ranks: NDArray[np.int64]) -> None:
        self._steps, self._ranks = steps, ranks
        shape = (len(steps), len(ranks))
        self._matrices = {name: np.full(shape, np.nan) for name in (*PARTS, *NUMBERS)}
        self._logged = {name: np.zeros(shape, np.bool_) for name in LOGGED}
        self._seen = np.zeros(len(steps), np.bool_)

    def add(self, table: pa.Table) -> None:
        """Enter every known column. Rows of unknown ranks are left out."""
        if not table.num_rows or not len(self._ranks):
            return
        row, rank = _ints(table, "step") - self._steps[0], _ints(table, "rank")
        column = np.minimum(np.searchsorted(self._ranks, rank), len(self._ranks) - 1)
        known = self._ranks[column] == rank
        all_known = bool(known.all())
        cells = row * len(self._ranks) + column if all_known else (row * len(self._ranks) + column)[known]
        self._seen[np.unique(row)] = True
        for name in set(table.column_names) & self._matrices.keys():
            values = table.column(name).to_numpy()
            self._matrices[name].reshape(-1)[cells] = values if all_known else values[known]
        for name in set(table.column_names) & self._logged.keys():
            valid = table.column(name).is_valid().to_numpy()
            self._logged[name].reshape(-1)[cells] = valid if all_known else valid[known]

    def timings(
        self, nodes: pa.Table, topology: pa.Table, *, job: str, attempt: int, first_step: int, now_ns: int
    ) -> Timings:
        """What was added, without steps that no rank has."""
        seen = self._seen
        matrices = self._matrices if seen.all() else {n: m[seen] for n, m in self._matrices.items()}
        parts = {name: matrices[name] for name in PARTS}
        ratio = running_ratio(parts)
        if ratio is not None:
            parts |= {name: parts[name] * ratio for name in COMPUTED}
        return Timings(
            job=job,
            attempt=attempt,
            now_ns=now_ns,
            steps=self._steps[seen],
            ranks=self._ranks,
            nodes=_nodes(nodes, topology, self._ranks),
            stages=_by_rank(topology, "pp", self._ranks, -1),
            parts=parts,
            numbers={name: matrices[name] for name in NUMBERS},
            logged={name: m[seen] for name, m in self._logged.items()},
            first_step=first_step,
            topology_known=topology.num_rows > 0,
            replicas=_by_rank(topology, "dp", self._ranks, -1),
            running_ratio=ratio,
        )


def _ints(table: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(table.column(name).to_numpy(), np.int64)


def _by_rank(table: pa.Table, name: str, ranks: NDArray[np.int64], default: int) -> NDArray[np.int64]:
    if name not in table.column_names:
        return np.full(len(ranks), default, np.int64)
    known = dict(zip(_ints(table, "rank").tolist(), _ints(table, name).tolist(), strict=True))
    return np.array([known.get(rank, default) for rank in ranks.tolist()], np.int64)


def _nodes(nodes: pa.Table, topology: pa.Table, ranks: NDArray[np.int64]) -> NDArray[np.str_]:
    """The node of each rank: what its steps say, else the topology."""
    known: dict[int, str] = {}
    for table in (topology, nodes):
        if table.num_rows and "node" in table.column_names:
            values, first = np.unique(_ints(table, "rank"), return_index=True)
            names = table.column("node").take(number_array(first)).to_pylist()
            known |= dict(zip(values.tolist(), names, strict=True))
    return np.array([str(known.get(rank, "")) for rank in ranks.tolist()], np.str_)
