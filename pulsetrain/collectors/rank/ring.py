"""Shared memory between one rank and its node's agent: what the rank did, and what it is doing now.

The agent creates the memory (`create_ring`, a sealed memfd without a name). The rank inherits the descriptor
and writes (`RingWriter`). The agent reads (`ring_reader`), also while the rank is stopped, holds its GIL, or
is dead. Nothing here takes a lock or waits for the other side.

Layout, in units of 8-byte little-endian words unless said otherwise::

    page 0      header, status page (open phases, current step), topology cell, description, the script's
                checkpoints
    NAMES       2048 names of 64 bytes: length byte, then UTF-8. Slots hold an index into it. The name of a
                group that is gone makes room for another's once no record that holds it is left to read
    GROUPS      256 cells of 16 words, one a process group: members, sequence numbers, operation in flight
    MEMBERS     65536 global ranks (4 bytes each) of groups whose members are not evenly spaced
    PAIRS       2048 cells of 2 words, one for each peer and direction of a group's sends and receives
    slots       64 bytes each, spans and steps, a power of two of them

A slot's last word is its commit mark: the number of the record plus one. A writer fills a slot by one
`struct.pack_into`, which stores the words in order. So a mark that fits means that the words before it are
complete, and a rank that is killed in mid-write leaves a mark that does not fit.

Several Python threads may write. Slots come from one iterator over the free ones, whose `next` is atomic
under the GIL. A thread that finds it empty asks for more behind a lock that is tried and never waited for. A
full ring drops and counts.

Clock: every time in the ring is `time.perf_counter_ns` (CLOCK_MONOTONIC, one clock for all processes of the
machine). The header holds what to add for UTC.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import mmap
import operator
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from pulsetrain.collectors.layout import (
    G_COUNT,
    G_DEVICE,
    G_FIRST,
    G_NAME,
    G_POOL,
    G_SEQ,
    G_STRIDE,
    G_TIMEOUT,
    GROUP_WORDS,
    GROUPS_AT,
    HAS_GRAD_NORM,
    HAS_LOSS,
    LAYOUT_VERSION,
    MAGIC,
    MAX_GROUPS,
    MAX_MEMBERS,
    MAX_NAMES,
    MAX_PAIRS,
    MAX_SEQ,
    MEMBERS_AT,
    NAME_BYTES,
    NAMES_AT,
    P_COUNT,
    P_HEAD,
    PACK_OP,
    PACK_SPAN,
    PACK_STEP,
    PACK_WORD,
    PAIR_WORDS,
    PAIRS_AT,
    SLOT_BYTES,
    SLOTS_AT,
    STEP,
    TEXT_AT,
    W_DROPPED,
    W_ERRORS,
    W_GROUPS,
    W_LAST,
    W_LAST_STEP,
    W_PAIRS,
    W_PID,
    W_READ,
    W_RENAMED,
    W_RESUMED,
    W_TEXT,
    W_TOPOLOGY,
    W_UTC,
)
from pulsetrain.core.errors import CorruptData

_NOT_THE_SCRIPTS = 512  # names kept for groups, operations and phases that are inferred
_MAP_FIXED = 0x10  # of Linux's mmap(2); the mmap module has no name for it


def create_ring(slots: int = 65536) -> int:
    """Create a ring as an inheritable memfd of fixed size.

    `slots` is rounded up to a power of two from 64.
    """
    capacity = 1 << (max(slots, 64) - 1).bit_length()
    fd = os.memfd_create("pulsetrain-ring", os.MFD_ALLOW_SEALING)
    os.set_inheritable(fd, True)
    os.ftruncate(fd, SLOTS_AT + capacity * SLOT_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    os.pwrite(fd, struct.pack("<3q", MAGIC, LAYOUT_VERSION, capacity), 0)
    return fd


def map_ring(fd: int) -> tuple[mmap.mmap, int]:
    """Map a ring. Returns the mapping and its number of slots. Raises `CorruptData`."""
    size = os.fstat(fd).st_size
    capacity = (size - SLOTS_AT) // SLOT_BYTES
    if capacity < 1 or capacity & (capacity - 1):
        raise CorruptData(f"descriptor {fd} is no ring: {size} bytes")
    memory = mmap.mmap(fd, size)
    if struct.unpack_from("<2q", memory) != (MAGIC, LAYOUT_VERSION):
        raise CorruptData(f"descriptor {fd} is no ring of layout {LAYOUT_VERSION}")
    return memory, capacity


class RingWriter:
    """The rank's side. Only `Handle` and the hooks use it; no method blocks, and none raises on a full ring.

    Attributes without a leading underscore are for the hot path in `handle`, which inlines `span`.
    """

    __slots__ = (
        *("_end", "_free", "_free_pairs", "_full", "_group_names", "_groups", "_marks", "_mask"),
        *("_name_numbers", "_names", "_old_names", "_pairs", "_pool", "_pooled", "_refilling", "_texts"),
        *("claim", "drop", "memory", "words"),
    )

    def __init__(self, fd: int) -> None:
        self.memory, capacity = map_ring(fd)
        self.words = memoryview(self.memory).cast("q")
        self._mask = capacity - 1
        self._refilling = threading.Lock()
        self._names: dict[str, int] = {}
        self._group_names: dict[int, str] = {}  # by index. No phase shares them
        self._old_names = deque[tuple[int, int]]()  # of groups that are gone: index, free at this record
        self._name_numbers = itertools.count()
        self._full: set[int] = set()  # how many names there were when one found no room
        self.intern("")
        self._begin()

    def _begin(self) -> None:
        self.claim: Callable[[], tuple[int, int]] = iter(()).__next__
        self._end = 0  # the first number that `claim` will not give
        self._marks: Iterator[int] = iter(range(0))  # of the records that it will still give
        # One `next` counts and publishes without a bytecode in between: exact from any number of threads.
        self.drop = map(partial(PACK_WORD, self.memory, W_DROPPED * 8), itertools.count(1)).__next__
        self._groups = 0
        self._pairs = self._pool = 0
        self._free: deque[int] = deque()  # cells of groups that are gone
        self._free_pairs: list[int] = []
        self._pooled: dict[tuple[int, ...], int] = {}
        self._texts = 0
        self._full.clear()
        self._old_names = deque((index, 0) for index, _ in self._old_names)
        words = self.words
        words[W_PID] = os.getpid()
        words[W_UTC] = time.time_ns() - time.perf_counter_ns()
        words[W_LAST] = time.perf_counter_ns()
        words[W_LAST_STEP] = words[W_RESUMED] = -1

    def leave_to_parent(self) -> None:
        """In a forked child: from now on everything here is written into private memory, and read by nobody.

        Phases and hooks that the child inherited hold this mapping, so it is replaced where it stands.
        """
        self._map_again(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)

    def move_to(self, fd: int) -> None:
        """Write into another ring of the same size from now on. Names keep their numbers.

        Phases and hooks hold this mapping, so the new ring takes its place where it stands. No thread may
        write meanwhile. Raises `CorruptData` for a ring of another size.
        """
        other, capacity = map_ring(fd)
        other.close()
        if capacity != self._mask + 1:
            raise CorruptData(f"descriptor {fd} has {capacity} slots, the ring before had {self._mask + 1}")
        self._map_again(mmap.MAP_SHARED, fd)
        group_names = [(name, index) for index, name in self._group_names.items()]
        for name, index in [*self._names.items(), *group_names]:
            self._write_name(name, index)
        self._begin()

    def _map_again(self, how: int, fd: int) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mmap(address, len(self.memory), mmap.PROT_READ | mmap.PROT_WRITE, how | _MAP_FIXED, fd, 0)

    def refill(self) -> tuple[int, int] | None:
        """Like `next_slot`, when `claim` has none left.

        Numbers are given out up to the end of the memory at most, so that their slots are evenly spaced.
        """
        if not self._refilling.acquire(blocking=False):
            self.drop()
            return None
        try:
            with contextlib.suppress(StopIteration):
                return self.claim()  # another thread was faster
            first = self._end
            self._end = max(first, min(self.words[W_READ] + self._mask, first | self._mask) + 1)
            at = SLOTS_AT + (first & self._mask) * SLOT_BYTES
            marks = range(first + 1, self._end + 1)
            self._marks = iter(marks)
            self.claim = zip(
                range(at, at + SLOT_BYTES * len(marks), SLOT_BYTES), self._marks, strict=False
            ).__next__
            return self.claim()
        except StopIteration:
            self.drop()
            return None
        finally:
            self._refilling.release()

    def next_slot(self) -> tuple[int, int] | None:
        """Return position in `memory` and mark of the next record.

        None if the ring is full: a counted drop.
        """
        try:
            return self.claim()
        except StopIteration:
            return self.refill()

    def span(
        self,
        head: int,
        context: int,
        start: int,
        end: int,
        *,
        seq: int = -1,
        size: int = 0,
        peer: int = -1,
        blocked: int = -1,
    ) -> bool:
        """Write one span. Returns whether the ring had room. Times in ns of `time.perf_counter_ns`.

        `blocked`: how long the main thread stood still in it, -1 for unknown. `seq` wraps after 31 bits.
        """
        slot = self.next_slot()
        if slot is None:
            return False
        at, mark = slot
        seq = seq & MAX_SEQ if seq >= 0 else -1
        PACK_SPAN(self.memory, at, head, context, start, end, seq, peer, size, blocked, mark)
        return True

    def step(
        self,
        step: int,
        start: int,
        duration: int,
        *,
        tokens: int = 0,
        flops: float = float("nan"),
        loss: float | None = None,
        grad_norm: float | None = None,
    ) -> bool:
        """Write one step. Returns whether the ring had room. None: not logged."""
        slot = self.next_slot()
        if slot is None:
            return False
        at, mark = slot
        flags = (HAS_LOSS if loss is not None else 0) | (HAS_GRAD_NORM if grad_norm is not None else 0)
        PACK_STEP(
            self.memory, at, STEP, flags, 0, step, start, duration, tokens, flops,
            loss or 0.0, grad_norm or 0.0, mark,
        )  # fmt: skip
        return True

    def intern(self, name: str, *, by_script: bool = False) -> int:
        """Return the index of `name`. Names after the 2048th share index 0, which reads as the empty name.

        `by_script`: after the 1536th. A script that makes a new name for each batch leaves room for the names
        of groups and operations. The first name without room counts as a fault.
        """
        index = self._names.get(name)
        if index is None:
            index = self._new_index(MAX_NAMES - _NOT_THE_SCRIPTS if by_script else MAX_NAMES)
            if index:
                self._write_name(name, index)
            if index or not name:
                self._names[name] = index
        return index

    def name_group(self, name: str) -> int:
        """Return an index of its own for the name of a new group. `free_name` gives it back.

        The name of a group that is gone makes room once the reader has read all records that may hold it.
        Without room it is 0, as `intern` has it.
        """
        old = self._old_index()
        index = old or self._new_index(MAX_NAMES)
        if index:
            self._write_name(name, index)
            self._group_names[index] = name
        if old:
            self.words[W_RENAMED] += 1  # behind the name: a reader that sees the count reads all of it
        return index

    def free_name(self, index: int) -> None:
        """The group of this name is gone, and nothing of it is in flight any more. 0 is no name."""
        if index:
            self._old_names.append((index, self._claimed()))

    def _new_index(self, room: int) -> int:
        """Return an index that no name has had, 0 if `room` names have been given one."""
        index = next(self._name_numbers) if self._named() < room else MAX_NAMES
        if index < MAX_NAMES:
            return index
        if room not in self._full:
            self._full.add(room)
            self.words[W_ERRORS] += 1
        return 0

    def _named(self) -> int:
        return len(self._names) + len(self._group_names)

    def _old_index(self) -> int:
        """Return the index of an old name that no record holds which is still to be read, 0 for none."""
        with contextlib.suppress(IndexError):
            index, free_at = self._old_names.popleft()
            if self.words[W_READ] >= free_at:
                return index
            self._old_names.appendleft((index, free_at))
        return 0

    def _claimed(self) -> int:
        """Return how many records have been claimed. More where another thread refills just now."""
        left = operator.length_hint(self._marks)
        return self._end - left

    def _write_name(self, name: str, index: int) -> None:
        text = name.encode()[: NAME_BYTES - 1]
        at = NAMES_AT + index * NAME_BYTES
        self.memory[at : at + NAME_BYTES] = bytes([len(text)]) + text.ljust(NAME_BYTES - 1, b"\0")

    def add_group(
        self, name: int, members: Sequence[int], timeout_ns: int = 0, *, on_device: bool = False
    ) -> int:
        """Return the word index of a new group's cell, -1 if the table is full.

        `name`: its index, as `name_group` gives it. `members`: global ranks in order. `timeout_ns`: after
        which torch ends an operation, 0 if unknown. `on_device`: its operations end on a device. Cells of
        groups that are gone are used once no other is left. The number of cells says by one too many that
        there was no room.
        """
        words = self.words
        if self._groups >= MAX_GROUPS and not self._free:
            words[W_GROUPS] = MAX_GROUPS + 1
            return -1
        fresh = self._groups < MAX_GROUPS
        cell = GROUPS_AT // 8 + self._groups * GROUP_WORDS if fresh else self._free.popleft()
        first, stride, pool = self._members(members)
        words[cell + G_NAME] = name
        words[cell + G_TIMEOUT], words[cell + G_DEVICE] = timeout_ns, on_device
        words[cell + G_FIRST], words[cell + G_STRIDE], words[cell + G_POOL] = first, stride, pool
        words[cell + G_COUNT] = len(members)
        if fresh:
            self._groups += 1
            words[W_GROUPS] = self._groups
        return cell

    def free_group(self, cell: int, pairs: Iterable[int]) -> None:
        """Empty the cell of a group that is gone, and the words in which its transfers were counted."""
        for word in range(cell, cell + GROUP_WORDS):
            self.words[word] = 0
        for word in pairs:
            self.words[word - P_COUNT + P_HEAD] = self.words[word] = 0
            self._free_pairs.append(word)
        self._free.append(cell)

    def _members(self, members: Sequence[int]) -> tuple[int, int, int]:
        """Return (first, stride, -1) for evenly spaced members, else (first, 0, index in the pool or -1)."""
        first = members[0] if members else 0
        stride = members[1] - first if len(members) > 1 else 1
        if list(members) == [first + stride * i for i in range(len(members))]:
            return first, stride, -1
        known = self._pooled.get(tuple(members))
        if known is not None:
            return first, 0, known
        if self._pool + len(members) > MAX_MEMBERS:
            return first, 0, -1
        at = MEMBERS_AT + self._pool * 4
        self.memory[at : at + 4 * len(members)] = np.asarray(members, "<u4").tobytes()
        self._pooled[tuple(members)] = pool = self._pool
        self._pool += len(members)
        return first, 0, pool

    def add_pair(self, head: int) -> int:
        """Return the index of the word in which to count what `layout.pair_head` names, -1 for no room."""
        if self._free_pairs:
            word = self._free_pairs.pop()
            self.words[word - P_COUNT + P_HEAD] = head
            return word
        if self._pairs >= MAX_PAIRS:
            self.words[W_PAIRS] = -1
            return -1
        at = PAIRS_AT // 8 + self._pairs * PAIR_WORDS
        self.words[at + P_HEAD] = head
        self._pairs += 1
        self.words[W_PAIRS] = self._pairs
        return at + P_COUNT

    def set_op(self, cell: int, op: int, seq: int, size: int, start: int, peer: int) -> None:
        """Publish a group's oldest operation in flight. `op` is an index into the names, 0 for none."""
        PACK_OP(self.memory, (cell + G_SEQ) * 8, seq, size, start, peer, op)

    def set_topology(self, coordinates: Sequence[int]) -> None:
        """Set the five coordinates in the order of `AXES`. -1: unknown. They may change."""
        self.words[W_TOPOLOGY] = 0
        for i, coordinate in enumerate(coordinates):
            self.words[W_TOPOLOGY + 1 + i] = coordinate
        self.words[W_TOPOLOGY] = 1

    def set_text(self, text: bytes) -> None:
        """Set the description. It has at most `layout.TEXT_BYTES` bytes."""
        self._texts += 1
        self.words[W_TEXT] = 0
        self.memory[TEXT_AT : TEXT_AT + len(text)] = text
        self.words[W_TEXT] = self._texts << 16 | len(text)
