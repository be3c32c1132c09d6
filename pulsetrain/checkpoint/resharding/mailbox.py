"""How a new rank and its agent speak through the arena's first page while the rank's state is put together.

1. The agent writes an offer into a slot that it does not publish, and says which slot.
2. The rank reads it, and brings its model and optimizer into the form that they will have. It writes layout
   and values of that form into a slot, as for a save, and asks for the rest.
3. The agent fills in the tensors and answers.
4. The rank publishes the slot. From then on it is a checkpoint like any other.

Neither takes a lock of the other. No torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, SlotWriter
from pulsetrain.checkpoint.memory.layout import Layout, decode
from pulsetrain.checkpoint.memory.slots import MAX_SLOTS, Header
from pulsetrain.checkpoint.resharding.saved_tensors import Offer
from pulsetrain.core.errors import CheckpointError, NotReshardable

POLL_S = 0.002


def put_offer(writer: ArenaWriter, rank: int, offer: Offer) -> None:
    """Leave an offer for the rank. No trainer runs. Raises `CheckpointError` where every slot is pinned."""
    writer.asked = writer.answered = writer.offered_slot = 0
    data = offer.encode()
    header = Header(
        step=offer.step,
        attempt=-1,
        rank=rank,
        world=-1,
        layout_bytes=len(data),
        values_bytes=0,
        payload_bytes=0,
    )
    writing = writer.begin(header)
    if writing is None:
        raise CheckpointError("every slot of the arena is pinned")
    writing.bytes[: len(data)] = data
    writer.offered_bytes, writer.offered_slot = len(data), writing.slot + 1


def take_back_offer(writer: ArenaWriter) -> None:
    """The rank gets its own checkpoint."""
    writer.offered_slot = writer.asked = writer.answered = 0


def read_offer(arena: ArenaWriter) -> Offer | None:
    """What the agent has left for this rank. None: nothing."""
    if not arena.offered_slot:
        return None
    return Offer.parse(bytes(arena.slot_bytes(arena.offered_slot - 1, arena.offered_bytes)))


def refuse_offer(arena: ArenaWriter, reason: str) -> None:
    """The rank cannot take its part of the state, or the form that it would have."""
    arena.refusal = reason
    arena.asked, arena.answered = 0, -1


def refused_offer(arena: ArenaReader) -> str:
    """Why the rank could not use the offer, "" where it has not said that."""
    return arena.refusal if arena.answered < 0 and not arena.asked else ""


def ask(
    arena: ArenaWriter,
    writing: SlotWriter,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ask the agent to fill the tensors of a slot, and wait until it has.

    Raises `NotReshardable` where it cannot, `CheckpointError` where it has filled nothing for `timeout_s`.
    """
    header = writing.header
    asked = arena.sequence(writing.slot) * MAX_SLOTS + writing.slot + 1
    arena.asked_layout_bytes = header.layout_bytes
    arena.asked_payload_at = header.total_bytes - header.payload_bytes
    arena.asked_total_bytes = header.total_bytes
    arena.asked = asked
    last_s, filled = clock(), arena.filled_bytes
    while abs(arena.answered) != asked:
        now_s = clock()
        if arena.filled_bytes != filled:
            last_s, filled = now_s, arena.filled_bytes
        if now_s - last_s > timeout_s:
            raise CheckpointError(
                f"the agent has put nothing of step {header.step} together for {timeout_s:g} s"
            )
        sleep(POLL_S)
    arena.offered_slot = 0
    if arena.answered < 0:
        raise NotReshardable(arena.refusal)


def requested(arena: ArenaReader) -> tuple[Layout, memoryview] | None:
    """The layout that the rank has asked for, and where its tensors go. None: it has not asked, or it has
    been answered. Raises `CorruptData`."""
    asked = arena.asked
    if not asked or abs(arena.answered) == asked:
        return None
    data = arena.slot_bytes((asked - 1) % MAX_SLOTS, arena.asked_total_bytes)
    return decode(data[: arena.asked_layout_bytes]), data[arena.asked_payload_at :]


def answer(arena: ArenaReader, asked: int, refusal: str = "") -> None:
    """Say that the slot which the rank `asked` for is filled, or why not."""
    if refusal:
        arena.refusal = refusal
    arena.answered = -asked if refusal else asked
