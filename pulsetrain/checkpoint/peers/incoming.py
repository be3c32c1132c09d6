"""A replica while it arrives from a peer."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Self

from pulsetrain.checkpoint.memory.blocks import DIGEST_BYTES, Span, blocks, checksum
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup, has_digests
from pulsetrain.checkpoint.peers.framing import (
    drop_bytes,
    parse_spans,
    receive_blocks,
    receive_bytes,
    receive_into,
)
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot
from pulsetrain.checkpoint.peers.shared_blocks import SharedBlocks
from pulsetrain.core.errors import CorruptData, MemoryShort


class IncomingReplica:
    """Memory for a replica that a peer sends. A context manager: at its end, what is not kept is dropped."""

    def __init__(self, replicas: Replicas, snapshot: Snapshot, included: Sequence[Span] = ()) -> None:
        """`included`: spans whose bytes come with the offer."""
        self._replicas, self.snapshot, self._included = replicas, snapshot, included
        self._memory = replicas.buffer(snapshot)
        self._target = memoryview(self._memory)[: snapshot.total_bytes]
        self._offered = b""
        self._shared: SharedBlocks | None = None
        self._decided = False
        self.refused = ""
        """Why there is no memory for it."""

    @classmethod
    def of_offer(cls, replicas: Replicas, raw: Mapping[str, object]) -> IncomingReplica:
        """The replica that one entry of an offer describes. Raises `CorruptData`."""
        snapshot = Snapshot.parse(raw)
        return cls(replicas, snapshot, parse_spans(raw.get("along"), snapshot.total_bytes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._decided:
            self._keep(False)

    def receive_whole(self, sock: socket.socket) -> bool:
        """Receive every byte. Returns whether the replica is kept. Where memory is short, all is dropped."""
        if not self._has_memory([(0, self.snapshot.total_bytes)]):
            drop_bytes(sock, self.snapshot.total_bytes)
            return self._keep(False)
        block_digests = receive_blocks(sock, self._target, blocks(self.snapshot))
        return self._keep(checksum(block_digests) == self.snapshot.checksum)

    def receive_offer(self, sock: socket.socket) -> None:
        """Receive digests and included spans. Raises `CorruptData` for digests without the checksum."""
        self._offered = receive_bytes(sock, DIGEST_BYTES * len(blocks(self.snapshot)))
        if checksum(self._offered) != self.snapshot.checksum:
            raise CorruptData(f"offer of rank {self.snapshot.rank}: digests without its checksum")
        for at, size in self._included:
            receive_into(sock, self._target[at : at + size])

    def share(self, block_dedup: BlockDedup) -> bool | list[Span]:
        """Reuse blocks of ranks here. Returns the missing spans; if there are none, whether it is kept.

        It is not kept where there is no memory for the missing spans.
        """
        self._shared, missing = block_dedup.share(self.snapshot, self._offered, received=self._included)
        if not self._has_memory(missing):
            return self._keep(False)
        return missing or self._keep(self._agrees(self._included))

    def receive_missing(self, sock: socket.socket, missing: Sequence[Span]) -> None:
        """Receive the missing spans."""
        for at, size in missing:
            receive_into(sock, self._target[at : at + size])

    def keep_missing(self, missing: Sequence[Span]) -> bool:
        """Compare what was sent with its digests. Returns whether the replica is kept."""
        return self._keep(self._agrees((*self._included, *missing)))

    def _has_memory(self, spans: Sequence[Span]) -> bool:
        try:
            self._replicas.check_left(self.snapshot, self._memory, spans)
        except MemoryShort as error:
            self.refused = str(error)
        return not self.refused

    def _agrees(self, parts: Sequence[Span]) -> bool:
        return has_digests(self._target, self.snapshot, self._offered, parts)

    def _keep(self, good: bool) -> bool:
        """Keep it where all of it is right; else share nothing and reuse the memory for the next one."""
        self._decided = True
        if good:
            self._replicas.put(self.snapshot, self._memory, self._shared)
        else:
            if self._shared is not None:
                self._shared.release()
            self._replicas.give_back(self.snapshot.rank, self._memory)
        return good
