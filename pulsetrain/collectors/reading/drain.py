"""A rank's ring as Arrow batches of records, and as the status that its node's heartbeat carries.

Slots become columns with numpy, whole batches at a time; names stay dictionary-encoded from the ring to the
store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsetrain.collectors.layout import AXES, HAS_GRAD_NORM, HAS_LOSS, Structured
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.collectors.reading.status_page import GroupCell, StatusPage
from pulsetrain.protocol.messages import GroupStatus, ProcessState, RankStatus
from pulsetrain.records.schema import CATEGORIES, arrow_schema

OPEN_AFTER_NS = 1_000_000_000  # spans that are open for longer are reported as such, at most this often

Batches = list[tuple[str, pa.RecordBatch]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _OpenSpan:
    """A row of `spans` with `open` = true; `start_ns` is on the ring's clock."""

    phase: str
    category: str
    group: str
    seq: int
    bytes: int
    start_ns: int
    parent: str


class Drain:
    """Reads one rank's ring. One thread calls it, a few times a second; nothing in it waits for the rank."""

    def __init__(
        self,
        reader: RingReader,
        *,
        job: str,
        attempt: int,
        node: str,
        rank: int,
        local_rank: int,
        address: str,
    ) -> None:
        self._reader = reader
        self._job, self._attempt, self._node, self._rank = job, attempt, node, rank
        self._local_rank, self._address = local_rank, address
        self._reported: dict[tuple[str, str, int], int] = {}
        self._placed = False

    @property
    def dropped(self) -> int:
        """Records that never became rows: the ring was full, the slot was not whole, or it held nonsense."""
        return self._reader.dropped + self._reader.lost + self._reader.garbage

    @property
    def errors(self) -> int:
        """Faults of Pulsetrain's own inside the rank, which the rank swallowed and counted."""
        return self._reader.status().errors

    def batches(self, now_ns: int, *, final: bool = False) -> Batches:
        """What the rank recorded since the last call, spans that are still open, and once its topology.

        `now_ns` is UTC; `final` says that the rank is dead, so that nothing more can arrive.
        """
        spans, steps = self._reader.drain(final=final)
        page = self._reader.status()
        batches: Batches = []
        if len(spans):
            batches.append(("spans", self._spans(spans, page.utc_offset_ns)))
        open_spans = self._due(_open_spans(page), now_ns - page.utc_offset_ns)
        if open_spans:
            batches.append(("spans", self._open(open_spans, page, now_ns)))
        if len(steps):
            batches.append(("steps", self._steps(steps, page.utc_offset_ns)))
        coordinates = self._reader.topology()
        if coordinates is not None and not self._placed:
            self._placed = True
            batches.append(("topology", self._topology(coordinates, now_ns)))
        return batches

    def status(self, pid: int, state: ProcessState, now_ns: int) -> RankStatus:
        """Where the rank is; `pid` and `state` are what /proc says, `now_ns` is UTC."""
        page = self._reader.status()
        now = now_ns - page.utc_offset_ns
        started = page.stack[-1].start_ns if page.stack else page.last_ns
        return RankStatus(
            rank=self._rank,
            local_rank=self._local_rank,
            pid=pid,
            state=state,
            last_step=page.last_step if page.pid else -1,
            last_phase=page.stack[-1].name if page.stack else "",
            phase_age_ns=_age(now, started),
            progress=self._reader.written + page.dropped + sum(g.enqueued + g.completed for g in page.groups),
            progress_age_ns=_age(now, page.last_ns),
            groups=tuple(_group_status(group, now) for group in page.groups),
            dropped=self.dropped,
        )

    def _spans(self, rows: Structured, offset_ns: int) -> pa.RecordBatch:
        names = self._reader.names
        start = rows["start"]
        return self._batch(
            "spans",
            len(rows),
            {
                "step": rows["step"].astype(np.int64),
                "microbatch": rows["microbatch"].astype(np.int32),
                "phase": _named(rows["name"], names),
                "category": _named(rows["category"], CATEGORIES),
                "lane": _named(rows["lane"], names),
                "group": _named(rows["group"], names),
                "seq": np.ascontiguousarray(rows["seq"]),
                "bytes": np.ascontiguousarray(rows["bytes"]),
                "start": start + offset_ns,
                "duration_ns": rows["end"] - start,
                "open": pa.array(np.zeros(len(rows), np.bool_)),
                "parent": _named(rows["parent"], names),
            },
        )

    def _open(self, spans: list[_OpenSpan], page: StatusPage, now_ns: int) -> pa.RecordBatch:
        start = np.array([s.start_ns for s in spans]) + page.utc_offset_ns
        return self._batch(
            "spans",
            len(spans),
            {
                "step": np.full(len(spans), page.step, np.int64),
                "microbatch": np.full(len(spans), -1, np.int32),
                "phase": _encoded([s.phase for s in spans]),
                "category": _encoded([s.category for s in spans]),
                "lane": _constant("host", len(spans)),
                "group": _encoded([s.group for s in spans]),
                "seq": np.array([s.seq for s in spans], np.int64),
                "bytes": np.array([s.bytes for s in spans], np.int64),
                "start": start,
                "duration_ns": now_ns - start,
                "open": pa.array(np.ones(len(spans), np.bool_)),
                "parent": _encoded([s.parent for s in spans]),
            },
        )

    def _steps(self, rows: Structured, offset_ns: int) -> pa.RecordBatch:
        flags = rows["flags"]
        return self._batch(
            "steps",
            len(rows),
            {
                "step": rows["step"].astype(np.int64),
                "start": rows["start"] + offset_ns,
                "duration_ns": np.ascontiguousarray(rows["duration"]),
                "tokens": np.ascontiguousarray(rows["tokens"]),
                "flops": np.ascontiguousarray(rows["flops"]),
                "loss": pa.array(rows["loss"].copy(), mask=(flags & HAS_LOSS) == 0),
                "grad_norm": pa.array(rows["grad_norm"].copy(), mask=(flags & HAS_GRAD_NORM) == 0),
            },
        )

    def _topology(self, coordinates: tuple[int, ...], now_ns: int) -> pa.RecordBatch:
        columns: dict[str, object] = {
            axis: np.array([coordinate], np.int32) for axis, coordinate in zip(AXES, coordinates, strict=True)
        }
        columns |= {
            "local_rank": np.array([self._local_rank], np.int32),
            "ip": _constant(self._address, 1),
            "switch": _constant("", 1),
            "ts": np.array([now_ns]),
        }
        return self._batch("topology", 1, columns)

    def _batch(self, record: str, rows: int, columns: Mapping[str, object]) -> pa.RecordBatch:
        """`columns` plus what is the same for every row of this rank, in the record's order and types."""
        same = {
            "job": _constant(self._job, rows),
            "attempt": np.full(rows, self._attempt, np.int32),
            "node": _constant(self._node, rows),
            "rank": np.full(rows, self._rank, np.int32),
        }
        schema = arrow_schema(record)
        arrays = [_array(columns.get(f.name, same.get(f.name)), f.type) for f in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _due(self, spans: list[_OpenSpan], now: int) -> list[_OpenSpan]:
        """Those old enough and not reported within the last second; `now` is on the ring's clock."""
        due, reported = [], {}
        for span in spans:
            key = (span.phase, span.group, span.start_ns)
            last = self._reported.get(key)
            if now - span.start_ns >= OPEN_AFTER_NS and (last is None or now - last >= OPEN_AFTER_NS):
                due.append(span)
                last = now
            if last is not None:
                reported[key] = last
        self._reported = reported
        return due


def _open_spans(page: StatusPage) -> list[_OpenSpan]:
    """Open phases, and the oldest operation in flight of each group."""
    phases = [phase for phase in page.stack if not phase.waiting]
    spans = [
        _OpenSpan(
            phase=phase.name,
            category=phase.category,
            group="",
            seq=-1,
            bytes=0,
            start_ns=phase.start_ns,
            parent=phases[i - 1].name if i else "",
        )
        for i, phase in enumerate(phases)
    ]
    for group in page.groups:
        if group.op:
            inside = [phase.name for phase in phases if phase.start_ns <= group.op_start_ns]
            spans.append(
                _OpenSpan(
                    phase=group.op,
                    category="communication",
                    group=group.name,
                    seq=group.op_seq,
                    bytes=group.op_bytes,
                    start_ns=group.op_start_ns,
                    parent=inside[-1] if inside else "",
                )
            )
    return spans


def _group_status(group: GroupCell, now: int) -> GroupStatus:
    busy = bool(group.op)
    return GroupStatus(
        group=group.name,
        members=group.members,
        enqueued=group.enqueued,
        completed=group.completed,
        op=group.op,
        op_seq=group.op_seq if busy else -1,
        op_bytes=group.op_bytes if busy else 0,
        op_age_ns=_age(now, group.op_start_ns) if busy else 0,
        peer=group.op_peer if busy else -1,
    )


def _age(now: int, since: int) -> int:
    return max(0, now - since) if since > 0 else 0


def _array(column: object, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    array = pa.array(column)
    return array if array.type == kind else array.view(kind)


def _named(indices: npt.NDArray[np.unsignedinteger], names: list[str] | tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32)), pa.array(names, pa.string()))


def _constant(name: str, rows: int) -> pa.Array:
    return _named(np.zeros(rows, np.uint32), [name])


def _encoded(names: list[str]) -> pa.Array:
    return pa.array(names, pa.dictionary(pa.int32(), pa.string()))
