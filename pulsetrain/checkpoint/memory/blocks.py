"""Digests by which a checkpoint's bytes are checked and compared: one for each block, and one checksum.

The trainer digests a save while its bytes are still in the processor's caches, and stores the digests after
them. So an agent can offer a checkpoint to a peer, and compare one that is offered, without reading it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import xxhash

from pulsetrain.checkpoint.memory.slots import Description, payload_offset

Span = tuple[int, int]  # offset and bytes

DIGEST_BYTES = 16
_PIECES = 64  # of the payload, unless that makes blocks too small or too large
_BLOCK_BYTES = (4 << 10, 1 << 20)  # least and most of a block


def blocks(checkpoint: Description) -> tuple[Span, ...]:
    """Layout, values with their padding, and equal pieces of the payload.

    They cover each of its bytes once. The size of the pieces depends on the payload's size alone.
    """
    return _blocks(checkpoint.layout_bytes, checkpoint.values_bytes, checkpoint.payload_bytes)


@lru_cache(maxsize=64)  # of a state that is saved again and again
def _blocks(layout: int, values: int, payload: int) -> tuple[Span, ...]:
    start = payload_offset(layout, values)
    least, most = _BLOCK_BYTES
    size = min(most, max(least, 1 << max(0, -(-payload // _PIECES) - 1).bit_length()))
    pieces = ((at, min(size, start + payload - at)) for at in range(start, start + payload, size))
    return (0, layout), (layout, start - layout), *pieces


def most_blocks(total_bytes: int) -> int:
    """The largest number of blocks that a checkpoint of at most `total_bytes` can have."""
    return max(_PIECES, -(-total_bytes // _BLOCK_BYTES[1])) + 2


def digests(data: memoryview, spans: Sequence[Span]) -> bytes:
    """The xxh3-128 of each span, one after the other. Releases the GIL while it works on many bytes."""
    return b"".join(xxhash.xxh3_128_digest(data[at : at + size]) for at, size in spans)


def checksum(block_digests: bytes) -> int:
    """The checksum of a whole checkpoint: the xxh3-64 of its blocks' digests, as a signed word."""
    value = xxhash.xxh3_64_intdigest(block_digests)
    return value - (1 << 64) if value >> 63 else value
