"""Where the time of every step of every rank went, as matrices: what the analyzers of slowness share."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.records.findings import Finding, Severity, SubjectType
from pulsetrain.stream.queries import analysis

Matrix = NDArray[np.float64]

PARTS = (
    "compute",
    "wait",
    "forward",
    "backward",
    "optimizer",
    "data",
    "checkpoint",
    "gc",
    "gc_longest",
    "cpu_wait",
    "aside",
)
COMPUTED = ("compute", "forward", "backward", "optimizer")
CROWDED = 0.05  # share of compute that the usual rank of a crowded host waits for a processor
LEAST = 0.1  # share of a rank's compute that is its own whatever the kernel counts
LOW = 0.25
NUMBERS = ("duration_ns", "tokens", "flops", "loss", "grad_norm")
LOGGED = ("loss", "grad_norm")
CELLS_AT_ONCE = 400_000  # steps x ranks of one query: bounds the memory of the store's aggregation
WARM_STEPS = 2  # first steps of an attempt: compilation, allocation and connections


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Steps x ranks. `parts` and `numbers` are matrices by name, NaN where a rank has no row for a step.

    `parts` are nanoseconds; on a crowded host, where the usual rank waits for a processor now and again, the
    computed ones are net of that: who has to wait there is chance. `numbers` hold duration_ns, tokens, flops,
    loss and grad_norm. `logged` is true
    where a loss or gradient norm was logged: a NaN there is a real one.
    `nodes`, `stages` and `replicas` (data-parallel) go by rank; a stage or replica is -1 where the topology
    is not known. `kept` is the share of each computed part that is left of what the rank measured, None where
    that is all of it: what a step waited for a processor is known, but not in which of its parts.
    """

    job: str
    attempt: int
    now_ns: int
    steps: NDArray[np.int64]
    ranks: NDArray[np.int64]
    nodes: NDArray[np.str_]
    stages: NDArray[np.int64]
    parts: dict[str, Matrix]
    numbers: dict[str, Matrix]
    logged: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    first_step: int = 0  # of the attempt
    placed: bool = False  # whether the topology is known
    replicas: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    kept: Matrix | None = None

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Steps that are no warm-up and in which no rank checkpoints or evaluates for a tenth of the step."""
        if not len(self.steps):
            return np.zeros(0, np.bool_)
        duration = self.numbers["duration_ns"]
        with np.errstate(invalid="ignore"):
            aside = (self.parts["checkpoint"] + self.parts["aside"]) > 0.1 * duration
        usual = aside.mean(axis=0) > 0.5  # a phase that every step has is part of the step
        warm = self.steps < self.first_step + WARM_STEPS
        return np.asarray(~warm & ~(aside & ~usual).any(axis=1), np.bool_)

    @cached_property
    def cohorts(self) -> list[NDArray[np.int64]]:
        """Columns of ranks that do the same work: one array for each pipeline stage."""
        return [np.flatnonzero(self.stages == s) for s in np.unique(self.stages)]

    def measured(self, part: str) -> Matrix:
        """A computed part as the rank measured it, waits for a processor included."""
        return self.parts[part] if self.kept is None else self.parts[part] / self.kept

    def finding(
        self,
        kind: str,
        subject_type: SubjectType,
        subject: str,
        *,
        severity: Severity,
        confidence: float,
        summary: str,
        evidence: Mapping[str, Any],
    ) -> Finding:
        """A finding on this attempt; `ts_ns` is when it was looked at."""
        return Finding(
            ts_ns=self.now_ns,
            job=self.job,
            attempt=self.attempt,
            kind=kind,
            subject_type=subject_type,
            subject=subject,
            severity=severity,
            confidence=round(confidence, 3),
            summary=summary,
            evidence=evidence,
        )

    def node_of(self, column: int) -> str:
        """Name of the node of the rank in `column`."""
        return str(self.nodes[column])


def load(
    store: analysis.Queryable, job: str, attempt: int, since: int, until: int, *, first_step: int, now_ns: int
) -> Timings:
    """The timings of steps `since`..`until` of one attempt, read in pieces, so that memory holds the matrices
    and little else."""
    names = analysis.phase_names(store, job, attempt, since, until).to_pylist()
    compute = sorted({n["phase"] for n in names if n["category"] == "compute"})
    communication = sorted({n["phase"] for n in names if n["category"] == "communication"})
    places = analysis.rank_nodes(store, job, attempt, since, until)
    grid = _Grid(np.arange(since, until + 1), np.unique(_ints(places, "rank")))
    stride = max(1, CELLS_AT_ONCE // max(1, places.num_rows))
    for first in range(since, until + 1, stride):
        last = min(until, first + stride - 1)
        grid.put(analysis.steps(store, job, attempt, first, last))
        grid.put(
            analysis.step_parts(
                store, job, attempt, first, last, compute=compute, communication=communication
            )
        )
    topology = analysis.topology(store, job, attempt)
    return grid.timings(places, topology, job=job, attempt=attempt, first_step=first_step, now_ns=now_ns)


def build(
    *,
    steps: pa.Table,
    parts: pa.Table,
    topology: pa.Table,
    job: str = "",
    attempt: int = 0,
    first_step: int = 0,
    now_ns: int = 0,
) -> Timings:
    """Matrices from the tables of `stream.queries.analysis`, rows in any order; `steps` may have `node`."""
    both = [np.unique(np.concatenate([_ints(t, n) for t in (steps, parts)])) for n in ("step", "rank")]
    low = int(both[0][0]) if len(both[0]) else 0
    grid = _Grid(np.arange(low, low + 1 + int(np.ptp(both[0]) if len(both[0]) else 0)), both[1])
    grid.put(steps)
    grid.put(parts)
    return grid.timings(steps, topology, job=job, attempt=attempt, first_step=first_step, now_ns=now_ns)


class _Grid:
    """Matrices that tables with columns step and rank are put into, piece by piece. `steps` has no gap."""

    def __init__(self, steps: NDArray[np.int64], ranks: NDArray[np.int64]) -> None:
        self._steps, self._ranks = steps, ranks
        shape = (len(steps), len(ranks))
        self._matrices = {name: np.full(shape, np.nan) for name in (*PARTS, *NUMBERS)}
        self._logged = {name: np.zeros(shape, np.bool_) for name in LOGGED}
        self._seen = np.zeros(len(steps), np.bool_)

    def put(self, table: pa.Table) -> None:
        """Enter every column that is known; rows of ranks that are not are left out."""
        if not table.num_rows or not len(self._ranks):
            return
        row, rank = _ints(table, "step") - self._steps[0], _ints(table, "rank")
        column = np.minimum(np.searchsorted(self._ranks, rank), len(self._ranks) - 1)
        kept = self._ranks[column] == rank
        every = bool(kept.all())
        flat = row * len(self._ranks) + column if every else (row * len(self._ranks) + column)[kept]
        self._seen[np.unique(row)] = True
        for name in set(table.column_names) & self._matrices.keys():
            values = table.column(name).to_numpy()
            self._matrices[name].reshape(-1)[flat] = values if every else values[kept]
        for name in set(table.column_names) & self._logged.keys():
            told = table.column(name).is_valid().to_numpy()
            self._logged[name].reshape(-1)[flat] = told if every else told[kept]

    def timings(
        self, places: pa.Table, topology: pa.Table, *, job: str, attempt: int, first_step: int, now_ns: int
    ) -> Timings:
        """What was put, without steps that nobody has."""
        kept = self._seen
        whole = bool(kept.all())
        matrices = self._matrices if whole else {n: m[kept] for n, m in self._matrices.items()}
        parts = {name: matrices[name] for name in PARTS}
        share = _undisturbed(parts)
        if share is not None:
            parts |= {name: parts[name] * share for name in COMPUTED}
        return Timings(
            job=job,
            attempt=attempt,
            now_ns=now_ns,
            steps=self._steps[kept],
            ranks=self._ranks,
            nodes=_nodes(places, topology, self._ranks),
            stages=_by_rank(topology, "pp", self._ranks, -1),
            parts=parts,
            numbers={name: matrices[name] for name in NUMBERS},
            logged={name: m[kept] for name, m in self._logged.items()},
            first_step=first_step,
            placed=topology.num_rows > 0,
            replicas=_by_rank(topology, "dp", self._ranks, -1),
            kept=share,
        )


def _undisturbed(parts: Mapping[str, Matrix]) -> Matrix | None:
    """Which share of the computed parts is left net of waits for a processor; None on a host that is not
    crowded.

    Some of a step's waits fall between its parts, so that a step may seem to take less than it can: none
    counts for less than its rank's lower quartile.
    """
    compute, waited = parts["compute"], np.nan_to_num(parts["cpu_wait"])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = waited / compute
    told = share[np.isfinite(share)]
    if not told.size or np.median(told) < CROWDED:
        return None
    own = np.maximum(compute - waited, LEAST * compute)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # ranks without a value
        usual = np.nanquantile(own, LOW, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.nan_to_num(np.minimum(np.maximum(own, usual) / compute, 1.0), nan=1.0)
    return np.asarray(kept)


def _ints(table: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(table.column(name).to_numpy(), np.int64)


def _by_rank(table: pa.Table, name: str, ranks: NDArray[np.int64], default: int) -> NDArray[np.int64]:
    if name not in table.column_names:
        return np.full(len(ranks), default, np.int64)
    known = dict(zip(_ints(table, "rank").tolist(), _ints(table, name).tolist(), strict=True))
    return np.array([known.get(rank, default) for rank in ranks.tolist()], np.int64)


def _nodes(places: pa.Table, topology: pa.Table, ranks: NDArray[np.int64]) -> NDArray[np.str_]:
    """The node of each rank: what its steps say, else the topology."""
    known: dict[int, str] = {}
    for table in (topology, places):
        if table.num_rows and "node" in table.column_names:
            values, first = np.unique(_ints(table, "rank"), return_index=True)
            names: Sequence[Any] = table.column("node").take(pa.array(first)).to_pylist()
            known |= dict(zip(values.tolist(), names, strict=True))
    return np.array([str(known.get(rank, "")) for rank in ranks.tolist()], np.str_)
