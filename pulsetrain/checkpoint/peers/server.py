"""Receives other nodes' checkpoints and sends them back, over TCP."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from threading import Lock, Thread

import structlog

from pulsetrain.checkpoint.peers.any_replica import AnyReplica
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup
from pulsetrain.checkpoint.peers.framing import (
    OFFERS,
    REFUSED,
    challenge,
    receive_frame,
    send_bytes,
    send_frame,
    telling_that_it_works,
    tune,
)
from pulsetrain.checkpoint.peers.incoming import IncomingReplica
from pulsetrain.checkpoint.peers.replicas import ANY, Replicas, Snapshot
from pulsetrain.core.errors import CheckpointError, CorruptData, PulsetrainError, Unavailable
from pulsetrain.core.json import JsonObject
from pulsetrain.core.supervisor import LoopStatus, LoopThread

log = structlog.get_logger(__name__)

Handler = Callable[[socket.socket, JsonObject], None]
"""Answers one request on its connection."""

Whole = Callable[[int, int, int, int], AbstractContextManager[tuple[Snapshot, memoryview] | None]]
"""The bytes of a rank, a step, an attempt and a history, None where they are not here."""

ACCEPT_S = 1.0
HANDSHAKE_S = 20.0  # who has not proved the token by then is disconnected
STALE_AFTER_S = 10.0


class PeerServer:
    """Receives replicas and sends them back, with one thread for each connection."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        address: str,
        port: int,
        token: str,
        job: str,
        segments: Callable[[int, str], memoryview] | None = None,
        block_dedup: BlockDedup | None = None,
        any_replica: AnyReplica | None = None,
        more: Mapping[str, Handler] | None = None,
        whole: Whole | None = None,
    ) -> None:
        """Listens at once. Raises `Unavailable` where the port is taken.

        `token` may be set anew: later connections prove that they have that one.

        `segments` gives stored content by step and hash. With `block_dedup`, peers may offer digests.
        With `any_replica`, they may ask for a state that all ranks have saved alike. `more` has what answers
        other requests. `whole` gives what a rank has saved, by default from `replicas` alone.
        """
        self._replicas, self._segments, self._block_dedup = replicas, segments, block_dedup
        self._any = any_replica or AnyReplica(replicas)
        self._whole: Whole = whole or replicas.reading
        self._requests: dict[str, Handler] = {
            "put": self._put,
            "get": self._get,
            "any": self._get_any,
            "segment": self._segment,
        }
        if block_dedup is not None:
            self._requests["offer"] = self._offer
        self._requests |= more or {}
        self.token, self._job = token, job
        self._connections: dict[socket.socket, str] = {}  # with the peer's node, "" before the handshake
        self._accepted: dict[socket.socket, float] = {}  # when, of those without a handshake so far
        self._closing = False
        self._lock = Lock()
        try:
            self._listener = socket.create_server((address, port), backlog=64)
        except OSError as error:
            raise Unavailable(f"checkpoint port {address}:{port}: {error.strerror}") from error
        self.port: int = self._listener.getsockname()[1]
        self._listener.settimeout(ACCEPT_S)
        self._thread = LoopThread("accept_peers", self._accept, stale_after_s=STALE_AFTER_S)
        self._thread.start()

    @property
    def loop(self) -> LoopStatus:
        """How the thread is that accepts connections."""
        return self._thread.status()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._closing = True
        _shut_down(self._listener)
        with self._lock:
            for sock in self._connections:
                _shut_down(sock)
        if self._thread.stop(timeout_s=2):
            self._listener.close()

    def keep_only(self, nodes: Collection[str]) -> None:
        """End the connections of all other nodes."""
        with self._lock:
            for sock, node in self._connections.items():
                if node and node not in nodes:
                    _shut_down(sock)

    def _accept(self) -> float:
        """Accept one connection, if one comes within `ACCEPT_S`. End those that take too long to prove it."""
        with self._lock:
            for sock, since in self._accepted.items():
                if time.monotonic() - since > HANDSHAKE_S:
                    _shut_down(sock)
        try:
            sock, _ = self._listener.accept()
        except TimeoutError:
            return 0.0
        except OSError:
            if self._closing:
                return 0.0
            raise
        tune(sock, timeout_s=0)
        with self._lock:
            self._connections[sock], self._accepted[sock] = "", time.monotonic()
        Thread(target=self._serve, args=(sock,), name="pulsetrain-peer", daemon=True).start()
        return 0.0

    def _serve(self, sock: socket.socket) -> None:
        """Answer one peer until it goes away. A peer that breaks the protocol is disconnected."""
        try:
            offers = 0 if self._block_dedup is None else OFFERS
            node = challenge(sock, self.token, self._job, offers=offers)
            with self._lock:
                self._connections[sock] = node
                del self._accepted[sock]
            while True:
                request = receive_frame(sock)
                self._requests.get(str(request.get("op")), self._get)(sock, request)
        except PulsetrainError as error:
            log.debug("peer_connection_ended", reason=str(error))
        finally:
            with self._lock:
                self._connections.pop(sock, None)
                self._accepted.pop(sock, None)
            sock.close()

    def _put(self, sock: socket.socket, request: JsonObject) -> None:
        with IncomingReplica(self._replicas, Snapshot.parse(request)) as replica:
            kept = replica.receive_whole(sock)
        send_frame(sock, {"ok": kept, REFUSED: replica.refused})

    def _offer(self, sock: socket.socket, request: JsonObject) -> None:
        """Offered checkpoints, of which ranks here may have many blocks. The peer sends the others."""
        assert self._block_dedup is not None, "this request is only known with it"
        with ExitStack() as stack:
            replicas = [
                stack.enter_context(IncomingReplica.of_offer(self._replicas, raw)) for raw in _offers(request)
            ]
            for replica in replicas:
                replica.receive_offer(sock)
            with telling_that_it_works(sock, request):
                answers = [replica.share(self._block_dedup) for replica in replicas]
            refused = next((replica.refused for replica in replicas if replica.refused), "")
            send_frame(sock, {"answers": answers, REFUSED: refused})
            for replica, answer in zip(replicas, answers, strict=True):
                if not isinstance(answer, bool):
                    replica.receive_missing(sock, answer)
                    with telling_that_it_works(sock, request):
                        kept = replica.keep_missing(answer)
                    send_frame(sock, {"ok": kept})

    def _segment(self, sock: socket.socket, request: JsonObject) -> None:
        """Stored content that this node reads for others too."""
        try:
            if self._segments is None:
                raise CheckpointError("no storage here")
            with telling_that_it_works(sock, request):
                data = self._segments(int(request["step"]), str(request["content"]))
            if len(data) != request["bytes"]:
                raise CorruptData(f"{request['content']}: {len(data)} bytes, not {request['bytes']}")
        except (PulsetrainError, OSError, KeyError, ValueError) as error:
            send_frame(sock, {"error": str(error)})
            return
        send_frame(sock, {"ok": True})
        send_bytes(sock, data)

    def _get(self, sock: socket.socket, request: JsonObject) -> None:
        rank, step, attempt = request.get("rank"), request.get("step"), request.get("attempt", ANY)
        history = request.get("history", ANY)
        if not isinstance(rank, int) or not isinstance(step, int):
            raise CorruptData(f"peer asked for {request}")
        if not isinstance(attempt, int) or not isinstance(history, int):
            raise CorruptData(f"peer asked for {request}")
        with ExitStack() as stack:
            with telling_that_it_works(sock, request):
                replica = stack.enter_context(self._whole(rank, step, attempt, history))
            _hand_out(sock, replica, f"it has no step {step} of rank {rank}")

    def _get_any(self, sock: socket.socket, request: JsonObject) -> None:
        """A state that all ranks have saved alike, from whichever rank here has it."""
        step, attempt = request.get("step"), request.get("attempt")
        if not isinstance(step, int) or not isinstance(attempt, int):
            raise CorruptData(f"peer asked for {request}")
        with ExitStack() as stack:
            with telling_that_it_works(sock, request):
                found = stack.enter_context(self._any.reading(step, attempt))
            _hand_out(sock, found, f"no rank here has the state of step {step}")


def _hand_out(sock: socket.socket, found: tuple[Snapshot, memoryview] | None, why_not: str) -> None:
    """Send what is here, or why nothing is."""
    if found is None:
        send_frame(sock, {"error": why_not})
        return
    snapshot, data = found
    send_frame(sock, snapshot.as_json())
    send_bytes(sock, data)


def _offers(request: JsonObject) -> list[JsonObject]:
    """The entries of an offer. Raises `CorruptData`."""
    offers = request.get("of")
    if not isinstance(offers, list) or not all(isinstance(raw, dict) for raw in offers):
        raise CorruptData(f"not offers of checkpoints: {offers!r}")
    return offers


def _shut_down(sock: socket.socket) -> None:
    """Wake the thread that waits on it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("socket_already_closed", error=str(error))
