"""Turns a rank's ring into batches of records, and into the status that its node's heartbeat carries.

Slots become columns with numpy, whole batches at a time. Names stay codes from the ring to the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pulsetrain.collectors.checkpoint_cell import CheckpointCell
from pulsetrain.collectors.layout import AXES, HAS_GRAD_NORM, HAS_LOSS, Structured
from pulsetrain.collectors.reading.device_words import DeviceWords
from pulsetrain.collectors.reading.position import RankPosition
from pulsetrain.collectors.reading.ring_clock import RingClock
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.collectors.reading.status_page import GroupCell, StatusPage
from pulsetrain.protocol.messages import GroupStatus, OwnCheckpoint, ProcessState, RankStatus
from pulsetrain.protocol.transfer_peer import NO_PEER
from pulsetrain.records.columns import Columns, coded, nullable
from pulsetrain.records.schema import CATEGORIES

OPEN_AFTER_NS = 1_000_000_000  # spans that are open for longer are reported as such, at most this often
DESCRIBE_EVERY = 30  # statuses, about as many seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class _OpenSpan:
    """A row of `spans` with `open` = true. `start_ns` is on the ring's clock."""

    phase: str
    category: str
    group: str
    seq: int
    bytes: int
    start_ns: int
    parent: str
    peer: int = NO_PEER


class Drain:
    """Reads one rank's ring. One thread calls it a few times a second. Nothing in it waits for the rank."""

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
        switch: str = "",
    ) -> None:
        self._reader = reader
        self._job, self._attempt, self._node, self._rank = job, attempt, node, rank
        self._local_rank, self._address, self._switch = local_rank, address, switch
        self._clock = RingClock()
        self._reported: dict[tuple[str, str, int], int] = {}
        self._topology_sent: tuple[int, ...] | None = None
        self._saved: CheckpointCell | None = None  # of which rows were made
        self._described = ""  # the description that was told
        self._statuses = 0

    @property
    def dropped(self) -> int:
        """Records that never became rows: ring full, slot incomplete, or content invalid."""
        return self._reader.dropped + self._reader.lost + self._reader.garbage

    @property
    def fill(self) -> float:
        """Share of the ring that the last call of `batches` found used."""
        return self._reader.fill

    @property
    def utc_ns(self) -> int:
        """See `RingReader.utc_ns`."""
        return self._reader.utc_ns

    @property
    def errors(self) -> int:
        """Faults of Pulsetrain itself inside the rank, which the rank caught and counted."""
        return self._reader.status().errors

    @property
    def device(self) -> DeviceWords:
        """Which device the rank takes turns on."""
        return self._reader.device

    @property
    def coordinates(self) -> dict[str, int] | None:
        """The rank's coordinates by axis, None until it has set them."""
        coordinates = self._reader.topology()
        return None if coordinates is None else dict(zip(AXES, coordinates, strict=True))

    def ask_for_profile(self, number: int, first_step: int, steps: int) -> None:
        """See `RingReader.ask_for_profile`."""
        self._reader.ask_for_profile(number, first_step, steps)

    def call_off_profile(self) -> None:
        """See `RingReader.call_off_profile`."""
        self._reader.call_off_profile()

    def restored(self, ahead_ns: int, utc_offset_ns: int) -> None:
        """See `RingReader.restored`."""
        self._reader.restored(ahead_ns, utc_offset_ns)
        self._clock.forget()

    def hold(self, number: int, past: int, until_ns: int, saved_step: int = -1) -> None:
        """See `RingReader.hold`."""
        self._reader.hold(number, past, until_ns, saved_step)

    @property
    def stands(self) -> bool:
        """See `RingReader.stands`."""
        return self._reader.stands

    @property
    def asked_hold(self) -> tuple[int, int]:
        """See `RingReader.asked_hold`."""
        return self._reader.asked_hold

    def position(self) -> RankPosition:
        """See `RingReader.position`."""
        return self._reader.position()

    @property
    def profile_number(self) -> int:
        """See `RingReader.profile_number`."""
        return self._reader.profile_number

    @property
    def profiled(self) -> int:
        """See `RingReader.profiled`."""
        return self._reader.profiled

    def batches(self, now_ns: int, *, final: bool = False) -> list[Columns]:
        """Return what was recorded since the last call, spans still open, and the topology when it changes.

        `now_ns` is UTC as the rank would say it. `final` says that the rank is dead, so that nothing more
        can arrive.
        """
        spans, steps = self._reader.drain(final=final)
        page = self._reader.status()
        self._clock.look(lambda: self._reader.utc_ns, page.utc_offset_ns)
        batches: list[Columns] = []
        if len(spans):
            batches.append(self._spans(spans, page.utc_offset_ns))
        open_spans = self._due(_open_spans(page), now_ns - page.utc_offset_ns)
        if open_spans:
            batches.append(self._open(open_spans, page, now_ns))
        if len(steps):
            batches.append(self._steps(steps, page.utc_offset_ns))
        coordinates = self._reader.topology()
        if coordinates is not None and coordinates != self._topology_sent:
            self._topology_sent = coordinates
            when_ns = self._clock.utc(now_ns - page.utc_offset_ns, page.utc_offset_ns)
            batches.append(self._topology(coordinates, when_ns))
        if page.saved is not None and _is_written_since(page.saved, self._saved):
            batches.append(self._write(page.saved, page.utc_offset_ns))
            self._saved = page.saved
        return batches

    def status(self, pid: int, state: ProcessState, now_ns: int) -> RankStatus:
        """Return where the rank is. `pid` and `state` are from /proc, `now_ns` is UTC."""
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
            waits_in=page.stack[-1].group if page.stack else "",
            progress=self._reader.written + page.dropped + sum(g.enqueued + g.completed for g in page.groups),
            progress_age_ns=_age(now, page.last_ns),
            groups=tuple(_group_status(group, now) for group in page.groups),
            dropped=self.dropped,
            resumed_step=page.resumed_step if page.pid else -1,
            saved=_own_checkpoint(page.saved, page.utc_offset_ns),
            loaded=_own_checkpoint(page.loaded, page.utc_offset_ns),
            instrumentation=self._news(),
        )

    def _news(self) -> str:
        """Return the description where it is new, and from time to time for a hub that came later."""
        text = self._reader.description()
        due = self._statuses % DESCRIBE_EVERY == 0
        self._statuses += 1
        if text == self._described and not due:
            return ""
        self._described = text
        return text

    def _spans(self, rows: Structured, offset_ns: int) -> Columns:
        names = self._reader.drained_names
        start = rows["start"]
        return self._batch(
            "spans",
            len(rows),
            {
                "step": rows["step"],
                "microbatch": rows["microbatch"],
                "phase": coded(rows["name"], names),
                "category": coded(rows["category"], CATEGORIES),
                "lane": coded(rows["lane"], names),
                "group": coded(rows["group"], names),
                "seq": rows["seq"],
                "bytes": rows["bytes"],
                "start": self._clock.all_utc(start, offset_ns),
                "duration_ns": rows["end"] - start,
                "open": False,
                "parent": coded(rows["parent"], names),
                "blocked_ns": rows["blocked"],
                "peer": rows["peer"],
            },
        )

    def _open(self, spans: list[_OpenSpan], page: StatusPage, now_ns: int) -> Columns:
        start = np.array([s.start_ns for s in spans])
        return self._batch(
            "spans",
            len(spans),
            {
                "step": page.step,
                "microbatch": -1,
                "phase": [s.phase for s in spans],
                "category": [s.category for s in spans],
                "lane": "host",
                "group": [s.group for s in spans],
                "seq": [s.seq for s in spans],
                "bytes": [s.bytes for s in spans],
                "start": self._clock.all_utc(start, page.utc_offset_ns),
                "duration_ns": now_ns - page.utc_offset_ns - start,
                "open": True,
                "parent": [s.parent for s in spans],
                "blocked_ns": -1,
                "peer": [s.peer for s in spans],
            },
        )

    def _steps(self, rows: Structured, offset_ns: int) -> Columns:
        flags = rows["flags"]
        return self._batch(
            "steps",
            len(rows),
            {
                "step": rows["step"],
                "start": self._clock.all_utc(rows["start"], offset_ns),
                "duration_ns": rows["duration"],
                "tokens": rows["tokens"],
                "flops": rows["flops"],
                "loss": nullable(rows["loss"], (flags & HAS_LOSS) != 0),
                "grad_norm": nullable(rows["grad_norm"], (flags & HAS_GRAD_NORM) != 0),
            },
        )

    def _topology(self, coordinates: tuple[int, ...], now_ns: int) -> Columns:
        columns: dict[str, object] = dict(zip(AXES, coordinates, strict=True))
        columns |= {"local_rank": self._local_rank, "ip": self._address, "switch": self._switch, "ts": now_ns}
        return self._batch("topology", 1, columns)

    def _write(self, saved: CheckpointCell, offset_ns: int) -> Columns:
        """What the script itself has written since the last row: a whole checkpoint, or more files of it."""
        before = self._saved if self._saved is not None and self._saved.step == saved.step else None
        written = {
            "ts": self._clock.utc(saved.end_ns, offset_ns),
            "step": saved.step,
            "stage": "write",
            "tier": "storage",
            "bytes": max(0, saved.bytes - (before.bytes if before else 0)),
            "duration_ns": saved.end_ns - (before.end_ns if before else saved.start_ns),
        }
        return Columns.from_values(
            "checkpoints", 1, {"job": self._job, "attempt": self._attempt, "rank": self._rank, **written}
        )

    def _batch(self, record: str, rows: int, columns: Mapping[str, object]) -> Columns:
        """Add the columns that are the same for every row of this rank."""
        same = {"job": self._job, "attempt": self._attempt, "rank": self._rank, "node": self._node}
        return Columns.from_values(record, rows, {**same, **columns})

    def _due(self, spans: list[_OpenSpan], now: int) -> list[_OpenSpan]:
        """Return spans that are old enough and were not reported within the last second.

        `now` is on the ring's clock.
        """
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
    """Return open phases, and the oldest operation in flight of each group."""
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
                    peer=max(group.op_peer, NO_PEER),
                )
            )
    return spans


def _is_written_since(saved: CheckpointCell, before: CheckpointCell | None) -> bool:
    """Whether it is another write. A file that only has another name now is the same one."""
    return before is None or (saved.step, saved.end_ns) != (before.step, before.end_ns)


def _own_checkpoint(cell: CheckpointCell | None, offset_ns: int) -> tuple[OwnCheckpoint, ...]:
    if cell is None:
        return ()
    return (
        OwnCheckpoint(
            step=cell.step,
            bytes=cell.bytes,
            path=cell.path,
            written_ns=cell.end_ns + offset_ns,
            duration_ns=cell.end_ns - cell.start_ns,
            files=cell.files,
            file_bytes=cell.file_bytes,
            file_mtime_ns=cell.file_mtime_ns,
        ),
    )


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
        peer=group.op_peer if busy else NO_PEER,
        timeout_s=group.timeout_ns // 10**9,
        on_device=group.on_device,
    )


def _age(now: int, since: int) -> int:
    return max(0, now - since) if since > 0 else 0
