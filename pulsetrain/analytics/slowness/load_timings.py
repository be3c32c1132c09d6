"""Read the timings of an attempt from a store, or from the tables that its queries return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import pipeline_order
from pulsetrain.analytics.slowness.timings import (
    COMPUTED,
    LOGGED,
    NUMBERS,
    PARTS,
    WARM_STEPS,
    Timings,
    own_time,
    running_ratio,
    without_turns,
)
from pulsetrain.analytics.slowness.work_groups import WorkGroups, work_groups
from pulsetrain.records.arrow import number_array
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable

OVERLAP_STEPS = 8  # newest steps in which it is seen whether communication overlaps
OVERLAP_RATIO = 1.02  # sum of operations over their union, from which it does
OVERLAPPED = (
    "communication overlaps compute, and how long each rank stood still for it is not known: own time is "
    "only known within bounds that are far apart"
)
UNDISTURBED_RATIO = 0.15  # of a step, from which phases without communication stand for all of its compute
ORDER_STEPS = 8  # newest steps from which the order of a pipeline is read
GROUP_STEPS, LATE_STEPS = (
    5,
    2,
)  # from which it is read who works in which groups, and newer ones that may lack rows
GROUP_OPERATIONS = 3_000_000  # that are read for it: fewer steps of a larger job, none above that many a step
CELLS_AT_ONCE = 400_000  # steps x ranks of one query: bounds the memory of the store's aggregation


def load(store: Queryable, steps: AttemptSteps, *, first_step: int, now_ns: int) -> Timings:
    """The timings of these steps. `first_step` is that of the attempt.

    They are read in pieces, so that memory holds the matrices and little else.
    """
    nodes = analysis.rank_nodes(store, steps)
    builder = timings_builder(store, steps, nodes, *phases_of(store, steps))
    topology = analysis.topology(store, steps.job, steps.attempt)
    read_order(builder, store, steps, topology)
    read_groups(builder, store, steps, first_step)
    return builder.timings(
        nodes, topology, job=steps.job, attempt=steps.attempt, first_step=first_step, now_ns=now_ns
    )


def phases_of(store: Queryable, steps: AttemptSteps) -> tuple[list[str], list[str]]:
    """The names of the phases of these steps that compute, and of those that communicate, in order."""
    names = analysis.phase_names(store, steps).to_pylist()
    compute = sorted({n["phase"] for n in names if n["category"] == "compute"})
    return compute, sorted({n["phase"] for n in names if n["category"] == "communication"})


def timings_builder(
    store: Queryable,
    steps: AttemptSteps,
    nodes: pa.Table,
    compute: Sequence[str],
    communication: Sequence[str],
) -> TimingsBuilder:
    """Everything about these steps, in a builder. `nodes` names the ranks."""
    builder = TimingsBuilder(np.arange(steps.first, steps.last + 1), np.unique(_ints(nodes, "rank")))
    for part in steps.parts(builder.steps_at_once):
        builder.add(analysis.steps(store, part))
    read_parts(builder, store, steps, compute, communication)
    return builder


def read_parts(
    builder: TimingsBuilder,
    store: Queryable,
    steps: AttemptSteps,
    compute: Sequence[str],
    communication: Sequence[str],
) -> bool:
    """Enter where the time of these steps went. Returns whether all of their phases are named."""
    unnamed = 0
    for part in steps.parts(builder.steps_at_once):
        parts = analysis.step_parts(store, part, compute=compute, communication=communication)
        unnamed += int(pc.max(parts.column("unnamed")).as_py() or 0)
        builder.add(parts)
    builder.pipeline = "recv" in communication
    builder.overlapped = builder.assumed and (builder.overlapped or _overlaps(store, steps))
    for part in steps.parts(builder.steps_at_once) if builder.assumed else ():
        builder.add(analysis.undisturbed_compute(store, part, compute=compute, communication=communication))
    return not unnamed


def read_order(builder: TimingsBuilder, store: Queryable, steps: AttemptSteps, topology: pa.Table) -> None:
    """Enter the pipeline stages as the transfers show them, where ranks send and no mesh tells stages."""
    if not builder.pipeline or builder.order or _tells_stages(topology):
        return
    newest = replace(steps, first=max(steps.first, steps.last - ORDER_STEPS))
    heard = pipeline_order.heard_first(analysis.first_transfers(store, newest))
    builder.order = pipeline_order.stages(heard, builder.ranks.tolist())


def read_groups(builder: TimingsBuilder, store: Queryable, steps: AttemptSteps, first_step: int) -> None:
    """Enter in which groups ranks work, once that was read or enough steps are stored to read it."""
    last = steps.last - LATE_STEPS
    first = max(steps.first, first_step + WARM_STEPS, last - GROUP_STEPS + 1)
    if last - first + 1 < GROUP_STEPS:
        return
    newest = replace(steps, first=first, last=last)
    (row,) = analysis.communication_count(store, newest).to_pylist()
    count = min(GROUP_STEPS, GROUP_OPERATIONS // max(1, int(row["operations"] or 0)))
    if count:
        builder.groups = work_groups(analysis.group_work(store, replace(newest, first=last - count + 1)))


def _tells_stages(topology: pa.Table) -> bool:
    """Whether a mesh was named that tells why ranks send: a pipeline, or parts of a sequence."""
    axes = [axis for axis in ("pp", "cp") if axis in topology.column_names]
    return any(len(topology.column(axis).unique()) > 1 for axis in axes)


def _overlaps(store: Queryable, steps: AttemptSteps) -> bool:
    """Whether operations of a rank were in flight at the same time, in the newest of these steps."""
    first = max(steps.first, steps.last - OVERLAP_STEPS + 1)
    (row,) = analysis.communication_overlap(store, replace(steps, first=first)).to_pylist()
    return bool((row["total_ns"] or 0) > OVERLAP_RATIO * (row["covered_ns"] or 0))


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
    builder = TimingsBuilder(every_step, ranks)
    builder.add(steps)
    builder.add(parts)
    return builder.timings(steps, topology, job=job, attempt=attempt, first_step=first_step, now_ns=now_ns)


_FLAGS = ("assumed", "waits_known", "routed_bytes", "device_wait", "on_device", "undisturbed", "pieces")


class TimingsBuilder:
    """Fills matrices from tables with columns step and rank, piece by piece. `steps` has no gap.

    `pipeline`: ranks send to each other, so without a topology no two of them are known to do the same work.
    `order`: the stage of each rank as its transfers show it, None where it is not known or not needed.
    `overlapped`: operations were in flight together, and nobody measured how long ranks stood still.
    `groups`: in which process groups ranks work, None where it was not read.
    """

    def __init__(self, steps: NDArray[np.int64], ranks: NDArray[np.int64]) -> None:
        self._steps, self._ranks = steps, ranks
        shape = (len(steps), len(ranks))
        self._matrices = {name: np.full(shape, np.nan) for name in (*PARTS, *NUMBERS, *_FLAGS)}
        self._logged = {name: np.zeros(shape, np.bool_) for name in LOGGED}
        self._seen = np.zeros(len(steps), np.bool_)
        self.pipeline = self.overlapped = False
        self.order: dict[int, int] | None = None
        self.groups: WorkGroups | None = None

    @property
    def steps_at_once(self) -> int:
        """How many steps one query may read."""
        return max(1, CELLS_AT_ONCE // max(1, len(self._ranks)))

    @property
    def every_rank_has_a_step(self) -> bool:
        """Whether each rank has a row of `steps`."""
        return bool(np.isfinite(self._matrices["duration_ns"]).any(axis=0).all())

    @property
    def complete(self) -> NDArray[np.bool_]:
        """For each step whether every rank has its row of `steps`."""
        return np.asarray(np.isfinite(self._matrices["duration_ns"]).all(axis=1), np.bool_)

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The ranks of the columns."""
        return self._ranks

    def moved(self, first: int, last: int, *, until: int) -> TimingsBuilder:
        """A builder of steps `first`..`last` that holds what this one holds of them before step `until`."""
        builder = TimingsBuilder(np.arange(first, last + 1), self._ranks)
        builder.overlapped, builder.pipeline, builder.order = self.overlapped, self.pipeline, self.order
        builder.groups = self.groups
        begin, end = max(first, int(self._steps[0])), min(until, int(self._steps[-1]) + 1)
        if begin < end:
            here, there = (slice(begin - at, end - at) for at in (int(self._steps[0]), first))
            builder._seen[there] = self._seen[here]
            for name, matrix in self._matrices.items():
                builder._matrices[name][there] = matrix[here]
            for name, logged in self._logged.items():
                builder._logged[name][there] = logged[here]
        return builder

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

    @property
    def assumed(self) -> bool:
        """Whether a compute time rests on the assumption that communication blocks."""
        return bool((self._matrices["assumed"] == 1).any())

    def timings(
        self, nodes: pa.Table, topology: pa.Table, *, job: str, attempt: int, first_step: int, now_ns: int
    ) -> Timings:
        """What was added, without steps that no rank has."""
        seen = self._seen
        matrices = self._matrices if seen.all() else {n: m[seen] for n, m in self._matrices.items()}
        parts = {name: matrices[name] for name in PARTS}
        on_device = matrices["on_device"] == 1
        if on_device.any():  # a device computes on while the thread that feeds it waits for a processor
            parts["cpu_wait"] = np.where(on_device, 0.0, parts["cpu_wait"])
        undisturbed = _mostly(matrices["undisturbed"], matrices["duration_ns"])
        if self.overlapped:
            parts |= {name: np.full_like(parts[name], np.nan) for name in COMPUTED}
        if undisturbed is not None:
            parts["compute"] = undisturbed
        elif not self.overlapped and not (parts["compute"] > 0).any():
            parts["compute"] = own_time(parts, matrices["duration_ns"], matrices["waits_known"])
        ratio = running_ratio(parts)
        if ratio is not None:
            parts |= {name: parts[name] * ratio for name in COMPUTED}
        numbers = {name: matrices[name] for name in NUMBERS}
        whole, device_wait = numbers["duration_ns"], matrices["device_wait"]
        shares_devices = bool((device_wait > 0).any())
        groups = self.groups or WorkGroups()
        if shares_devices:
            numbers["duration_ns"] = without_turns(whole, device_wait)
            parts["wait"] = np.maximum(parts["wait"] - (whole - numbers["duration_ns"]), 0.0)
        return Timings(
            job=job,
            attempt=attempt,
            now_ns=now_ns,
            steps=self._steps[seen],
            ranks=self._ranks,
            nodes=_nodes(nodes, topology, self._ranks),
            stages=self._stages(topology),
            stages_known=self._tells(topology) or pipeline_order.is_chain(self.order or {}),
            parts=parts,
            numbers=numbers,
            logged={name: m[seen] for name, m in self._logged.items()},
            first_step=first_step,
            topology_known=topology.num_rows > 0,
            replicas=_by_rank(topology, "dp", self._ranks, -1),
            contexts=_by_rank(topology, "cp", self._ranks, -1),
            experts=_by_rank(topology, "ep", self._ranks, -1),
            running_ratio=ratio,
            unknown=OVERLAPPED if self.overlapped and undisturbed is None else "",
            routed_bytes=matrices["routed_bytes"],
            pieces=matrices["pieces"],
            roles=groups.roles_of(self._ranks),
            circles=groups.circles_of(self._ranks),
            shares_devices=shares_devices,
            on_device=bool(on_device.any()),
        )

    def _tells(self, topology: pa.Table) -> bool:
        """Whether the stages are those of the topology."""
        return not self.pipeline or _tells_stages(topology)

    def _stages(self, topology: pa.Table) -> NDArray[np.int64]:
        """The pipeline stage of each rank, -1 where not known. In an unknown pipeline each rank has its own.

        A mesh that only counts ranks says nothing of stages: it was assumed, as in data parallelism.
        """
        if self._tells(topology):
            stages = _by_rank(topology, "pp", self._ranks, -1)
            late = np.flatnonzero(stages == -1)
            if len(np.unique(stages[stages >= 0])) > 1:  # those that have not said theirs share none
                stages[late] = -2 - np.arange(len(late))
            return stages
        if self.order is None:
            return np.arange(len(self._ranks))
        return np.array([self.order[rank] for rank in self._ranks.tolist()], np.int64)


def _mostly(undisturbed: NDArray[np.float64], duration: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The undisturbed compute where it is enough of the usual step to tell who is slow, else None."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = undisturbed / duration
    known = share[np.isfinite(share)]
    return undisturbed if known.size and np.median(known) >= UNDISTURBED_RATIO else None


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
