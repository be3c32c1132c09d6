"""The agent's side of the ring: what the rank wrote, and what it is doing now.

The layout is in `rank.ring`.
"""

from __future__ import annotations

import mmap
import platform
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pulsetrain.collectors.checkpoint_cell import read_cell
from pulsetrain.collectors.layout import (
    G_BYTES,
    G_COMPLETED,
    G_COUNT,
    G_DEVICE,
    G_ENQUEUED,
    G_FIRST,
    G_NAME,
    G_OP,
    G_PEER,
    G_POOL,
    G_SEQ,
    G_START,
    G_STRIDE,
    G_TIMEOUT,
    GROUP_WORDS,
    GROUPS_AT,
    LOADED_AT,
    MAX_DEPTH,
    MAX_GROUPS,
    MAX_MEMBERS,
    MAX_NAMES,
    MAX_PAIRS,
    MEMBERS_AT,
    NAME_BYTES,
    NAMES_AT,
    PAIR_WORDS,
    PAIRS_AT,
    PHASE,
    SAVED_AT,
    SLOTS_AT,
    SPAN,
    SPAN_DTYPE,
    STEP,
    STEP_DTYPE,
    TEXT_AT,
    TEXT_BYTES,
    W_DROPPED,
    W_ERRORS,
    W_GROUPS,
    W_HOLD,
    W_HOLD_PAST,
    W_HOLD_SAVED,
    W_HOLD_UNTIL,
    W_IN_FLIGHT,
    W_LAST,
    W_LAST_STEP,
    W_MAGIC,
    W_PAIRS,
    W_PID,
    W_PROFILE,
    W_PROFILE_FROM,
    W_PROFILE_STEPS,
    W_PROFILED,
    W_RAN_ON,
    W_READ,
    W_RENAMED,
    W_RESUMED,
    W_STACK,
    W_STANDS,
    W_STEP,
    W_STEP_START,
    W_TEXT,
    W_TOPOLOGY,
    W_UTC,
    Structured,
    read_pair_head,
)
from pulsetrain.collectors.rank.ring import map_ring
from pulsetrain.collectors.reading.device_words import DeviceWords
from pulsetrain.collectors.reading.position import PairCount, RankPosition
from pulsetrain.collectors.reading.status_page import GroupCell, StatusPage, name_of, open_phase
from pulsetrain.protocol.transfer_peer import NO_PEER
from pulsetrain.records.schema import CATEGORIES

T = TypeVar("T")
WINDOW = 512  # slots that a drain reads first, more than the threads that may be between claim and store


class NameTable:
    """The names of a ring. One that is still being written reads as ""."""

    def __init__(self, memory: mmap.mmap, words: npt.NDArray[np.int64]) -> None:
        self._memory, self._words = memory, words
        self._renamed = 0  # how often a name had taken another's place when all were read
        self._sizes = np.frombuffer(memory, "u1", count=MAX_NAMES * NAME_BYTES, offset=NAMES_AT)[::NAME_BYTES]
        self._known: list[str] = []

    def all(self) -> list[str]:
        """Return every name by its index. Reads only what is new since the last call.

        Once a name has taken another's place, all are read again.
        """
        if self.changed:
            self._renamed, self._known = int(self._words[W_RENAMED]), []
        used = np.flatnonzero(self._sizes)
        count = int(used[-1]) + 1 if len(used) else 1
        known = self._known
        if count != len(known) or "" in known[1:]:
            self._known = [known[i] if i < len(known) and known[i] else self._at(i) for i in range(count)]
        return self._known

    @property
    def changed(self) -> bool:
        """Whether a name has taken another's place since all were read."""
        return int(self._words[W_RENAMED]) != self._renamed

    def _at(self, index: int) -> str:
        at = NAMES_AT + index * NAME_BYTES
        size = min(self._memory[at], NAME_BYTES - 1)
        return self._memory[at + 1 : at + 1 + size].decode(errors="ignore")


class RingReader:
    """Reads one ring. Invalid content in the memory is counted, never raised."""

    def __init__(self, fd: int) -> None:
        self._memory, self.capacity = map_ring(fd)
        self._words = np.frombuffer(self._memory, "<i8", count=SLOTS_AT // 8)
        self._spans = np.frombuffer(self._memory, SPAN_DTYPE, count=self.capacity, offset=SLOTS_AT)
        self._members = np.frombuffer(self._memory, "<u4", count=MAX_MEMBERS, offset=MEMBERS_AT)
        self._commits = self._spans["commit"]
        self._writable = memoryview(self._memory).cast("q")
        self._names = NameTable(self._memory, self._words)
        self.device = DeviceWords(self._writable)
        self._stuck = 0
        self._weak_order = platform.machine() not in ("x86_64", "AMD64", "i686")
        self.read = int(self._words[W_READ])
        self._latest_end = self._ahead_ns = 0
        self._description = ""
        self.drained_names = self.names  # those of the records that the last drain handed out
        self.drained = 0  # records handed out
        self.fill = 0.0  # share of the ring that the last drain found used
        self.garbage = 0  # records with a right mark and impossible content
        self.lost = 0  # numbers that were claimed and never written, because the writer died there

    @property
    def dropped(self) -> int:
        """Records that the writer could not place because the ring was full."""
        return max(0, int(self._words[W_DROPPED]))

    def ask_for_profile(self, number: int, first_step: int, steps: int) -> None:
        """Ask the rank to profile `steps` steps from `first_step` on. `number` is above 0 and new."""
        self._writable[W_PROFILE_FROM], self._writable[W_PROFILE_STEPS] = first_step, steps
        self._writable[W_PROFILE] = number

    def call_off_profile(self) -> None:
        """Tell the rank to end the profile that was asked for last, without a trace."""
        self._writable[W_PROFILE_STEPS] = 0

    @property
    def utc_ns(self) -> int:
        """Now, as the rank would say it: its own clock, and what that lacked to UTC when the ring began.

        Ages are exact by it, whatever has been done to the wall clock since.
        """
        return time.perf_counter_ns() + self._ahead_ns + int(self._words[W_UTC])

    def restored(self, ahead_ns: int, utc_offset_ns: int) -> None:
        """The rank was restored from an image, and its clock is `ahead_ns` ahead of the reader's.

        `utc_offset_ns` is what the reader's clock lacks to UTC.
        """
        self._ahead_ns = ahead_ns
        self._writable[W_UTC] = utc_offset_ns - ahead_ns

    def hold(self, number: int, past: int, until_ns: int, saved_step: int = -1) -> None:
        """Ask the rank to stand still after a step, at its first arrival after `past`. 0: let it run.

        It stands until `until_ns` at most, on the reader's clock. `number` is new for each barrier. From 0
        on, `saved_step` asks for a stand once the script itself has saved that step or a later one.
        """
        self._writable[W_HOLD_PAST], self._writable[W_HOLD_UNTIL] = past, until_ns + self._ahead_ns
        self._writable[W_HOLD_SAVED] = saved_step + 1
        self._writable[W_HOLD] = number

    @property
    def asked_hold(self) -> tuple[int, int]:
        """Return the number of the hold that was asked for last, and the arrivals that the rank may pass."""
        return int(self._words[W_HOLD]), int(self._words[W_HOLD_PAST])

    @property
    def stands(self) -> bool:
        """Whether the rank stands still, and has not been told to run on."""
        number, arrivals = divmod(int(self._words[W_STANDS]), 1 << 32)
        return 0 < number == int(self._words[W_HOLD]) and arrivals > int(self._words[W_HOLD_PAST])

    def position(self) -> RankPosition:
        """Return where the rank is in its groups, and whether it stands."""
        return self._named(self._position)

    def _position(self) -> RankPosition:
        stands = self.stands
        pairs, groups = int(self._words[W_PAIRS]), int(self._words[W_GROUPS])
        names = self.names
        cells = tuple(self._group(i, names) for i in range(min(max(groups, 0), MAX_GROUPS)))
        read = (self._pair(i) for i in range(min(pairs, MAX_PAIRS) if pairs >= 0 else MAX_PAIRS))
        counts = tuple(pair for pair in read if pair is not None)
        return RankPosition(
            stands=stands and self.stands,
            arrivals=int(self._words[W_STANDS]) & 0xFFFFFFFF,
            in_flight=int(self._words[W_IN_FLIGHT]),
            ran_on=int(self._words[W_RAN_ON]),
            complete=pairs >= 0 and groups <= MAX_GROUPS,
            groups=cells,
            pairs=counts,
        )

    def _pair(self, index: int) -> PairCount | None:
        at = PAIRS_AT // 8 + index * PAIR_WORDS
        if not self._words[at]:  # of a group that is gone
            return None
        group, peer, sends = read_pair_head(int(self._words[at]))
        return PairCount(group=group, peer=peer, sends=sends, count=int(self._words[at + 1]))

    @property
    def profile_number(self) -> int:
        """Number of the profile that was asked for last, 0 for none."""
        return int(self._words[W_PROFILE])

    @property
    def profiled(self) -> int:
        """Number of the last profile that is written, negative where it failed."""
        return int(self._words[W_PROFILED])

    @property
    def names(self) -> list[str]:
        """All names interned so far, by the index that slots hold."""
        return self._names.all()

    def drain(self, *, final: bool = False, patience: int = 8) -> tuple[Structured, Structured]:
        """Return copies of the (spans, steps) written since the last call, in the order of their numbers.

        A number that was claimed and is not yet written ends the call early. It counts as lost after
        `patience` such calls with later records present, or at once with `final` (the writer is dead).
        """
        ready = self._ready(whole=final)
        take = int(ready.argmin()) if not ready.all() else len(ready)
        behind = np.flatnonzero(ready[take:])
        self._stuck = self._stuck + 1 if len(behind) and not take else 0
        if len(behind) and (final or self._stuck > patience):
            take, self._stuck = take + int(behind[-1]) + 1, 0
        if self._weak_order and take:
            time.sleep(50e-6)  # the words before a mark may arrive after it on this processor
        where = (self.read + np.arange(take)) & (self.capacity - 1)
        rows = self._spans[where][ready[:take]]
        self.lost += take - len(rows)
        self.read += take
        self.fill = take / self.capacity
        self.drained_names = self.names  # before the rank may give their places to others
        self._writable[W_READ] = self.read
        return self._valid_records(rows)

    @property
    def written(self) -> int:
        """How many records the writer has written: those handed out or lost, and those ready to be read."""
        ready = self._ready(whole=False)
        return self.read + (len(ready) if ready.all() else int(ready.argmin()))

    def _ready(self, *, whole: bool) -> npt.NDArray[np.bool_]:
        """Return for each slot from the next to read on whether it holds the record that belongs there.

        Without `whole` it stops soon after the first that does not. A ring is mostly empty, and reading all
        its slots several times a second would cost the node a percent.
        """
        size = self.capacity if whole else min(WINDOW, self.capacity)
        while True:
            numbers = self.read + np.arange(size, dtype=np.int64)
            marks = self._commits[numbers & (self.capacity - 1)].astype(np.int64)
            ready = np.asarray(marks == numbers + 1)
            if size == self.capacity or not ready.all():
                return ready
            size = min(8 * size, self.capacity)

    def _valid_records(self, rows: Structured) -> tuple[Structured, Structured]:
        is_step = rows["kind"] == STEP
        steps, spans = rows[is_step].view(STEP_DTYPE), rows[~is_step]
        names = len(self.drained_names)
        good = (
            ((spans["kind"] == SPAN) | (spans["kind"] == PHASE))
            & (spans["category"] < len(CATEGORIES))
            & (spans["name"] < names)
        )
        good &= (spans["parent"] < names) & (spans["group"] < names) & (spans["lane"] < names)
        good &= (spans["start"] > 0) & (spans["end"] >= spans["start"])
        sane = (steps["start"] > 0) & (steps["duration"] >= 0)
        spans, steps = spans[good], steps[sane]
        if len(spans):
            phases = spans["kind"] == PHASE
            spans["seq"][phases] = spans["peer"][phases] = -1
            np.maximum(spans["peer"], NO_PEER, out=spans["peer"])  # a recv from any source names nobody
            self._latest_end = max(self._latest_end, int(spans["end"].max()))
        self.drained += len(spans) + len(steps)
        self.garbage += len(rows) - len(spans) - len(steps)
        return spans, steps

    def status(self) -> StatusPage:
        """Return the status page as it is now. Never waits, whatever state the rank is in."""
        return self._named(self._status)

    def _named(self, read: Callable[[], T]) -> T:
        """Return what `read` returns, read again where a name has taken another's place meanwhile."""
        found = read()
        for _ in range(4):
            if not self._names.changed:
                break
            found = read()
        return found

    def _status(self) -> StatusPage:
        words = self._settled(W_MAGIC, W_STACK + 2 * MAX_DEPTH)
        names = self.names
        stack = words[W_STACK:].reshape(-1, 2)
        depth = int((stack[:, 0] == 0).argmax()) if (stack[:, 0] == 0).any() else MAX_DEPTH
        stack = stack[:depth]
        count = min(max(int(words[W_GROUPS]), 0), MAX_GROUPS)
        return StatusPage(
            pid=int(words[W_PID]),
            step=int(words[W_STEP]),
            last_step=int(words[W_LAST_STEP]),
            step_start_ns=int(words[W_STEP_START]),
            last_ns=max(int(words[W_LAST]), self._latest_end, *(int(start) for start in stack[:, 1])),
            utc_offset_ns=int(words[W_UTC]),
            dropped=self.dropped,
            errors=int(words[W_ERRORS]),
            stack=tuple(open_phase(int(head), int(start), names) for head, start in stack),
            groups=tuple(group for i in range(count) if not (group := self._group(i, names)).gone),
            resumed_step=int(words[W_RESUMED]),
            saved=read_cell(self._memory, SAVED_AT),
            loaded=read_cell(self._memory, LOADED_AT),
        )

    def topology(self) -> tuple[int, ...] | None:
        """Return the coordinates in the order of `AXES`, or None until the rank has set them."""
        words = self._words[W_TOPOLOGY : W_TOPOLOGY + 6]
        return tuple(int(w) for w in words[1:]) if words[0] == 1 else None

    def description(self) -> str:
        """Return how the rank is instrumented: a JSON object, "" until it is known."""
        before = int(self._words[W_TEXT])
        text = self._memory[TEXT_AT : TEXT_AT + min(before & 0xFFFF, TEXT_BYTES)]
        if int(self._words[W_TEXT]) != before:
            return self._description  # it is being written: the last one, until the next call
        self._description = text.decode(errors="ignore")
        return self._description

    def _group(self, index: int, names: list[str]) -> GroupCell:
        base = GROUPS_AT // 8 + index * GROUP_WORDS
        cell = [int(w) for w in self._settled(base, base + GROUP_WORDS)]
        return GroupCell(
            name=name_of(names, cell[G_NAME]),
            members=self._members_of(cell),
            enqueued=cell[G_ENQUEUED],
            completed=cell[G_COMPLETED],
            op=name_of(names, cell[G_OP]),
            op_seq=cell[G_SEQ],
            op_bytes=cell[G_BYTES],
            op_start_ns=cell[G_START],
            op_peer=cell[G_PEER],
            timeout_ns=cell[G_TIMEOUT],
            on_device=bool(cell[G_DEVICE]),
        )

    def _members_of(self, cell: list[int]) -> tuple[int, ...]:
        count, first, stride, pool = (cell[i] for i in (G_COUNT, G_FIRST, G_STRIDE, G_POOL))
        if stride:
            return _spaced(first, stride, min(max(count, 0), 1 << 20))
        if 0 <= pool <= MAX_MEMBERS - count:
            return tuple(int(m) for m in self._members[pool : pool + count])
        return ()

    def _settled(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return a copy of these words that two reads agree on, or the last one if the writer is too busy."""
        seen = self._words[start:stop].copy()
        for _ in range(4):
            again = self._words[start:stop].copy()
            if np.array_equal(seen, again):
                break
            seen = again
        return seen


@lru_cache(maxsize=64)
def _spaced(first: int, stride: int, count: int) -> tuple[int, ...]:
    """Evenly spaced numbers. All ranks of a node share the members of a group."""
    return tuple(first + stride * i for i in range(count))
