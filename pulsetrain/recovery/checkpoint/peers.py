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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from threading import Lock, Thread
from typing import Any, NamedTuple, Self

import structlog

from pulsetrain.recovery.checkpoint.arena import ArenaReader, ArenaWriter
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
OFFERS = 3  # the form of offers: of several ranks, each with digests, then what goes along
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
        with _Incoming(self._replicas, Snapshot.parse(request)) as one:
            good = one.keep(_arrived(sock, one.snapshot, one.target))
        send_frame(sock, {"ok": good})

    def _offer(self, sock: socket.socket, request: dict[str, Any]) -> None:
        """Checkpoints of which ranks here may have much themselves; the peer sends what they lack."""
        with ExitStack() as stack:
            coming = [stack.enter_context(_Incoming.of(self._replicas, raw)) for raw in _listed(request)]
            for one in coming:
                one.receive_offer(sock)
            answers = [self._borrow(one) for one in coming]
            send_frame(sock, {"answers": answers})
            for one, answer in zip(coming, answers, strict=True):
                if not isinstance(answer, bool):
                    send_frame(sock, {"ok": one.receive(sock, answer)})

    def _borrow(self, one: _Incoming) -> bool | list[Span]:
        """What is lacking still; where nothing is, whether it is held now."""
        assert self._twins is not None, "nobody offers without"
        one.loan, lacking = self._twins.lend(one.snapshot, one.offered, known=one.along)
        return lacking or one.keep(one.agrees(one.along))

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


class _Incoming:
    """A checkpoint that a peer is sending: memory for it, until it is held, or something goes wrong."""

    def __init__(self, replicas: Replicas, snapshot: Snapshot, along: Sequence[Span] = ()) -> None:
        """`along`: parts that come with the offer."""
        self._replicas, self.snapshot, self.along = replicas, snapshot, along
        self._memory = replicas.buffer(snapshot)
        self.target = memoryview(self._memory)[: snapshot.total_bytes]
        self.offered = b""
        self.loan: Loan | None = None
        self._over = False

    @classmethod
    def of(cls, replicas: Replicas, raw: dict[str, Any]) -> _Incoming:
        """Of an offer. Raises `CorruptData`."""
        snapshot = Snapshot.parse(raw)
        return cls(replicas, snapshot, _spans(raw.get("along"), snapshot.total_bytes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._over:
            self.keep(False)

    def receive_offer(self, sock: socket.socket) -> None:
        """Digests, and what goes along. Raises `CorruptData` for digests without the checksum."""
        self.offered = receive_bytes(sock, DIGEST_BYTES * len(blocks(self.snapshot)))
        if checksum(self.offered) != self.snapshot.checksum:
            raise CorruptData(f"offer of rank {self.snapshot.rank}: digests without its checksum")
        for at, size in self.along:
            receive_into(sock, self.target[at : at + size])

    def receive(self, sock: socket.socket, lacking: Sequence[Span]) -> bool:
        """The rest; whether it is held now."""
        for at, size in lacking:
            receive_into(sock, self.target[at : at + size])
        return self.keep(self.agrees((*self.along, *lacking)))

    def agrees(self, parts: Sequence[Span]) -> bool:
        """The blocks of `parts` have the digests that were offered."""
        return agree(self.target, self.snapshot, self.offered, parts)

    def keep(self, good: bool) -> bool:
        """Hold it, with what it borrows, where all of it is right; else end the loan and keep the memory for
        the next one."""
        self._over = True
        if good:
            self._replicas.put(self.snapshot, self._memory, self.loan)
        else:
            if self.loan is not None:
                self.loan.end()
            self._replicas.give_back(self.snapshot.rank, self._memory)
        return good


class Parcel(NamedTuple):
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
        _tune(self._sock, timeout_s=timeout_s)
        try:
            self.takes_offers = introduce(self._sock, token, job, node) == OFFERS
        except PulsetrainError:
            self._sock.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def put(self, parcels: Sequence[Parcel], pace: Pace | None = None) -> Iterator[tuple[Parcel, int | None]]:
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

    def _offer(self, parcels: Sequence[Parcel], pace: Pace | None) -> Iterator[tuple[Parcel, int | None]]:
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

    def _answered(self, parcel: Parcel, answer: Any, pace: Pace | None) -> int | None:
        """Send what is lacking; how many bytes went in all."""
        info, along = parcel.info, self._along(parcel.info)
        gone_along = sum(size for _, size in along)
        if isinstance(answer, bool):  # it lacks nothing
            return gone_along if answer and parcel.arena.still(info) else None
        lacking = _spans(answer, info.total_bytes)
        lacked = gone_along + sum(size for _, size in lacking)
        if lacked <= _ALONG and worthwhile(info.total_bytes - lacked, info.total_bytes):
            self._lacked[info.rank] = info.total_bytes, [*along, *lacking]
        sent = self._finish(parcel, pace, lacking)
        return None if sent is None else gone_along + sent

    def _put(self, parcel: Parcel, pace: Pace | None) -> int | None:
        send_frame(self._sock, {"op": "put", **dataclasses.asdict(Snapshot.of(parcel.info))})
        return self._finish(parcel, pace, [(0, parcel.info.total_bytes)])

    def _finish(self, parcel: Parcel, pace: Pace | None, spans: list[Span]) -> int | None:
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


def _listed(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The offers of one frame. Raises `CorruptData`."""
    offers = request.get("of")
    if not isinstance(offers, list) or not all(isinstance(raw, dict) for raw in offers):
        raise CorruptData(f"not offers of checkpoints: {offers!r}")
    return offers


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
