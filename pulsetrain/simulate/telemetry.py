"""The records that a job of any size would emit, deterministic by seed: spans, steps, topology, events.

The records show that they are simulated. An event of kind `simulated` holds the whole specification, nodes
are called sim-..., and the job's default name is "simulated".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.records import columns as records
from pulsetrain.records.arrow import arrow_schema, to_table
from pulsetrain.records.columns import Column, Columns, nullable
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.timing import Array, StepTimes, shape, simulate_step

NS = 1e9
HUNG_S = 30.0  # age of the open spans of a hang

Codes = NDArray[np.int64] | NDArray[np.int32]
_CATEGORY = {"forward": "compute", "backward": "compute", "optimizer": "compute", "data": "data"}
_CATEGORY |= {"checkpoint": "checkpoint", "gc": "other"}


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """One span of the program of a step, which every rank runs: what is the same on all of them."""

    phase: str
    microbatch: int = -1
    group: str = ""  # which process group: tp, dp, pp, world or none
    seq: int = -1
    bytes: int = 0
    parent: str = ""
    peer_stage: int = 0  # of a send or receive: 1 for the next stage, -1 for the one before


@dataclass(frozen=True, kw_only=True)
class _Program:
    """The spans of one step, [rank, slot] in seconds. Duration 0: the rank has no span in the slot."""

    slots: Sequence[_Slot]
    start: Array
    duration: Array
    open: NDArray[np.bool_]


Add = Callable[[_Slot, Array, Array | float], None]


def telemetry(spec: FleetSpec, chunk_rows: int = 1_000_000) -> Iterator[tuple[str, pa.Table]]:
    """(record, table) pairs in the order of time. A table of spans has about `chunk_rows` rows at most."""
    yield "events", _announcement(spec)
    yield "topology", _table(topology(spec))
    offset_s = 0.0
    spans: list[pa.Table] = []
    steps: list[pa.Table] = []
    rows = 0
    for step in range(spec.first_step, spec.first_step + spec.steps):
        times = simulate_step(spec, step)
        hung = _hung(spec, step)
        spans.append(_table(span_rows(spec, step, times, offset_s, hung=hung)))
        rows += len(spans[-1])
        if hung < 0:
            steps.append(_table(step_rows(spec, step, times, offset_s)))
        offset_s += times.length
        if rows >= chunk_rows or hung >= 0:
            yield from _flush(spans, steps)
            rows = 0
        if hung >= 0:
            return
    yield from _flush(spans, steps)


def _flush(spans: list[pa.Table], steps: list[pa.Table]) -> Iterator[tuple[str, pa.Table]]:
    for record, tables in (("spans", spans), ("steps", steps)):
        if tables:
            yield record, pa.concat_tables(tables)
            tables.clear()


def _hung(spec: FleetSpec, step: int) -> int:
    """The rank that hangs in this step. -1: none."""
    return next((f.rank() for f in spec.faults if f.kind == "hang" and f.since == step), -1)


def span_rows(
    spec: FleetSpec,
    step: int,
    times: StepTimes,
    offset_s: float,
    *,
    hung: int = -1,
    communication: bool = True,
) -> Columns:
    """Rows of `spans` of one step that began `offset_s` after the spec's start, by rank and in program order.

    `hung` is a rank that stands still in this step, -1 for none. Without `communication` only spans of other
    categories are there. Their `blocked_ns` still says how long they stood still for it.
    """
    program = _program(spec, step, times)
    if hung >= 0:
        program = _frozen(spec, program, hung)
    slots = program.slots
    arrives = (program.duration > 0) & ~_silent(spec, step)[:, None]
    if not communication:
        arrives &= np.array([s.phase in _CATEGORY for s in slots])
    rank, slot = np.nonzero(arrives | program.open)
    start_ns = (spec.start_ns + ((offset_s + program.start[rank, slot]) * NS)).astype(np.int64)
    columns = _rank_columns(spec, rank) | {
        "step": np.full(len(rank), step),
        "microbatch": np.array([s.microbatch for s in slots], np.int32)[slot],
        "phase": _coded(slot, [s.phase for s in slots]),
        "category": _coded(slot, [_CATEGORY.get(s.phase, "communication") for s in slots]),
        "lane": _coded(np.zeros(len(rank), np.int32), ["main"]),
        "group": _groups(spec, slots, rank, slot),
        "seq": np.array([s.seq for s in slots])[slot],
        "bytes": np.array([s.bytes for s in slots])[slot],
        "start": start_ns,
        "duration_ns": (program.duration[rank, slot] * NS).astype(np.int64),
        "open": program.open[rank, slot],
        "parent": _coded(slot, [s.parent for s in slots]),
        "blocked_ns": (_blocked(program)[rank, slot] * NS).astype(np.int64),
        "peer": _peers(spec, slots, rank, slot),
    }
    return Columns.from_values("spans", len(rank), columns)


def _peers(
    spec: FleetSpec, slots: Sequence[_Slot], rank: NDArray[np.int64], slot: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The rank at the other end of each send and receive, on a neighbouring stage. -1 for other spans."""
    stages = np.array([s.peer_stage for s in slots])[slot]
    return np.where(stages != 0, rank + stages * spec.dp * spec.tp, -1)


def _blocked(program: _Program) -> Array:
    """How long each span stood still for communication [rank, slot]. Of all communication, only sends go on
    beside the work of their rank."""
    blocked = np.zeros_like(program.duration)
    inside: dict[tuple[str, int], Array] = {}
    for i, slot in enumerate(program.slots):
        if _CATEGORY.get(slot.phase, "communication") == "communication" and slot.phase != "send":
            blocked[:, i] = program.duration[:, i]
            key = (slot.parent, slot.microbatch)
            inside[key] = inside.get(key, 0.0) + program.duration[:, i]
    for i, slot in enumerate(program.slots):
        if _CATEGORY.get(slot.phase) == "compute" and (slot.phase, slot.microbatch) in inside:
            blocked[:, i] = np.minimum(inside[slot.phase, slot.microbatch], program.duration[:, i])
    return blocked


def _program(spec: FleetSpec, step: int, times: StepTimes) -> _Program:
    """The spans of a step in program order."""
    slots: list[_Slot] = []
    starts: list[Array] = []
    durations: list[Array] = []

    def add(slot: _Slot, start: Array, duration: Array | float) -> None:
        slots.append(slot)
        starts.append(np.broadcast_to(start, shape(spec)).reshape(-1))
        durations.append(np.broadcast_to(duration, shape(spec)).reshape(-1))

    zero = np.zeros(shape(spec))
    add(_Slot(phase="data"), zero, times.data)
    add(_Slot(phase="gc", parent="forward"), times.forward_start[..., 0], times.gc)
    _add_passes(spec, step, times, add)
    add(
        _Slot(phase="all_reduce", group="dp", seq=step, bytes=1 << 28),
        times.reduce_start,
        times.reduce if spec.dp > 1 else 0.0,
    )
    reduced = times.reduce_start + times.reduce
    add(_Slot(phase="all_reduce", group="world", seq=step, bytes=4), reduced, times.norm)
    after = reduced + times.norm
    add(_Slot(phase="optimizer"), after, times.optimizer)
    add(_Slot(phase="checkpoint"), after + times.optimizer, times.checkpoint)
    start, duration = np.stack(starts, axis=1), np.stack(durations, axis=1)
    return _Program(slots=slots, start=start, duration=duration, open=np.zeros(start.shape, np.bool_))


def _add_passes(spec: FleetSpec, step: int, times: StepTimes, add: Add) -> None:
    """Forwards and backwards, each with its receive before, its send behind and the all-reduces inside it."""
    stage = np.arange(spec.pp)[:, None, None]
    passes = (
        ("forward", times.forward_start, times.forward, times.forward_own, times.forward_wait, 1),
        ("backward", times.backward_start, times.backward, times.backward_own, times.backward_wait, 2),
    )
    for number, (phase, start, whole, own, wait, collectives) in enumerate(passes):
        ahead = -1 if number else 1  # where the pass goes: gradients go back
        sends = np.where((stage + ahead >= 0) & (stage + ahead < spec.pp), spec.p2p_s, 0.0)
        for m in range(spec.microbatches):
            seq = (step * 2 + number) * spec.microbatches + m
            begin, length = start[..., m], whole[..., m]
            recv = _Slot(phase="recv", microbatch=m, group="pp", seq=seq, bytes=1 << 24, peer_stage=-ahead)
            add(recv, begin - wait[..., m], wait[..., m])
            add(_Slot(phase=phase, microbatch=m), begin, length)
            add(dataclasses.replace(recv, phase="send", peer_stage=ahead), begin + length, sends)
            share = (length - own[..., m]) / collectives if spec.tp > 1 else np.zeros(shape(spec))
            for c in range(collectives):
                inner = _Slot(
                    phase="all_reduce", microbatch=m, group="tp", seq=seq * 2 + c, bytes=1 << 23, parent=phase
                )
                add(inner, begin + own[..., m] * (c + 1) / collectives + share * c, share)


def _frozen(spec: FleetSpec, program: _Program, hung: int) -> _Program:
    """Stop rank `hung` in its last backward. Its peers wait in the gradient all-reduce.

    So do all others, or in the all-reduce over all ranks where the job has one.
    """
    last = max(i for i, s in enumerate(program.slots) if s.phase == "backward")
    reduce = next(i for i, s in enumerate(program.slots) if s.group == "dp")
    waits_in = np.full(spec.ranks, reduce + 1 if spec.norm_s > 0 else reduce)
    waits_in[spec.dp_peers(hung)] = reduce
    waits_in[hung] = last
    slot = np.arange(program.open.shape[1])
    opened = slot == waits_in[:, None]
    duration = np.where(slot > waits_in[:, None], 0.0, program.duration)
    return dataclasses.replace(program, duration=np.where(opened, HUNG_S, duration), open=opened)


def _silent(spec: FleetSpec, step: int) -> NDArray[np.bool_]:
    """Ranks whose records do not arrive."""
    silent = np.zeros(spec.ranks, np.bool_)
    for fault in spec.faults:
        if fault.kind == "silent" and fault.affects(step):
            if fault.node:
                first = int(fault.node.rpartition("-")[2]) * spec.ranks_per_node
                silent[first : first + spec.ranks_per_node] = True
            elif fault.rank() >= 0:
                silent[fault.rank()] = True
    return silent


def step_rows(spec: FleetSpec, step: int, times: StepTimes, offset_s: float) -> Columns:
    """Rows of `steps` of one step that began `offset_s` after the spec's start, by rank."""
    rank = np.flatnonzero(~_silent(spec, step))
    last_stage = rank >= spec.ranks - spec.ranks // spec.pp
    loss = loss_of(spec, step)
    columns = _rank_columns(spec, rank) | {
        "step": np.full(len(rank), step),
        "start": np.full(len(rank), spec.start_ns + int(offset_s * NS)),
        "duration_ns": np.full(len(rank), int(times.length * NS)),
        "tokens": np.full(len(rank), spec.tokens),
        "flops": np.full(len(rank), np.nan),
        "loss": nullable(np.full(len(rank), loss), last_stage),
        "grad_norm": np.full(len(rank), 0.5 * loss),
    }
    return Columns.from_values("steps", len(rank), columns)


def loss_of(spec: FleetSpec, step: int) -> float:
    """The loss of a step, planted faults included."""
    loss = 2.0 + 8.0 / (1.0 + 0.05 * step)
    loss += float(np.random.default_rng((spec.seed, step, 1)).normal(0, 0.01))
    for fault in spec.faults:
        if fault.kind == "nan" and fault.affects(step):
            return float("nan")
        if fault.kind == "loss_spike" and fault.affects(step):
            loss *= fault.numbers["factor"]
    return loss


def _rank_columns(spec: FleetSpec, rank: NDArray[np.int64]) -> dict[str, object]:
    """Columns that every record of a rank begins with."""
    nodes = [spec.node(r) for r in range(0, spec.ranks, spec.ranks_per_node)]
    return {
        "job": _coded(np.zeros(len(rank), np.int32), [spec.job]),
        "attempt": np.full(len(rank), spec.attempt),
        "node": _coded(rank // spec.ranks_per_node, nodes),
        "rank": rank,
    }


def _groups(
    spec: FleetSpec, slots: Sequence[_Slot], rank: NDArray[np.int64], slot: NDArray[np.int64]
) -> Column:
    """Each row's process group: one tp group for each (pp, dp), one dp group for each (pp, tp), and so on."""
    tp, dp = rank % spec.tp, rank // spec.tp % spec.dp
    pp = rank // (spec.tp * spec.dp)
    names = [""]
    code = np.zeros(len(rank), np.int32)
    for group, index, count in (
        ("tp", pp * spec.dp + dp, spec.pp * spec.dp),
        ("dp", pp * spec.tp + tp, spec.pp * spec.tp),
        ("pp", dp * spec.tp + tp, spec.dp * spec.tp),
        ("world", np.zeros(len(rank), np.int64), 1),
    ):
        mine = np.array([s.group == group for s in slots])[slot]
        code[mine] = len(names) + index[mine]
        names += [group_name(group, i) for i in range(count)]
    return _coded(code, names)


def group_name(kind: str, index: int) -> str:
    """The name of a process group. There is one group of all ranks, and several of each other kind."""
    return kind if kind == "world" else f"{kind}-{index}"


def topology(spec: FleetSpec) -> Columns:
    """Rows of `topology`, by rank."""
    rank = np.arange(spec.ranks)
    zero = np.zeros(spec.ranks)
    node = rank // spec.ranks_per_node
    switches = [f"sim-tor-{i:04d}" for i in range(node[-1] // spec.nodes_per_switch + 1)]
    addresses = [f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" for n in range(node[-1] + 1)]
    columns = _rank_columns(spec, rank) | {
        "local_rank": rank % spec.ranks_per_node,
        "ip": _coded(node, addresses),
        "switch": _coded(node // spec.nodes_per_switch, switches),
        "tp": rank % spec.tp,
        "pp": rank // (spec.tp * spec.dp),
        "dp": rank // spec.tp % spec.dp,
        "cp": zero,
        "ep": zero,
        "ts": np.full(spec.ranks, spec.start_ns),
    }
    return Columns.from_values("topology", spec.ranks, columns)


def _announcement(spec: FleetSpec) -> pa.Table:
    """The event that marks the job as simulated and holds its specification."""
    detail = dataclasses.asdict(spec)
    row = {"ts": spec.start_ns, "node": "", "job": spec.job, "attempt": spec.attempt, "rank": -1}
    row |= {"kind": "simulated", "actor": "pulsetrain simulate", "detail": json.dumps(detail)}
    return pa.Table.from_pylist([row], schema=arrow_schema("events"))


def _coded(codes: Codes, names: Sequence[str]) -> Column:
    """A column of `names` by code. Equal names are merged."""
    unique = sorted(set(names))
    position = {name: i for i, name in enumerate(unique)}
    table = np.array([position[n] for n in names], np.int32)
    return records.coded(table[codes], unique)


def _table(rows: Columns) -> pa.Table:
    """Rows as the record's Arrow table."""
    return to_table(rows).cast(arrow_schema(rows.record))
