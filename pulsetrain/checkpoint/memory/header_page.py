"""The first page of an arena: which word means what, and how a slot's header is packed and sealed.

All words have 8 bytes. The trainer writes some of them and the agent the others, so that neither needs a
lock. `HeaderPage` and `SLOT_WORDS` are the format: a change to either raises `VERSION`, but for a new word
that an older side may leave 0.
"""

from __future__ import annotations

import mmap
import os
import struct

from pulsetrain.checkpoint.memory.blocks import checksum
from pulsetrain.checkpoint.memory.slots import MAX_SLOTS, PAGE, SlotInfo
from pulsetrain.core.errors import CorruptData

MAGIC = 0x414E455241545000
VERSION = 8
SLOT_WORDS = (
    "seq",
    "generation",
    "step",
    "attempt",
    "rank",
    "world",
    "layout_bytes",
    "values_bytes",
    "payload_bytes",
    "checksum",
    "flags",
    "started_ns",
    "copy_ns",
    "published_ns",
    "blocked_ns",
    "shard",
    "edition",
)
"""Fields of `SlotInfo` in the order in which a slot's header stores them. A seal follows them."""

NOWHERE = -2  # of a step: it never will be there

_FIRST_SLOT, _WORDS_PER_SLOT = 64, 32
_REASON = slice(2048, 2304)  # bytes
_REFUSAL = slice(2304, 2560)
_KEPT = slice(320, 328)  # words
_FIELDS = struct.Struct(f"={len(SLOT_WORDS)}q")
_SEALED = struct.Struct(f"={len(SLOT_WORDS) + 1}q")


class Word:
    """One word of the page, as an attribute of `HeaderPage`."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, page: HeaderPage, owner: type) -> int:
        return page.words[self._index]

    def __set__(self, page: HeaderPage, value: int) -> None:
        page.words[self._index] = value


def is_arena(fd: int) -> bool:
    """Whether `fd` is an open file that begins as arenas of any version do."""
    try:
        return os.pread(fd, 8, 0) == struct.pack("=q", MAGIC)
    except OSError:
        return False


class HeaderPage:
    """The page in shared memory. Reading an attribute reads the word, setting it writes the word."""

    # Written by the trainer.
    magic = Word(0)
    version = Word(1)
    active = Word(2)
    """Generation and slot of the last publication. 0: nothing was ever published."""
    skip_count = Word(3)
    skip_step = Word(4)
    asked = Word(5)
    """Which slot the agent is asked to fill, see `resharding.mailbox`. 0: none."""
    asked_layout_bytes = Word(6)
    asked_payload_at = Word(7)
    asked_total_bytes = Word(8)

    # Written by the agent.
    persist_every = Word(16)
    """The agent persists steps that are a multiple of this. 0: none."""
    durable_step = Word(17)
    """Newest step that is known to be committed to storage. -1: none. `NOWHERE`: there is no storage."""
    replicated_step = Word(18)
    """Newest step that every peer is known to hold. -1: none. `NOWHERE`: there are no peers."""
    lag_steps = Word(19)
    """How many steps training may be ahead of what peers hold. 0: any number."""
    wanted_step = Word(20)
    """Save every step from this one on, also where the script saves fewer. -1: nobody asks for it."""
    offered_slot = Word(21)
    """One more than the slot that describes what another world has saved. 0: the rank needs none of it."""
    offered_bytes = Word(22)
    answered = Word(23)
    """`asked` once that slot is filled, and its negative where that could not be done."""
    durable_attempt = Word(329)
    """Which attempt saved `durable_step`."""
    durable_edition = Word(330)
    """Which save of it that was."""
    filled_bytes = Word(328)
    """Rises while the slot that was asked for is filled."""

    def __init__(self, fd: int) -> None:
        """Raises `CorruptData` where `fd` is not an arena of this version."""
        size = os.fstat(fd).st_size
        if size < PAGE:
            raise CorruptData(f"file descriptor {fd}: {size} bytes; an arena has {PAGE} or more")
        self._page = mmap.mmap(fd, PAGE)
        self.words = memoryview(self._page).cast("q")
        self._headers = tuple(
            self.words[_FIRST_SLOT + slot * _WORDS_PER_SLOT :][: len(SLOT_WORDS) + 1]
            for slot in range(MAX_SLOTS)
        )
        # By slot, the generation to which it applies. Written by the agent.
        self.taken_generation = self.words[24:32]
        self.verified_generation = self.words[32:40]
        self.sending_generation = self.words[40:48]
        self.shared_generation = self.words[48:56]
        self.persisting_generation = self.words[56:64]
        self.kept_generation = self.words[_KEPT]
        if (self.magic, self.version) != (MAGIC, VERSION):
            raise CorruptData(f"file descriptor {fd}: not an arena of version {VERSION}")

    @property
    def skip_reason(self) -> str:
        """Why the last save was skipped."""
        return self._text(_REASON)

    @skip_reason.setter
    def skip_reason(self, reason: str) -> None:
        self._set_text(_REASON, reason)

    @property
    def refusal(self) -> str:
        """Why the agent could not fill what it was asked for, or why the rank could not ask for it."""
        return self._text(_REFUSAL)

    @refusal.setter
    def refusal(self, reason: str) -> None:
        self._set_text(_REFUSAL, reason)

    def _text(self, where: slice) -> str:
        return bytes(self._page[where]).split(b"\0", 1)[0].decode(errors="replace")

    def _set_text(self, where: slice, text: str) -> None:
        size = where.stop - where.start
        self._page[where] = text.encode()[: size - 1].ljust(size, b"\0")

    def is_wanted(self, step: int) -> bool:
        """The agent asks for this step."""
        return 0 <= self.wanted_step <= step

    def sending(self, info: SlotInfo) -> bool:
        """The agent is sending this generation to a peer."""
        return self.sending_generation[info.slot] == info.generation

    def shared(self, info: SlotInfo) -> bool:
        """A replica of another rank uses blocks of this generation."""
        return self.shared_generation[info.slot] == info.generation

    def kept(self, info: SlotInfo) -> bool:
        """Peers hold the same step of all ranks of this node: overwrite other slots first."""
        return self.kept_generation[info.slot] == info.generation

    def persisting(self, info: SlotInfo) -> bool:
        """The agent is writing this generation to storage."""
        return self.persisting_generation[info.slot] == info.generation

    def taken(self, info: SlotInfo) -> bool:
        """The agent has its own copy of this generation, or has given it up."""
        return self.taken_generation[info.slot] >= info.generation

    def verified(self, info: SlotInfo) -> bool:
        """The agent has compared this generation with its checksum since it was written."""
        return self.verified_generation[info.slot] == info.generation

    def sequence(self, slot: int) -> int:
        """The slot's sequence number: odd while it is written, and where it was invalidated."""
        return self._headers[slot][0]

    def set_sequence(self, slot: int, seq: int) -> None:
        """Announce that the slot is being written (odd), or that it may be read (even)."""
        self._headers[slot][0] = seq

    def slot_header(self, slot: int) -> bytes:
        """The raw words of a slot's header, for `unpack_slot`."""
        return self._headers[slot].tobytes()

    def write_slot_header(self, info: SlotInfo) -> None:
        """Write a slot's header and its seal. The sequence number is last, so that no reader sees a part."""
        header = self._headers[info.slot]
        header[1:] = memoryview(pack_slot(info))[8:].cast("q")
        header[0] = info.seq


def write_empty_page(fd: int) -> None:
    """Make `fd` an arena without checkpoints."""
    os.ftruncate(fd, PAGE)
    with mmap.mmap(fd, PAGE) as page:
        words = memoryview(page).cast("q")
        words[:2] = memoryview(struct.pack("=2q", MAGIC, VERSION)).cast("q")
        words.release()
    empty = HeaderPage(fd)
    empty.durable_step = empty.replicated_step = empty.skip_step = empty.wanted_step = -1


def pack_slot(info: SlotInfo) -> bytes:
    """A slot's header: the fields named in `SLOT_WORDS`, then their seal."""
    fields = _FIELDS.pack(*[getattr(info, name) for name in SLOT_WORDS])
    return fields + struct.pack("=q", checksum(fields))


def unpack_slot(slot: int, raw: bytes) -> SlotInfo | None:
    """What `pack_slot` packed. None where the slot is empty, being written, or its seal does not match."""
    *fields, seal = _SEALED.unpack(raw)
    seq = fields[0]
    if seq == 0 or seq & 1 or seal != checksum(raw[: _FIELDS.size]):
        return None
    return SlotInfo(slot=slot, **dict(zip(SLOT_WORDS, fields, strict=True)))
