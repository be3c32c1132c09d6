"""Where the time of every step of every rank went, as matrices: what the analyzers of slowness share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.stream.findings import Finding, Severity, SubjectType
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
    "aside",
)
NUMBERS = ("start_ns", "duration_ns", "tokens", "flops", "loss", "grad_norm")
WARM_STEPS = 2  # first steps of an attempt: compilation, allocation and connections


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Steps x ranks. `parts` and `numbers` are matrices by name, NaN where a rank has no row for a step.

    `parts` are nanoseconds; `numbers` hold start_ns (since the first start), duration_ns, tokens, flops, loss
    and grad_norm. `logged` is true where a loss or gradient norm was logged: a NaN there is a real one.
    `nodes` and `stages` go by rank; a stage is -1 where the topology is not known.
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
    """The timings of steps `since`..`until` of one attempt."""
    names = analysis.phase_names(store, job, attempt, since, until).to_pylist()
    parts = analysis.step_parts(
        store,
        job,
        attempt,
        since,
        until,
        compute=sorted({n["phase"] for n in names if n["category"] == "compute"}),
        communication=sorted({n["phase"] for n in names if n["category"] == "communication"}),
    )
    return build(
        steps=analysis.steps(store, job, attempt, since, until),
        parts=parts,
        topology=analysis.topology(store, job, attempt),
        job=job,
        attempt=attempt,
        first_step=first_step,
        now_ns=now_ns,
    )


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
    """Matrices from the tables of `stream.queries.analysis`, in any order of rows."""
    rank_values = np.unique(np.concatenate([_ints(t, "rank") for t in (steps, parts)]))
    step_values = np.unique(np.concatenate([_ints(t, "step") for t in (steps, parts)]))
    shape = (len(step_values), len(rank_values))
    in_steps = _Cells(steps, step_values, rank_values, shape)
    in_parts = _Cells(parts, step_values, rank_values, shape)
    return Timings(
        job=job,
        attempt=attempt,
        now_ns=now_ns,
        steps=step_values,
        ranks=rank_values,
        nodes=_nodes(steps, topology, rank_values),
        stages=_by_rank(topology, "pp", rank_values, -1),
        parts={name: in_parts.matrix(name) for name in PARTS},
        numbers={name: in_steps.matrix(name) for name in NUMBERS},
        logged={name: in_steps.present(name) for name in ("loss", "grad_norm")},
        first_step=first_step,
        placed=topology.num_rows > 0,
    )


class _Cells:
    """Rows of a table as places in a steps x ranks matrix."""

    def __init__(
        self, table: pa.Table, steps: NDArray[np.int64], ranks: NDArray[np.int64], shape: tuple[int, int]
    ) -> None:
        self._table, self._shape = table, shape
        row, column = (
            np.searchsorted(steps, _ints(table, "step")),
            np.searchsorted(ranks, _ints(table, "rank")),
        )
        self._flat = row * max(1, shape[1]) + column

    def matrix(self, name: str) -> Matrix:
        full = np.full(self._shape[0] * self._shape[1], np.nan)
        if name in self._table.column_names:
            values = self._table.column(name).to_numpy()
            if name == "start_ns" and len(values):
                values = values - values.min()
            full[self._flat] = values
        return full.reshape(self._shape)

    def present(self, name: str) -> NDArray[np.bool_]:
        full = np.zeros(self._shape[0] * self._shape[1], np.bool_)
        if name in self._table.column_names:
            full[self._flat] = self._table.column(name).is_valid().to_numpy(zero_copy_only=False)
        return full.reshape(self._shape)


def _ints(table: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(table.column(name).to_numpy(), np.int64)


def _by_rank(table: pa.Table, name: str, ranks: NDArray[np.int64], default: int) -> NDArray[np.int64]:
    known = dict(zip(_ints(table, "rank").tolist(), _ints(table, name).tolist(), strict=True))
    return np.array([known.get(rank, default) for rank in ranks.tolist()], np.int64)


def _nodes(steps: pa.Table, topology: pa.Table, ranks: NDArray[np.int64]) -> NDArray[np.str_]:
    """The node of each rank: what its steps say, else the topology."""
    known: dict[int, str] = {}
    for table in (topology, steps):
        if table.num_rows and "node" in table.column_names:
            values, first = np.unique(_ints(table, "rank"), return_index=True)
            names: Sequence[Any] = table.column("node").take(pa.array(first)).to_pylist()
            known |= dict(zip(values.tolist(), names, strict=True))
    return np.array([str(known.get(rank, "")) for rank in ranks.tolist()], np.str_)
