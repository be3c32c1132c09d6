"""Takes other nodes' checkpoints in and gives them out, over TCP."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import Lock, Thread
from typing import Any, Self

import structlog

from pulsetrain.checkpoint.memory.blocks import DIGEST_BYTES, Span, blocks, checksum
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup, agree
from pulsetrain.checkpoint.peers.framing import (
    OFFERS,
    challenge,
    parse_spans,
    receive_blocks,
    receive_bytes,
    receive_frame,
    receive_into,
    send_bytes,
    send_frame,
    tune,
)
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot
from pulsetrain.checkpoint.peers.shared_blocks import Loan
from pulsetrain.core.errors import CheckpointError, CorruptData, PulsetrainError, Unavailable

log = structlog.get_logger(__name__)


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
        twins: BlockDedup | None = None,
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
            tune(sock, timeout_s=0)
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
            found = receive_blocks(sock, one.target, blocks(one.snapshot))
            good = one.keep(checksum(found) == one.snapshot.checksum)
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
        send_bytes(sock, data)

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
            send_bytes(sock, data)


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
        return cls(replicas, snapshot, parse_spans(raw.get("along"), snapshot.total_bytes))

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


def _listed(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The offers of one frame. Raises `CorruptData`."""
    offers = request.get("of")
    if not isinstance(offers, list) or not all(isinstance(raw, dict) for raw in offers):
        raise CorruptData(f"not offers of checkpoints: {offers!r}")
    return offers


def _shut(sock: socket.socket) -> None:
    """Wake whoever waits on it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("socket_already_closed", error=str(error))
