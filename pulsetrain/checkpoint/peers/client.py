"""Sends a node's checkpoints to another after each save, and fetches them when a rank has lost its memory."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter
from pulsetrain.checkpoint.memory.blocks import Span, blocks, checksum
from pulsetrain.checkpoint.memory.slots import SMALL_BYTES, Header, SlotInfo
from pulsetrain.checkpoint.peers.block_dedup import worth_sharing
from pulsetrain.checkpoint.peers.framing import (
    OFFERS,
    PATIENT,
    REFUSED,
    introduce,
    parse_spans,
    receive_answer,
    receive_blocks,
    receive_into,
    send_frame,
    tune,
)
from pulsetrain.checkpoint.peers.replicas import ANY, Snapshot
from pulsetrain.core.errors import CheckpointError, CorruptData, MemoryShort, PulsetrainError, Unavailable
from pulsetrain.core.json import JsonObject

ChunkPacer = Callable[[int], Iterable[int]]
"""Splits a number of bytes into sizes. Each comes when it may be sent."""

_NO_BYTES = bytes(4)
_MAX_INCLUDED_BYTES = 128 << 10  # spans that were missing last time are included up to this size
_FLUSH_POLL_S = (0.0002, 0.003)  # first and longest pause between two looks


class OutgoingReplica(NamedTuple):
    """A slot to be sent. `offered` holds the digests of its blocks; empty: the slot is sent whole."""

    arena: ArenaReader
    info: SlotInfo
    offered: bytes = b""


class PeerClient:
    """One connection to a peer's `PeerServer`. Not thread-safe.

    Every call raises `Unavailable` when the peer is away.
    """

    def __init__(
        self, *, address: str, port: int, token: str, job: str, node: str, timeout_s: float = 5.0
    ) -> None:
        """Connects and proves the token. Raises `Unavailable` or `AuthError`."""
        try:
            self._sock = socket.create_connection((address, port), timeout=timeout_s)
        except OSError as error:
            raise Unavailable(f"peer {address}:{port}: {error}") from error
        self._timeout_s = timeout_s
        self._missing_before: dict[int, tuple[int, list[Span]]] = {}  # rank -> bytes of its state, spans
        tune(self._sock, timeout_s=timeout_s)
        try:
            self.accepts_offers = introduce(self._sock, token, job, node) == OFFERS
        except PulsetrainError:
            self._sock.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def put(
        self, replicas: Sequence[OutgoingReplica], pacer: ChunkPacer | None = None
    ) -> Iterator[tuple[OutgoingReplica, int | None]]:
        """Send slots without copying their bytes. Yields each after it arrived, with the bytes sent.

        None for the bytes: the trainer overwrote the slot meanwhile. Replicas with digests are offered in
        one frame, and only blocks that the peer does not have are sent. Raises `MemoryShort` where the peer
        has no memory for one.
        """
        offers = [replica for replica in replicas if replica.offered]
        whole = [replica for replica in replicas if not replica.offered]
        for replica, sent in self._offer(offers, pacer) if offers else ():
            if sent is None:  # the peer could not put together what was offered
                whole.append(replica)
            else:
                yield replica, sent
        for replica in whole:
            yield replica, self._put(replica, pacer) if replica.arena.still(replica.info) else None

    def _offer(
        self, replicas: Sequence[OutgoingReplica], pacer: ChunkPacer | None
    ) -> Iterator[tuple[OutgoingReplica, int | None]]:
        offers: list[JsonObject] = []
        bodies: list[bytes | memoryview] = []
        for replica in replicas:
            included, data = self._included(replica.info), replica.arena.view(replica.info)
            offers.append({**Snapshot.of(replica.info).as_json(), "along": included})
            bodies += [replica.offered, *(data[at : at + size] for at, size in included)]
        send_frame(self._sock, {"op": "offer", "of": offers, **self._patience(replicas)}, *bodies)
        frame = receive_answer(self._sock)
        answers = frame.get("answers")
        if not isinstance(answers, list) or len(answers) != len(replicas):
            raise CorruptData(f"peer answers {answers!r} to {len(replicas)} offers")
        for replica, answer in zip(replicas, answers, strict=True):
            if answer is not False or not frame.get(REFUSED):
                yield replica, self._send_missing(replica, answer, pacer)
        _check_refused(frame)

    def _patience(self, replicas: Sequence[OutgoingReplica]) -> JsonObject:
        """The peer compares the blocks of large states for seconds."""
        large = any(one.info.total_bytes > SMALL_BYTES for one in replicas)
        return {PATIENT: self._timeout_s} if large else {}

    def _included(self, info: SlotInfo) -> list[Span]:
        """Spans to include with an offer: what the peer did not have last time, where that was little."""
        size, included = self._missing_before.get(info.rank, (0, []))
        return included if size == info.total_bytes else []

    def _send_missing(self, replica: OutgoingReplica, answer: object, pacer: ChunkPacer | None) -> int | None:
        """Send what the answer to an offer asks for. Returns the bytes sent in all, None where it failed."""
        info, included = replica.info, self._included(replica.info)
        included_bytes = sum(size for _, size in included)
        if isinstance(answer, bool):  # nothing is missing
            return included_bytes if answer and replica.arena.still(info) else None
        missing = parse_spans(answer, info.total_bytes)
        missing_bytes = included_bytes + sum(size for _, size in missing)
        equal_bytes = info.total_bytes - missing_bytes
        if missing_bytes <= _MAX_INCLUDED_BYTES and worth_sharing(equal_bytes, info.total_bytes):
            self._missing_before[info.rank] = info.total_bytes, [*included, *missing]
        sent = self._send_spans(replica, pacer, missing)
        return None if sent is None else included_bytes + sent

    def _put(self, replica: OutgoingReplica, pacer: ChunkPacer | None) -> int | None:
        send_frame(self._sock, {"op": "put", **Snapshot.of(replica.info).as_json()})
        return self._send_spans(replica, pacer, [(0, replica.info.total_bytes)])

    def _send_spans(
        self, replica: OutgoingReplica, pacer: ChunkPacer | None, spans: list[Span]
    ) -> int | None:
        """Send the spans in sizes that the pacer gives. None where they did not arrive as they were."""
        total = sum(size for _, size in spans)
        sizes = iter((total,) if pacer is None else pacer(total))
        start, allowed = replica.arena.file_offset(replica.info), 0
        for at, size in spans:
            done = 0
            while done < size:
                allowed = allowed or next(sizes)
                part = min(allowed, size - done)
                self._sendfile(replica.arena.fd, start + at + done, part)
                done, allowed = done + part, allowed - part
        for _ in sizes:  # let the pacer finish its work after the last size
            pass
        answer = receive_answer(self._sock)
        _check_refused(answer)
        arrived = bool(answer.get("ok")) and replica.arena.still(replica.info)
        return total if arrived else None

    def flush(self) -> None:
        """Return when the peer's machine has received every byte that was sent."""
        deadline = time.monotonic() + self._timeout_s
        pause, longest = _FLUSH_POLL_S
        while fcntl.ioctl(self._sock, termios.TIOCOUTQ, _NO_BYTES) != _NO_BYTES:
            if time.monotonic() > deadline:
                raise Unavailable("peer went away while replicating: it receives no bytes")
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def segment(self, step: int, content: str, target: memoryview) -> bool:
        """Fill `target` with stored content that the peer read from storage. False where it cannot."""
        request: JsonObject = {"op": "segment", "step": step, "content": content}
        send_frame(self._sock, {**request, "bytes": len(target), PATIENT: self._timeout_s})
        if "error" in receive_answer(self._sock):
            return False
        receive_into(self._sock, target)
        return True

    def get(
        self, rank: int, step: int, arena: ArenaWriter, attempt: int = ANY, history: int = ANY
    ) -> SlotInfo:
        """Fetch a replica into the arena and publish it there. One that `attempt` saved, where it is given.
        An older agent does not look at the `history`.

        Raises `CheckpointError` where the peer has none, `CorruptData` where it arrived with another
        checksum.
        """
        return self._fetch(
            {"op": "get", "rank": rank, "step": step, "attempt": attempt, "history": history},
            arena,
            Snapshot.header,
        )

    def get_any(
        self, step: int, attempt: int, arena: ArenaWriter, header: Callable[[Snapshot], Header]
    ) -> SlotInfo:
        """Fetch the state of all ranks that `attempt` saved, from any rank of the peer. Raises as `get`.

        `header` says under which header it is kept.
        """
        return self._fetch({"op": "any", "step": step, "attempt": attempt}, arena, header)

    def ask(self, request: JsonObject) -> tuple[JsonObject, bytes]:
        """The answer to a request, and the bytes that follow it. Raises `CheckpointError` for a refusal."""
        send_frame(self._sock, {**request, PATIENT: self._timeout_s})
        answer = receive_answer(self._sock)
        if "error" in answer:
            raise CheckpointError(str(answer["error"]))
        size = answer.get("bytes", 0)
        if not isinstance(size, int) or size < 0:
            raise CorruptData(f"peer announces {size!r} bytes")
        data = bytearray(size)
        receive_into(self._sock, memoryview(data))
        return answer, bytes(data)

    def _fetch(
        self, request: JsonObject, arena: ArenaWriter, header: Callable[[Snapshot], Header]
    ) -> SlotInfo:
        send_frame(self._sock, {**request, PATIENT: self._timeout_s})
        answer = receive_answer(self._sock)
        if "error" in answer:
            raise CheckpointError(str(answer["error"]))
        snapshot = Snapshot.parse(answer)
        writing = arena.begin(header(snapshot))
        if writing is None:
            raise CheckpointError("every slot of the arena is pinned")
        writing.prefault()
        if checksum(receive_blocks(self._sock, writing.bytes, blocks(snapshot))) != snapshot.checksum:
            what = f"rank {snapshot.rank} step {snapshot.step}"
            raise CorruptData(f"replica of {what} arrived with another checksum")
        return writing.commit()

    def _sendfile(self, fd: int, offset: int, size: int) -> None:
        done = 0
        while done < size:
            try:
                sent = os.sendfile(self._sock.fileno(), fd, offset + done, size - done)
            except OSError as error:
                raise Unavailable(f"peer went away while replicating: {_reason(error)}") from error
            if sent == 0:
                raise Unavailable(f"arena ended after {done} of {size} bytes")
            done += sent


def _check_refused(answer: JsonObject) -> None:
    if why := answer.get(REFUSED):
        raise MemoryShort(f"the peer refuses it: {why}")


def _reason(error: OSError) -> str:
    return "it receives no bytes" if error.errno == errno.EAGAIN else str(error.strerror)
