"""What a checkpoint's bytes are checked and compared by: a digest of each block, and one checksum over them.

The trainer digests a save while its bytes are still in the processor's caches, and leaves the digests behind
them. So an agent offers a checkpoint to a peer, and compares one that is offered, without reading it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import xxhash

from pulsetrain.checkpoint.memory.slots import payload_offset

Span = tuple[int, int]  # offset and bytes

DIGEST_BYTES = 16
_MANY = 64
_BLOCK = (4 << 10, 1 << 20)  # least and most bytes of a block


class CheckpointSize(Protocol):
    """What says how long the parts of a checkpoint are."""

    @property
    def layout_bytes(self) -> int: ...
    @property
    def values_bytes(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...


def blocks(checkpoint: CheckpointSize) -> tuple[Span, ...]:
    """Layout, values with their padding, and equal pieces of the payload.

    They cover all of its bytes once; the pieces depend on the payload's size alone.
    """
    return _blocks(checkpoint.layout_bytes, checkpoint.values_bytes, checkpoint.payload_bytes)


@lru_cache(maxsize=64)  # of a state that is saved again and again
def _blocks(layout: int, values: int, payload: int) -> tuple[Span, ...]:
    start = payload_offset(layout, values)
    least, most = _BLOCK
    size = min(most, max(least, 1 << max(0, -(-payload // _MANY) - 1).bit_length()))
    pieces = ((at, min(size, start + payload - at)) for at in range(start, start + payload, size))
    return (0, layout), (layout, start - layout), *pieces


def most_blocks(total_bytes: int) -> int:
    """No checkpoint of so many bytes, or fewer, has more."""
    return max(_MANY, -(-total_bytes // _BLOCK[1])) + 2


def digests(data: memoryview, spans: Sequence[Span]) -> bytes:
    """The xxh3-128 of each span, one after the other; releases the GIL while it works on many bytes."""
    return b"".join(xxhash.xxh3_128_digest(data[at : at + size]) for at, size in spans)


def checksum(found: bytes) -> int:
    """Of a whole checkpoint, from the digests of its blocks: their xxh3-64 as a signed word."""
    value = xxhash.xxh3_64_intdigest(found)
    return value - (1 << 64) if value >> 63 else value
