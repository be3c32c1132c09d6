"""The checkpoint arena: shared memory that the agent owns, the trainer writes, and a crash cannot tear.

One memfd holds a header page and two slots, more where the state is small. A save goes into the slot that
is not the newest one: its sequence number is made odd, bytes are written, its header is filled and sealed
by a checksum, the sequence number is made even, and one 8-byte store of the `active` word publishes it. A
process killed anywhere in between leaves an odd slot that nobody reads, and the newest published slot
untouched.

Slots lie a terabyte apart in the sparse file, so that each grows without moving another. Bytes are raw: a
layout (JSON), values (JSON), then tensors; the digests of their blocks follow. Nothing here imports torch,
and nothing is pickled.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
import time
from collections import Counter

from pulsetrain.checkpoint.memory.blocks import (
    DIGEST_BYTES,
    CheckpointSize,
    blocks,
    checksum,
    digests,
    most_blocks,
)
from pulsetrain.checkpoint.memory.slots import (
    DURABLE,
    MAX_SLOTS,
    PAGE,
    PINNED,
    UNCHANGED,
    Header,
    SlotInfo,
    payload_offset,
    slots_for,
)
from pulsetrain.core.errors import CheckpointError, CorruptData

MAGIC = 0x414E455241545000
VERSION = 3
_STRIDE = 1 << 40
_MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels refuse it and pages fault in one by one

# Words (8 bytes) of the header page. The trainer writes the first group, the agent the second.
_W_MAGIC, _W_VERSION, _W_ACTIVE, _W_SKIPS, _W_SKIP_STEP, _W_SLOTS = range(6)
_W_PERSIST_EVERY, _W_DURABLE_STEP, _W_REPLICATED_STEP, _W_LAG = range(16, 20)
_W_TAKEN, _W_VERIFIED, _W_HELD, _W_LENT = 24, 32, 40, 48  # one word for each slot
_W_SLOT, _SLOT_WORDS = 64, 32
_REASON = slice(2048, 2304)
_FIELDS = 15  # words of a slot's header before its seal: the fields of SlotInfo from `seq` on
_SEALED, _HEAD = struct.Struct(f"={_FIELDS}q"), struct.Struct(f"={_FIELDS + 1}q")


def create_arena() -> int:
    """A new empty arena's file descriptor; inheritable, nameless, gone with its last holder."""
    fd = os.memfd_create("pulsetrain-arena", 0)
    os.ftruncate(fd, PAGE)
    with mmap.mmap(fd, PAGE) as page:
        words = memoryview(page).cast("q")
        words[_W_VERSION] = VERSION
        words[_W_DURABLE_STEP] = -1
        words[_W_REPLICATED_STEP] = -1
        words[_W_SKIP_STEP] = -1
        words[_W_MAGIC] = MAGIC
        words.release()
    return fd


class Arena:
    """What reader and writer share: the header page and the mapped slots."""

    def __init__(self, fd: int) -> None:
        """Raises `CorruptData` where `fd` is not an arena of this version."""
        self._fd = fd
        if os.fstat(fd).st_size < PAGE:
            raise CorruptData(
                f"file descriptor {fd}: {os.fstat(fd).st_size} bytes; an arena has {PAGE} or more"
            )
        self._page = mmap.mmap(fd, PAGE)
        self._words = memoryview(self._page).cast("q")
        if (self._words[_W_MAGIC], self._words[_W_VERSION]) != (MAGIC, VERSION):
            raise CorruptData(f"file descriptor {fd}: not an arena of version {VERSION}")
        self._maps: dict[int, mmap.mmap] = {}
        self._fresh: set[int] = set()
        self._read_last: dict[int, tuple[bytes, SlotInfo]] = {}  # slot -> header as it was and what it says

    @property
    def active(self) -> int:
        """One word that changes with each publication; 0: nothing was ever published. Cheap to poll."""
        return self._words[_W_ACTIVE]

    @property
    def skips(self) -> tuple[int, int, str]:
        """Saves that were skipped: how many, the last one's step (-1: none), and its reason."""
        text = bytes(self._page[_REASON]).split(b"\0", 1)[0].decode(errors="replace")
        return self._words[_W_SKIPS], self._words[_W_SKIP_STEP], text

    @property
    def persist_every(self) -> int:
        """The agent persists steps that are a multiple of this; 0: none."""
        return self._words[_W_PERSIST_EVERY]

    @property
    def durable_step(self) -> int:
        """Newest step that the agent knows to be committed to storage; -1: none."""
        return self._words[_W_DURABLE_STEP]

    @property
    def replicated_step(self) -> int:
        """Newest step that every peer is known to hold; -1: none, or there are no peers."""
        return self._words[_W_REPLICATED_STEP]

    @property
    def lag_steps(self) -> int:
        """How many steps training may be ahead of what peers hold; 0: any number."""
        return self._words[_W_LAG]

    def held(self, info: SlotInfo) -> bool:
        """The agent is sending this generation to a peer."""
        return self._words[_W_HELD + info.slot] == info.generation

    def lent(self, info: SlotInfo) -> bool:
        """A replica of another rank rests on this generation."""
        return self._words[_W_LENT + info.slot] == info.generation

    def taken(self, info: SlotInfo) -> bool:
        """The agent has its own copy of this generation, or has given it up."""
        return self._words[_W_TAKEN + info.slot] >= info.generation

    def verified(self, info: SlotInfo) -> bool:
        """The agent has compared this generation with its checksum since it was written."""
        return self._words[_W_VERIFIED + info.slot] == info.generation

    def published(self) -> list[SlotInfo]:
        """Every readable checkpoint, newest generation first."""
        infos = [info for slot in range(MAX_SLOTS) if (info := self._read(slot)) is not None]
        return sorted(infos, key=lambda info: -info.generation)

    @property
    def unfinished(self) -> int:
        """Slots whose writing was begun and not published, or which were invalidated."""
        return sum(self._words[_word(slot)] & 1 for slot in range(MAX_SLOTS))

    def find(self, rank: int, step: int) -> SlotInfo | None:
        """The newest published checkpoint of that rank and step."""
        return next((i for i in self.published() if (i.rank, i.step) == (rank, step)), None)

    def still(self, info: SlotInfo) -> bool:
        """Nothing has begun to write over it since `info` was read."""
        return self._words[_word(info.slot)] == info.seq

    def view(self, info: SlotInfo) -> memoryview:
        """Its bytes, in place: check `still` after the last use."""
        return memoryview(self._region(info.slot, info.total_bytes))[: info.total_bytes]

    def digests(self, info: SlotInfo) -> bytes:
        """Of its blocks, as the writer left them; empty where it is being written over, or they are
        damaged."""
        end = info.total_bytes + _digests_bytes(info)
        found = bytes(memoryview(self._region(info.slot, end))[info.total_bytes : end])
        return found if checksum(found) == info.checksum and self.still(info) else b""

    def file_offset(self, info: SlotInfo) -> int:
        """Where its bytes begin in the file descriptor, for sendfile."""
        return _base(info.slot)

    def verify(self, info: SlotInfo) -> bool:
        """Its bytes have its checksum, and it was not written over meanwhile."""
        return checksum(digests(self.view(info), blocks(info))) == info.checksum and self.still(info)

    def invalidate(self, info: SlotInfo) -> None:
        """Nobody shall read it any more (it belongs to a future that was rolled back)."""
        self._words[_word(info.slot)] |= 1

    def forget_after(self, step: int) -> None:
        """Invalidate every checkpoint of a later step than `step`."""
        for info in self.published():
            if info.step > step:
                self.invalidate(info)

    def _read(self, slot: int) -> SlotInfo | None:
        base = _word(slot)
        raw = self._words[base : base + _FIELDS + 1].tobytes()
        known = self._read_last.get(slot)
        if known is None or known[0] != raw:
            *head, seal = _HEAD.unpack(raw)
            if head[0] == 0 or head[0] & 1 or seal != _seal(head):
                return None
            info = SlotInfo(**dict(zip(_NAMES, (slot, *head), strict=True)))
            known = self._read_last[slot] = (raw, info)
        return known[1] if self._words[base] == known[1].seq else None

    def _region(self, slot: int, need: int) -> mmap.mmap:
        known = self._maps.get(slot)
        if known is None or len(known) < need:
            known = self._maps[slot] = self._map(slot, need)
        return known

    def _map(self, slot: int, need: int) -> mmap.mmap:
        end = os.fstat(self._fd).st_size
        size = _pages(need)
        if end < _base(slot) + size:
            raise CorruptData(f"arena slot {slot}: {need} bytes announced, file ends at {end}")
        return mmap.mmap(self._fd, size, offset=_base(slot))


_NAMES = tuple(SlotInfo.__dataclass_fields__)


class ArenaReader(Arena):
    """The agent's side: reads checkpoints, and writes only the agent's own words of the header."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._loans: Counter[tuple[int, int]] = Counter()  # (slot, generation) -> how many rest on it
        self._lending = threading.Lock()

    def set_persist_every(self, steps: int) -> None:
        """Pin every multiple of `steps` until it is taken; 0: none."""
        self._words[_W_PERSIST_EVERY] = steps

    def set_durable(self, step: int) -> None:
        """Tell the trainer that `step` is committed."""
        self._words[_W_DURABLE_STEP] = max(step, self._words[_W_DURABLE_STEP])

    def set_replicated(self, step: int) -> None:
        """Tell the trainer that every peer holds `step`."""
        self._words[_W_REPLICATED_STEP] = step

    def set_lag(self, steps: int) -> None:
        """Let training be no more than `steps` ahead of what peers hold; 0: any number."""
        self._words[_W_LAG] = steps

    def hold(self, info: SlotInfo) -> bool:
        """Keep the trainer from writing over a slot; false where it has begun to already."""
        self._words[_W_HELD + info.slot] = info.generation
        return self.still(info)

    def release(self, info: SlotInfo) -> None:
        """The slot may be written over again."""
        self._words[_W_HELD + info.slot] = 0

    def lend(self, info: SlotInfo) -> bool:
        """Let the trainer write over other slots first; false where it has begun with this one already. Once
        for each `end_loan`."""
        with self._lending:
            self._loans[info.slot, info.generation] += 1
            self._words[_W_LENT + info.slot] = info.generation
        if self.still(info):
            return True
        self.end_loan(info)
        return False

    def end_loan(self, info: SlotInfo) -> None:
        """One loan of the slot less."""
        key = (info.slot, info.generation)
        with self._lending:
            self._loans[key] -= 1
            if self._loans[key] <= 0:
                del self._loans[key]
                if self.lent(info):
                    self._words[_W_LENT + info.slot] = 0

    def set_taken(self, info: SlotInfo) -> None:
        """Let the trainer write over a pinned slot."""
        self._words[_W_TAKEN + info.slot] = max(info.generation, self._words[_W_TAKEN + info.slot])

    def set_verified(self, info: SlotInfo) -> None:
        """Spare the trainer a second comparison at restore."""
        self._words[_W_VERIFIED + info.slot] = info.generation


class SlotWriter:
    """A slot that is being written. `bytes` is where to write; `commit` publishes, nothing else does."""

    def __init__(self, writer: ArenaWriter, slot: int, header: Header, region: mmap.mmap) -> None:
        self._writer = writer
        self.slot = slot
        self.header = header
        self.region = region
        self.bytes = memoryview(region)[: header.total_bytes]
        self.started_ns = time.time_ns()
        self.copy_ns = 0
        self.blocked_ns = 0

    def prefault(self) -> None:
        """Fault in the pages of a slot that was just grown, all at once and without the GIL."""
        if self.slot in self._writer._fresh:
            self._writer._fresh.discard(self.slot)
            _populate(self.region)

    def commit(self) -> SlotInfo:
        """Seal and publish. The bytes must not change from here on."""
        return self._writer._commit(self)


class ArenaWriter(Arena):
    """The trainer's side (and the agent's, while it brings back a checkpoint and no trainer runs)."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._growing = threading.Lock()

    def prepare(self, total_bytes: int) -> list[mmap.mmap]:
        """Grow every slot that a checkpoint of `total_bytes` will use and fault its pages in; their regions.

        May run on another thread than `begin`; releases the GIL. Raises `CheckpointError` for want of room.
        """
        need = total_bytes + DIGEST_BYTES * most_blocks(total_bytes)
        return [self._prepared(slot, need) for slot in range(slots_for(total_bytes))]

    def _prepared(self, slot: int, need: int) -> mmap.mmap:
        region = self._grown(slot, need)
        if slot in self._fresh:
            _populate(region)
            self._fresh.discard(slot)
        return region

    def begin(self, header: Header) -> SlotWriter | None:
        """Take a slot for the checkpoint; None where every slot is pinned until the agent takes it.

        Raises `CheckpointError` where the arena cannot grow to hold it.
        """
        slot = self._free_slot(header.total_bytes)
        if slot is None:
            return None
        word = _word(slot)
        self._words[word] = (self._words[word] | 1) + (self._words[word] & 1) * 2
        region = self._grown(slot, header.total_bytes + _digests_bytes(header))
        used = header.layout_bytes + header.values_bytes
        padding = payload_offset(header.layout_bytes, header.values_bytes) - used
        region[used : used + padding] = bytes(padding)  # equal states have equal bytes
        return SlotWriter(self, slot, header, region)

    def skip(self, step: int, reason: str) -> None:
        """Count a save that did not happen, where the agent sees it."""
        text = reason.encode()[: _REASON.stop - _REASON.start - 1]
        self._page[_REASON] = text.ljust(_REASON.stop - _REASON.start, b"\0")
        self._words[_W_SKIP_STEP] = step
        self._words[_W_SKIPS] += 1

    def clear(self) -> None:
        """Invalidate everything: the job starts afresh."""
        for info in self.published():
            self.invalidate(info)

    def _free_slot(self, total: int) -> int | None:
        """Never the newest checkpoint, nor one that is pinned or being sent; an empty slot, else the oldest,
        one that is lent after all others.

        How many slots there are to choose from is `slots_for` the size; one more while another is pinned,
        one more while another is sent, and one more while another is lent.
        """
        infos = self.published()
        pinned = {i.slot for i in infos if i.pinned and not self.taken(i)}
        sent = {i.slot for i in infos if self.held(i)}
        kept = {i.slot for i in infos[:1]} | pinned | sent
        lent = {i.slot for i in infos if self.lent(i)}
        age = {i.slot: i.generation for i in infos}
        slots = min(MAX_SLOTS, slots_for(total) + bool(pinned) + bool(sent) + bool(lent))
        free = [slot for slot in range(slots) if slot not in kept]
        return min(free, key=lambda slot: (slot in lent, age.get(slot, 0)), default=None)

    def _grown(self, slot: int, need: int) -> mmap.mmap:
        with self._growing:
            known = self._maps.get(slot)
            if known is not None and len(known) >= need:
                return known
            size = _pages(need)
            try:
                if os.fstat(self._fd).st_size < _base(slot) + size:
                    os.ftruncate(self._fd, _base(slot) + size)
                region = self._maps[slot] = mmap.mmap(self._fd, size, offset=_base(slot))
            except OSError as error:
                raise CheckpointError(f"arena of {need} bytes: {error.strerror}") from error
            self._fresh.add(slot)
            return region

    def _commit(self, writing: SlotWriter) -> SlotInfo:
        h, word = writing.header, _word(writing.slot)
        newest = next(iter(self.published()), None)
        found = digests(writing.bytes, blocks(h))
        writing.region[h.total_bytes : h.total_bytes + len(found)] = found
        whole = checksum(found)
        same = newest is not None and (newest.checksum, newest.payload_bytes) == (whole, h.payload_bytes)
        seq = self._words[word] + 1
        head = [seq, (self.active >> 3) + 1, h.step, h.attempt, h.rank, h.world]
        head += [h.layout_bytes, h.values_bytes, h.payload_bytes, whole]
        flags = PINNED * h.pinned | UNCHANGED * same | DURABLE * h.durable
        head += [flags, writing.started_ns, writing.copy_ns, time.time_ns()]
        head += [writing.blocked_ns]
        for i, value in enumerate((*head[1:], _seal(head)), start=1):
            self._words[word + i] = value
        self._words[word] = seq
        self._words[_W_ACTIVE] = head[1] << 3 | writing.slot
        info = self._read(writing.slot)
        assert info is not None, "a slot that was just sealed is readable"
        return info


def _base(slot: int) -> int:
    return (slot + 1) * _STRIDE


def _word(slot: int) -> int:
    return _W_SLOT + slot * _SLOT_WORDS


def _digests_bytes(checkpoint: CheckpointSize) -> int:
    return DIGEST_BYTES * len(blocks(checkpoint))


def _pages(need: int) -> int:
    return max(PAGE, -(-need // PAGE) * PAGE)


def _seal(words: list[int]) -> int:
    return checksum(_SEALED.pack(*words))


def _populate(region: mmap.mmap) -> None:
    buffer = (ctypes.c_char * len(region)).from_buffer(region)
    libc = ctypes.CDLL(None)
    libc.madvise(
        ctypes.c_void_p(ctypes.addressof(buffer)), ctypes.c_size_t(len(region)), _MADV_POPULATE_WRITE
    )
