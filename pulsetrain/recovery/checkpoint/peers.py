"""Keeper to keeper over TCP: replicas go out after each save, and come back when a rank has lost its
memory."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterable
from threading import Lock, Thread
from typing import Any

import structlog

from pulsetrain.recovery.checkpoint.arena import Arena, ArenaWriter
from pulsetrain.recovery.checkpoint.blocks import DIGEST_BYTES, Span, blocks, checksum
from pulsetrain.recovery.checkpoint.framing import (
    challenge,
    introduce,
    receive_bytes,
    receive_frame,
    receive_into,
    send_frame,
)
from pulsetrain.recovery.checkpoint.loans import Loan
from pulsetrain.recovery.checkpoint.replicas import Replicas, Snapshot
from pulsetrain.recovery.checkpoint.slots import SlotInfo
from pulsetrain.recovery.checkpoint.twins import Twins, agree, worthwhile
from pulsetrain.stream.errors import CheckpointError, CorruptData, PulsetrainError, Unavailable

log = structlog.get_logger(__name__)

Pace = Callable[[int], Iterable[int]]

_SOCKET_BUFFER = 4 << 20
_NO_BYTES = bytes(4)
OFFERS = 2  # the form of offers: digests, then what goes along
_ALONG = 128 << 10  # what was lacking last time goes along with an offer where it is no more than this
_FLUSH_POLL_S = (0.0002, 0.003)  # at first, and at last: each look costs a wake-up


class PeerServer:
    """Takes replicas in and gives them out, one thread for each connection."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        address: str,
        port: int,
        token: str,
        job: str,
        segments: Callable[[int, str], memoryview] | None = None,
        twins: Twins | None = None,
    ) -> None:
        """Listens at once. `segments` gives stored content by step and hash; with `twins` peers may offer.
        Raises `Unavailable` where the port cannot be had."""
        self._replicas, self._segments, self._twins = replicas, segments, twins
        self._requests = {"put": self._put, "get": self._get, "segment": self._segment}
        if twins is not None:
            self._requests["offer"] = self._offer
        self._token, self._job = token, job
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        try:
            self._listener = socket.create_server((address, port), backlog=64)
        except OSError as error:
            raise Unavailable(f"checkpoint port {address}:{port}: {error.strerror}") from error
        self.port: int = self._listener.getsockname()[1]
        self._thread = Thread(target=self._accept, name="pulsetrain-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end every connection."""
        _shut(self._listener)
        with self._lock:
            for sock in self._open:
                _shut(sock)
        self._thread.join(2)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                self._listener.close()
                return
            _tune(sock, timeout_s=0)
            with self._lock:
                self._open.add(sock)
            Thread(target=self._serve, args=(sock,), name="pulsetrain-peer", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """One peer until it goes away; a peer that breaks the rules is cut off."""
        try:
            challenge(sock, self._token, self._job, offers=0 if self._twins is None else OFFERS)
            while True:
                request = receive_frame(sock)
                self._requests.get(str(request.get("op")), self._get)(sock, request)
        except PulsetrainError as error:
            log.debug("peer_connection_ended", reason=str(error))
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _put(self, sock: socket.socket, request: dict[str, Any]) -> None:
        snapshot = Snapshot.parse(request)
        self._take(sock, snapshot, lambda target: (_arrived(sock, snapshot, target), None))

    def _offer(self, sock: socket.socket, request: dict[str, Any]) -> None:
        """A checkpoint of which ranks here may have much themselves; the peer sends what they lack."""
        snapshot = Snapshot.parse(request)
        along = _spans(request.get("along"), snapshot.total_bytes)
        self._take(sock, snapshot, lambda target: self._fill(sock, snapshot, along, target))

    def _fill(
        self, sock: socket.socket, snapshot: Snapshot, along: list[Span], target: memoryview
    ) -> tuple[bool, Loan | None]:
        assert self._twins is not None, "nobody offers without"
        offered = receive_bytes(sock, DIGEST_BYTES * len(blocks(snapshot)))
        if checksum(offered) != snapshot.checksum:
            raise CorruptData(f"offer of rank {snapshot.rank} step {snapshot.step}: digests arrived damaged")
        for at, size in along:
            receive_into(sock, target[at : at + size])
        loan, lacking = self._twins.lend(snapshot, offered, known=along)
        try:
            if lacking:
                send_frame(sock, {"lacking": lacking})
            for at, size in lacking:
                receive_into(sock, target[at : at + size])
        except BaseException:
            if loan is not None:
                loan.end()
            raise
        return agree(target, snapshot, offered, (*along, *lacking)), loan

    def _take(
        self,
        sock: socket.socket,
        snapshot: Snapshot,
        fill: Callable[[memoryview], tuple[bool, Loan | None]],
    ) -> None:
        """Hold what `fill` brings, and what it borrows, where it says that all of it is right."""
        memory = self._replicas.buffer(snapshot)
        try:
            good, loan = fill(memoryview(memory)[: snapshot.total_bytes])
        except BaseException:
            self._replicas.give_back(snapshot.rank, memory)
            raise
        if good:
            self._replicas.put(snapshot, memory, loan)
        else:
            if loan is not None:
                loan.end()
            self._replicas.give_back(snapshot.rank, memory)
        send_frame(sock, {"ok": good})

    def _segment(self, sock: socket.socket, request: dict[str, Any]) -> None:
        """Content of storage that this node reads for others too."""
        try:
            if self._segments is None:
                raise CheckpointError("no storage here")
            data = self._segments(int(request["step"]), str(request["content"]))
            if len(data) != request["bytes"]:
                raise CorruptData(f"{request['content']}: {len(data)} bytes, not {request['bytes']}")
        except (PulsetrainError, OSError, KeyError, ValueError) as error:
            send_frame(sock, {"error": str(error)})
            return
        send_frame(sock, {"ok": True})
        _send(sock, data)

    def _get(self, sock: socket.socket, request: dict[str, Any]) -> None:
        rank, step = request.get("rank"), request.get("step")
        if not isinstance(rank, int) or not isinstance(step, int):
            raise CorruptData(f"peer asked for {request}")
        with self._replicas.reading(rank, step) as found:
            if found is None:
                send_frame(sock, {"error": f"it has no step {step} of rank {rank}"})
                return
            snapshot, data = found
            send_frame(sock, dataclasses.asdict(snapshot))
            _send(sock, data)


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
        _tune(self._sock, timeout_s=timeout_s)
        try:
            self.takes_offers = introduce(self._sock, token, job, node) == OFFERS
        except PulsetrainError:
            self._sock.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def put(
        self, arena: Arena, fd: int, info: SlotInfo, pace: Pace | None = None, offered: bytes = b""
    ) -> int | None:
        """Send a slot's bytes without copying them here; how many, None where the trainer wrote over them
        meanwhile. `pace` gives sizes that add up to what it is given, each sent when it comes. With the
        digests of its blocks `offered` only what the peer lacks is sent."""
        if not offered:
            return self._put(arena, fd, info, pace)
        sent = self._offer(arena, fd, info, pace, offered)
        # what came, or what was borrowed, is not what was offered: all of it is sent
        return self._put(arena, fd, info, pace) if sent is None and arena.still(info) else sent

    def _offer(self, arena: Arena, fd: int, info: SlotInfo, pace: Pace | None, offered: bytes) -> int | None:
        snapshot = Snapshot.of(info)
        known, data = self._lacked.get(info.rank), arena.view(info)
        along = known[1] if known and known[0] == info.total_bytes else []
        request = {"op": "offer", **dataclasses.asdict(snapshot), "along": along}
        send_frame(self._sock, request, offered, *(data[at : at + size] for at, size in along))
        answer, gone_along = receive_frame(self._sock), sum(size for _, size in along)
        if "ok" in answer:  # it lacks nothing
            return gone_along if answer["ok"] and arena.still(info) else None
        lacking = _spans(answer.get("lacking"), info.total_bytes)
        lacked = gone_along + sum(size for _, size in lacking)
        if lacked <= _ALONG and worthwhile(info.total_bytes - lacked, info.total_bytes):
            self._lacked[info.rank] = info.total_bytes, [*along, *lacking]
        sent = self._finish(arena, fd, info, pace, lacking)
        return None if sent is None else gone_along + sent

    def _put(self, arena: Arena, fd: int, info: SlotInfo, pace: Pace | None) -> int | None:
        send_frame(self._sock, {"op": "put", **dataclasses.asdict(Snapshot.of(info))})
        return self._finish(arena, fd, info, pace, [(0, info.total_bytes)])

    def _finish(
        self, arena: Arena, fd: int, info: SlotInfo, pace: Pace | None, spans: list[Span]
    ) -> int | None:
        total = sum(size for _, size in spans)
        sizes = iter((total,) if pace is None else pace(total))
        start, allowed = arena.file_offset(info), 0
        for at, size in spans:
            done = 0
            while done < size:
                allowed = allowed or next(sizes)
                part = min(allowed, size - done)
                self._sendfile(fd, start + at + done, part)
                done, allowed = done + part, allowed - part
        for _ in sizes:  # what it does after its last size
            pass
        arrived = bool(receive_frame(self._sock).get("ok")) and arena.still(info)
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
        if not _arrived(self._sock, snapshot, writing.bytes):
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


def _send(sock: socket.socket, data: memoryview) -> None:
    try:
        sock.sendall(data)
    except OSError as error:
        raise Unavailable(f"peer went away while fetching: {error}") from error


def _arrived(sock: socket.socket, snapshot: Snapshot, target: memoryview) -> bool:
    """All of it was received into `target`, with its checksum."""
    found = [receive_into(sock, target[at : at + size]) for at, size in blocks(snapshot)]
    return checksum(b"".join(found)) == snapshot.checksum


def _spans(raw: Any, total: int) -> list[Span]:
    """Parts of a checkpoint of `total` bytes. Raises `CorruptData` for what is not in it."""
    try:
        spans = [(int(at), int(size)) for at, size in raw]
    except (TypeError, ValueError) as error:
        raise CorruptData(f"not parts of a checkpoint: {raw!r}") from error
    if any(at < 0 or size < 1 or at + size > total for at, size in spans):
        raise CorruptData(f"peer names {spans} of {total} bytes")
    return spans


def _why(error: OSError) -> str:
    return "it does not take bytes" if error.errno == errno.EAGAIN else str(error.strerror)


def _tune(sock: socket.socket, *, timeout_s: float) -> None:
    """Blocking, with the kernel's time-outs (sendfile knows no others), and large buffers. 0: no time-out."""
    sock.settimeout(None)
    span = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, span)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _shut(sock: socket.socket) -> None:
    """Wake whoever waits on it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("socket_already_closed", error=str(error))
