"""One node's checkpoints go to another after each save, and come back when a rank has lost its memory."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import socket
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter
from pulsetrain.checkpoint.memory.blocks import Span, blocks, checksum
from pulsetrain.checkpoint.memory.slots import SlotInfo
from pulsetrain.checkpoint.peers.block_dedup import worthwhile
from pulsetrain.checkpoint.peers.framing import (
    OFFERS,
    introduce,
    parse_spans,
    receive_blocks,
    receive_frame,
    receive_into,
    send_frame,
    tune,
)
from pulsetrain.checkpoint.peers.replicas import Snapshot
from pulsetrain.core.errors import CheckpointError, CorruptData, PulsetrainError, Unavailable

ChunkPacer = Callable[[int], Iterable[int]]

_NO_BYTES = bytes(4)
_ALONG = 128 << 10  # what was lacking last time goes along with an offer where it is no more than this
_FLUSH_POLL_S = (0.0002, 0.003)  # at first, and at last: each look costs a wake-up


class OutgoingReplica(NamedTuple):
    """A slot to be sent: its arena, the arena's file descriptor, and the digests of its blocks where only
    what the peer lacks of them shall go."""

    arena: ArenaReader
    fd: int
    info: SlotInfo
    offered: bytes = b""


class PeerClient:
    """One connection to a peer's keeper. Not thread-safe. Every call raises `Unavailable` when the peer is
    away."""

    def __init__(
        self, *, address: str, port: int, token: str, job: str, node: str, timeout_s: float = 5.0
    ) -> None:
        """Connects and proves the token. Raises `Unavailable` or `AuthError`."""
        try:
            self._sock = socket.create_connection((address, port), timeout=timeout_s)
        except OSError as error:
            raise Unavailable(f"peer {address}:{port}: {error}") from error
        self._timeout_s = timeout_s
        self._lacked: dict[int, tuple[int, list[Span]]] = {}  # rank -> bytes of its state, what goes along
        tune(self._sock, timeout_s=timeout_s)
        try:
            self.takes_offers = introduce(self._sock, token, job, node) == OFFERS
        except PulsetrainError:
            self._sock.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def put(
        self, parcels: Sequence[OutgoingReplica], pace: ChunkPacer | None = None
    ) -> Iterator[tuple[OutgoingReplica, int | None]]:
        """Send slots' bytes without copying them here. Each comes back when it has arrived, with how many
        bytes were sent, or None where the trainer wrote over them meanwhile.

        `pace` gives sizes that add up to what it is given, each sent when it comes. Of those with digests
        `offered`, which go in one frame, only what the peer lacks is sent.
        """
        offers = [parcel for parcel in parcels if parcel.offered]
        whole = [parcel for parcel in parcels if not parcel.offered]
        for parcel, sent in self._offer(offers, pace) if offers else ():
            if sent is None:  # what came, or what was borrowed, is not what was offered: all of it is sent
                whole.append(parcel)
            else:
                yield parcel, sent
        for parcel in whole:
            yield parcel, self._put(parcel, pace) if parcel.arena.still(parcel.info) else None

    def _offer(
        self, parcels: Sequence[OutgoingReplica], pace: ChunkPacer | None
    ) -> Iterator[tuple[OutgoingReplica, int | None]]:
        frames: list[dict[str, Any]] = []
        bodies: list[bytes | memoryview] = []
        for parcel in parcels:
            along, data = self._along(parcel.info), parcel.arena.view(parcel.info)
            frames.append({**dataclasses.asdict(Snapshot.of(parcel.info)), "along": along})
            bodies += [parcel.offered, *(data[at : at + size] for at, size in along)]
        send_frame(self._sock, {"op": "offer", "of": frames}, *bodies)
        answers = receive_frame(self._sock).get("answers")
        if not isinstance(answers, list) or len(answers) != len(parcels):
            raise CorruptData(f"peer answers {answers!r} to {len(parcels)} offers")
        for parcel, answer in zip(parcels, answers, strict=True):
            yield parcel, self._answered(parcel, answer, pace)

    def _along(self, info: SlotInfo) -> list[Span]:
        """What the peer lacked of this rank's last one, where that was little."""
        size, along = self._lacked.get(info.rank, (0, []))
        return along if size == info.total_bytes else []

    def _answered(self, parcel: OutgoingReplica, answer: Any, pace: ChunkPacer | None) -> int | None:
        """Send what is lacking; how many bytes went in all."""
        info, along = parcel.info, self._along(parcel.info)
        gone_along = sum(size for _, size in along)
        if isinstance(answer, bool):  # it lacks nothing
            return gone_along if answer and parcel.arena.still(info) else None
        lacking = parse_spans(answer, info.total_bytes)
        lacked = gone_along + sum(size for _, size in lacking)
        if lacked <= _ALONG and worthwhile(info.total_bytes - lacked, info.total_bytes):
            self._lacked[info.rank] = info.total_bytes, [*along, *lacking]
        sent = self._finish(parcel, pace, lacking)
        return None if sent is None else gone_along + sent

    def _put(self, parcel: OutgoingReplica, pace: ChunkPacer | None) -> int | None:
        send_frame(self._sock, {"op": "put", **dataclasses.asdict(Snapshot.of(parcel.info))})
        return self._finish(parcel, pace, [(0, parcel.info.total_bytes)])

    def _finish(self, parcel: OutgoingReplica, pace: ChunkPacer | None, spans: list[Span]) -> int | None:
        total = sum(size for _, size in spans)
        sizes = iter((total,) if pace is None else pace(total))
        start, allowed = parcel.arena.file_offset(parcel.info), 0
        for at, size in spans:
            done = 0
            while done < size:
                allowed = allowed or next(sizes)
                part = min(allowed, size - done)
                self._sendfile(parcel.fd, start + at + done, part)
                done, allowed = done + part, allowed - part
        for _ in sizes:  # what it does after its last size
            pass
        arrived = bool(receive_frame(self._sock).get("ok")) and parcel.arena.still(parcel.info)
        return total if arrived else None

    def flush(self) -> None:
        """Return when the peer's machine has every byte that was sent (or the peer is away)."""
        deadline = time.monotonic() + self._timeout_s
        pause, longest = _FLUSH_POLL_S
        while fcntl.ioctl(self._sock, termios.TIOCOUTQ, _NO_BYTES) != _NO_BYTES:
            if time.monotonic() > deadline:
                raise Unavailable("peer went away while replicating: it does not take bytes")
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def segment(self, step: int, content: str, target: memoryview) -> bool:
        """Fill `target` with what the peer has of a step's stored content; false where it cannot."""
        send_frame(self._sock, {"op": "segment", "step": step, "content": content, "bytes": len(target)})
        if "error" in receive_frame(self._sock):
            return False
        receive_into(self._sock, target)
        return True

    def get(self, rank: int, step: int, arena: ArenaWriter) -> SlotInfo:
        """Bring a replica into the arena and publish it there. Raises `CheckpointError` where the peer has
        none, `CorruptData` where it arrived with another checksum."""
        send_frame(self._sock, {"op": "get", "rank": rank, "step": step})
        answer = receive_frame(self._sock)
        if "error" in answer:
            raise CheckpointError(str(answer["error"]))
        snapshot = Snapshot.parse(answer)
        writing = arena.begin(snapshot.header())
        if writing is None:
            raise CheckpointError("every slot of the arena is pinned")
        writing.prefault()
        if checksum(receive_blocks(self._sock, writing.bytes, blocks(snapshot))) != snapshot.checksum:
            raise CorruptData(f"replica of rank {rank} step {step} arrived with another checksum")
        return writing.commit()

    def _sendfile(self, fd: int, offset: int, size: int) -> None:
        done = 0
        while done < size:
            try:
                sent = os.sendfile(self._sock.fileno(), fd, offset + done, size - done)
            except OSError as error:
                raise Unavailable(f"peer went away while replicating: {_why(error)}") from error
            if sent == 0:
                raise Unavailable(f"arena ended after {done} of {size} bytes")
            done += sent


def _why(error: OSError) -> str:
    return "it does not take bytes" if error.errno == errno.EAGAIN else str(error.strerror)
