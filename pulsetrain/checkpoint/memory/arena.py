"""The checkpoint arena: shared memory that the agent owns, the trainer writes, and a crash cannot tear.

One memfd holds a header page and two slots, more where the state is small. A save goes into a slot other
than the newest one:

1. Its sequence number is made odd.
2. The bytes are written, then its header, sealed by a checksum.
3. The sequence number is made even.
4. One 8-byte store of the `active` word publishes it.

A process that is killed in between leaves an odd slot that nobody reads. The newest published slot stays as
it was. A slot's bytes are a layout (JSON), values (JSON), then tensors, then the digests of their blocks.
Nothing here imports torch, and nothing is pickled.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from pulsetrain.checkpoint.memory.blocks import DIGEST_BYTES, blocks, checksum, digests, most_blocks
from pulsetrain.checkpoint.memory.header_page import HeaderPage, unpack_slot, write_empty_page
from pulsetrain.checkpoint.memory.memory_left import MemoryLeft, memory_left
from pulsetrain.checkpoint.memory.slot_memory import SlotMemory, slot_offset
from pulsetrain.checkpoint.memory.slots import (
    DURABLE,
    MAX_SLOTS,
    PINNED,
    REPLICATED,
    UNCHANGED,
    Description,
    Header,
    SlotInfo,
    history_of,
    payload_offset,
    slots_for,
)
from pulsetrain.core.errors import MemoryShort


def create_arena() -> int:
    """A new empty arena's file descriptor: inheritable, without a name, gone with its last holder."""
    fd = os.memfd_create("pulsetrain-arena", 0)
    write_empty_page(fd)
    return fd


class Arena(HeaderPage):
    """What reader and writer share: the header page and the mapped slots."""

    def __init__(self, fd: int, left: MemoryLeft = memory_left) -> None:
        """`left` says how much memory there is for new slots.

        Raises `CorruptData` where `fd` is not an arena of this version.
        """
        super().__init__(fd)
        self.fd = fd
        self._memory = SlotMemory(fd, left)
        self._beginning = threading.Lock()
        self._read_last: dict[int, tuple[bytes, SlotInfo]] = {}  # slot -> raw header and what it says

    def published(self) -> list[SlotInfo]:
        """Every readable checkpoint, newest generation first."""
        infos = [info for slot in range(MAX_SLOTS) if (info := self._read(slot)) is not None]
        return sorted(infos, key=lambda info: -info.generation)

    @property
    def durable(self) -> tuple[int, int, int, int]:
        """The newest save that is known to be committed, as `_age` orders saves."""
        return _age(self.durable_attempt, self.durable_step, self.durable_edition)

    def is_durable(self, info: SlotInfo) -> bool:
        """A save of this history and of this step, or a later one, is committed."""
        while (step := self.durable_step) >= 0:
            durable = self.durable
            if self.durable_step == step == durable[2]:
                return durable >= _age(info.attempt, info.step, info.edition)
        return False

    @property
    def newest(self) -> SlotInfo | None:
        """The readable checkpoint that was published last."""
        return next(iter(self.published()), None)

    @property
    def unfinished(self) -> int:
        """How many slots are being written, were left half written, or were invalidated."""
        return sum(self.sequence(slot) & 1 for slot in range(MAX_SLOTS))

    def find(self, rank: int, step: int) -> SlotInfo | None:
        """The newest published checkpoint of that rank and step."""
        return next((i for i in self.published() if (i.rank, i.step) == (rank, step)), None)

    def still(self, info: SlotInfo) -> bool:
        """Nothing has begun to overwrite it since `info` was read."""
        return self.sequence(info.slot) == info.seq

    def view(self, info: SlotInfo) -> memoryview:
        """Its bytes, in place. Check `still` after the last use."""
        return memoryview(self._memory.region(info.slot, info.total_bytes))[: info.total_bytes]

    def slot_bytes(self, slot: int, size: int) -> memoryview:
        """The first bytes of a slot, published or not."""
        return memoryview(self._memory.region(slot, size))[:size]

    def digests(self, info: SlotInfo) -> bytes:
        """The digests of its blocks, as the writer left them. Empty where they are damaged or the slot is
        being overwritten."""
        end = info.total_bytes + _digests_bytes(info)
        stored = bytes(memoryview(self._memory.region(info.slot, end))[info.total_bytes : end])
        return stored if checksum(stored) == info.checksum and self.still(info) else b""

    def file_offset(self, info: SlotInfo) -> int:
        """Where its bytes begin in the file descriptor, for sendfile."""
        return slot_offset(info.slot)

    def verify(self, info: SlotInfo) -> bool:
        """Its bytes have its checksum, and nothing overwrote them meanwhile."""
        return checksum(digests(self.view(info), blocks(info))) == info.checksum and self.still(info)

    def invalidate(self, info: SlotInfo) -> None:
        """Make it unreadable: it is damaged, or of a future that was rolled back."""
        self.set_sequence(info.slot, self.sequence(info.slot) | 1)

    def forget_after(self, step: int) -> None:
        """Invalidate every checkpoint of a later step than `step`."""
        for info in self.published():
            if info.step > step:
                self.invalidate(info)

    def _read(self, slot: int) -> SlotInfo | None:
        raw = self.slot_header(slot)
        last = self._read_last.get(slot)
        if last is None or last[0] != raw:
            info = unpack_slot(slot, raw)
            if info is None:
                return None
            last = self._read_last[slot] = (raw, info)
        return last[1] if self.sequence(slot) == last[1].seq else None


class ArenaReader(Arena):
    """The agent's side: reads checkpoints, and writes only the agent's own words of the header page."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._sharers: Counter[tuple[int, int]] = Counter()  # (slot, generation) -> replicas that use it
        self._sharing = threading.Lock()

    def set_durable(self, step: int, attempt: int = 0, edition: int = 0) -> None:
        """Announce to the trainer that a save is committed, unless a newer one is."""
        if self.durable_step >= 0 and _age(attempt, step, edition) <= self.durable:
            return
        self.durable_step = -1  # nobody may take one save's step for another's
        self.durable_attempt, self.durable_edition = attempt, edition
        self.durable_step = step

    def begin_sending(self, info: SlotInfo) -> bool:
        """Keep the trainer from overwriting a slot. False where it has begun to already."""
        self.sending_generation[info.slot] = info.generation
        return self.still(info)

    def end_sending(self, info: SlotInfo) -> None:
        """Let the trainer overwrite the slot again."""
        self.sending_generation[info.slot] = 0

    def keep(self, infos: Collection[SlotInfo]) -> None:
        """Let the trainer overwrite these slots after all others. Those that were kept before no more."""
        kept = {info.slot: info.generation for info in infos}
        for slot in range(MAX_SLOTS):
            self.kept_generation[slot] = kept.get(slot, 0)

    def begin_persisting(self, info: SlotInfo) -> bool:
        """Keep the trainer from overwriting a slot. False where it has begun to already."""
        self.persisting_generation[info.slot] = info.generation
        return self.still(info)

    def end_persisting(self, info: SlotInfo) -> None:
        """Let the trainer overwrite the slot again."""
        if self.persisting(info):
            self.persisting_generation[info.slot] = 0

    def begin_sharing(self, info: SlotInfo) -> bool:
        """Let the trainer overwrite other slots first. False where it has begun with this one already.

        Each call that returns true is ended by one `end_sharing`.
        """
        with self._sharing:
            self._sharers[info.slot, info.generation] += 1
            self.shared_generation[info.slot] = info.generation
        if self.still(info):
            return True
        self.end_sharing(info)
        return False

    def end_sharing(self, info: SlotInfo) -> None:
        """One replica less uses the slot."""
        key = (info.slot, info.generation)
        with self._sharing:
            self._sharers[key] -= 1
            if self._sharers[key] <= 0:
                del self._sharers[key]
                if self.shared(info):
                    self.shared_generation[info.slot] = 0

    def set_taken(self, info: SlotInfo) -> None:
        """Let the trainer overwrite a pinned slot."""
        self.taken_generation[info.slot] = max(info.generation, self.taken_generation[info.slot])

    def set_verified(self, info: SlotInfo) -> None:
        """Spare the trainer a second comparison at restore."""
        self.verified_generation[info.slot] = info.generation


class SlotWriter:
    """A slot that is being written. Write to `bytes`. Only `commit` publishes them."""

    def __init__(
        self,
        slot: int,
        header: Header,
        region: mmap.mmap,
        *,
        populate: Callable[[int], None],
        commit: Callable[[SlotWriter], SlotInfo],
    ) -> None:
        self.slot = slot
        self.header = header
        self.region = region
        self._populate, self._commit = populate, commit
        self.bytes = memoryview(region)[: header.total_bytes]
        self.started_ns = time.time_ns()
        self.copy_ns = 0
        self.blocked_ns = 0

    def prefault(self) -> None:
        """Fault in the pages of a slot that was just grown, all at once and without the GIL.

        Raises `MemoryShort`. What it took is free again then.
        """
        self._populate(self.slot)

    def commit(self) -> SlotInfo:
        """Seal and publish. The bytes must not change from here on."""
        return self._commit(self)


class ArenaWriter(Arena):
    """The trainer's side. Also the agent's, while it restores a checkpoint and no trainer runs."""

    @property
    def unpopulated(self) -> frozenset[int]:
        """Slots that were grown and whose pages were not faulted in yet."""
        return self._memory.unpopulated

    def prepare(self, total_bytes: int) -> list[mmap.mmap]:
        """Grow every slot that a checkpoint of `total_bytes` will use and fault its pages in. Returns them.

        May run on another thread than `begin`. Releases the GIL. Raises `CheckpointError` where memory is
        short.
        """
        need = total_bytes + DIGEST_BYTES * most_blocks(total_bytes)
        regions = []
        for slot in range(slots_for(total_bytes)):
            regions.append(self._memory.grown(slot, need))
            try:
                self._memory.populate(slot)
            except MemoryShort:
                with self._beginning:
                    if not self.sequence(slot):  # nobody has written to it
                        self._memory.give_back(slot)
                raise
        return regions

    def begin(self, header: Header) -> SlotWriter | None:
        """Take a slot for the checkpoint. None where every slot is pinned until the agent takes it.

        Where memory is short, the next best slot that needs no more of it is taken. Raises `MemoryShort`
        where there is none, and `CheckpointError` where the arena cannot grow.
        """
        begun = self._begin_in(self._free_slots(header.total_bytes), header)
        if begun is None:
            return None
        slot, region = begun
        used = header.layout_bytes + header.values_bytes
        padding = payload_offset(header.layout_bytes, header.values_bytes) - used
        region[used : used + padding] = bytes(padding)  # equal states have equal bytes
        return SlotWriter(slot, header, region, populate=self._populate, commit=self._commit)

    def skip(self, step: int, reason: str) -> None:
        """Count a save that did not happen, where the agent sees it."""
        self.skip_reason = reason
        self.skip_step = step
        self.skip_count += 1

    def clear(self) -> None:
        """Invalidate everything: the job starts afresh."""
        for info in self.published():
            self.invalidate(info)

    def _begin_in(self, slots: Iterable[int], header: Header) -> tuple[int, mmap.mmap] | None:
        """The first of the slots that there is memory for. None where there are no slots."""
        short: MemoryShort | None = None
        for slot in slots:
            with self._beginning:
                try:
                    region = self._memory.grown(slot, header.total_bytes + _digests_bytes(header))
                except MemoryShort as error:
                    short = short or error
                    continue
                seq = self.sequence(slot)
                self.set_sequence(slot, seq + 2 if seq & 1 else seq + 1)
                return slot, region
        if short is not None:
            raise short
        return None

    def _populate(self, slot: int) -> None:
        try:
            self._memory.populate(slot)
        except MemoryShort:
            self._memory.give_back(slot)
            raise

    def _free_slots(self, total: int) -> list[int]:
        """The slots that may be written, best first: an empty one, else the oldest.

        Slots that are shared or kept come after all others. While one checkpoint is written to storage,
        others that wait for that come last: to go on in memory matters more.

        Never the newest checkpoint, nor one that is sent or written to storage, nor a durable one that waits.
        There are `slots_for` the size to choose from, plus one while any is pinned, one while any is being
        sent or kept, and one while any is shared. Slots that were used before have their memory, so they
        count too.
        """
        infos = self.published()
        pinned = {i.slot: i for i in infos if i.pinned and not self.taken(i)}
        sending = {i.slot for i in infos if self.sending(i)}
        writes = {slot for slot, i in pinned.items() if self.persisting(i)}
        waiting = {slot for slot, i in pinned.items() if not i.durable} - writes if writes else set()
        kept = {i.slot for i in infos[:1]} | (pinned.keys() - waiting) | sending
        shared = {i.slot for i in infos if self.shared(i)}
        replicated = {i.slot for i in infos if self.kept(i)}
        age = {i.slot: i.generation for i in infos}
        slots = min(MAX_SLOTS, slots_for(total) + bool(pinned) + bool(sending | replicated) + bool(shared))
        used = {slot for slot in range(MAX_SLOTS) if self.sequence(slot)}
        free = [slot for slot in {*range(slots), *used} if slot not in kept]
        last = shared | replicated
        return sorted(free, key=lambda slot: (slot in waiting, slot in last, age.get(slot, 0)))

    def _commit(self, writing: SlotWriter) -> SlotInfo:
        header, newest = writing.header, self.newest
        block_digests = digests(writing.bytes, blocks(header))
        end = header.total_bytes
        writing.region[end : end + len(block_digests)] = block_digests
        whole = checksum(block_digests)
        same = newest is not None and (newest.checksum, newest.payload_bytes) == (whole, header.payload_bytes)
        info = SlotInfo(
            slot=writing.slot,
            seq=self.sequence(writing.slot) + 1,
            generation=(self.active >> 3) + 1,
            step=header.step,
            attempt=header.attempt,
            rank=header.rank,
            world=header.world,
            layout_bytes=header.layout_bytes,
            values_bytes=header.values_bytes,
            payload_bytes=header.payload_bytes,
            shard=header.shard,
            edition=header.edition,
            checksum=whole,
            flags=PINNED * header.pinned
            | UNCHANGED * same
            | DURABLE * header.durable
            | REPLICATED * header.replicated,
            started_ns=writing.started_ns,
            copy_ns=writing.copy_ns,
            published_ns=time.time_ns(),
            blocked_ns=writing.blocked_ns,
        )
        self.write_slot_header(info)
        self._read_last[info.slot] = (self.slot_header(info.slot), info)
        self.active = info.generation << 3 | info.slot
        return info


def _age(attempt: int, step: int, edition: int) -> tuple[int, int, int, int]:
    """Of two saves the one with more is newer: attempt, history, step, edition."""
    return attempt, history_of(edition), step, edition


def _digests_bytes(checkpoint: Description) -> int:
    return DIGEST_BYTES * len(blocks(checkpoint))
