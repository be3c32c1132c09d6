"""What a slot of the checkpoint arena holds, and how many slots there are. No torch, no shared memory."""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 4096
MAX_SLOTS = 6
SMALL_BYTES = 64 << 20
LARGE_BYTES = 256 << 20
PINNED, UNCHANGED, DURABLE, REPLICATED = 1, 2, 4, 8  # flags of a slot


@dataclass(frozen=True, kw_only=True)
class Description:
    """Which rank's checkpoint of which step it is, and how long its parts are.

    `world` is the number of ranks that saved the step. -1: it is a copy of what another rank saved. Ranks of
    one world with the same `shard` have saved the same parts of the same tensors. 0: which part it is of the
    whole state is not known. `edition` tells saves of one step in one attempt apart, see `edition_after`.
    """

    step: int
    attempt: int
    rank: int
    world: int
    layout_bytes: int
    values_bytes: int
    payload_bytes: int
    shard: int = 0
    edition: int = 0

    @property
    def total_bytes(self) -> int:
        """Layout, values, padding and payload."""
        return payload_offset(self.layout_bytes, self.values_bytes) + self.payload_bytes


@dataclass(frozen=True, kw_only=True)
class Header(Description):
    """What the writer announces before it writes the bytes. `replicated`: every rank saves the same state."""

    pinned: bool = False
    durable: bool = False
    replicated: bool = False


@dataclass(frozen=True, kw_only=True)
class SlotInfo(Description):
    """A published checkpoint of one rank. Times are ns; `copy_ns` is how long the bytes took to write."""

    slot: int
    seq: int
    generation: int
    checksum: int
    flags: int
    started_ns: int
    copy_ns: int
    published_ns: int
    blocked_ns: int

    @property
    def pinned(self) -> bool:
        """The trainer does not overwrite it before the agent has taken it."""
        return bool(self.flags & PINNED)

    @property
    def durable(self) -> bool:
        """The training script asked for this one to be persisted."""
        return bool(self.flags & DURABLE)

    @property
    def replicated(self) -> bool:
        """Every rank has saved the same state, so that any rank can use it."""
        return bool(self.flags & REPLICATED)

    @property
    def unchanged(self) -> bool:
        """Its content equals that of the save before it."""
        return bool(self.flags & UNCHANGED)


_TURNS_BACK = 1 << 16  # an edition counts those, and saves of one step in the bits below


def edition_after(edition: int, last: int | None, step: int) -> int:
    """The edition of the save of `step` that comes after one of step `last`, which had `edition`.

    It rises where the script went back to an earlier step, and while it saves one step again. Every rank
    counts alike. So a step and its edition name one save of all ranks in their attempt.

    >>> edition_after(0, 9, 10), edition_after(0, 10, 10), edition_after(1, 10, 11), edition_after(1, 10, 9)
    (0, 1, 0, 65536)
    """
    if last is None or step > last:
        return history_of(edition) * _TURNS_BACK
    return edition + 1 if step == last else next_history(edition)


def history_of(edition: int) -> int:
    """How often the script had gone back in its attempt. What an older history saved later is abandoned."""
    return edition // _TURNS_BACK


def first_of_history(edition: int) -> int:
    """The first edition of the history of `edition`."""
    return history_of(edition) * _TURNS_BACK


def next_history(edition: int) -> int:
    """The first edition of the history after that of `edition`."""
    return (history_of(edition) + 1) * _TURNS_BACK


def payload_offset(layout_bytes: int, values_bytes: int) -> int:
    """Where tensors begin in a slot: the next multiple of 4096 bytes after layout and values."""
    return -(-(layout_bytes + values_bytes) // PAGE) * PAGE


def slots_for(total_bytes: int) -> int:
    """How many checkpoints are kept in memory.

    Two are enough for one rank. But ranks that are killed together must still have a step in common, and
    one rank's replica may lag a few steps behind another's memory. So small states are kept longer.
    """
    if total_bytes <= SMALL_BYTES:
        return MAX_SLOTS
    return 3 if total_bytes <= LARGE_BYTES else 2
