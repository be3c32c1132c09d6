"""Keeper to keeper over TCP: replicas go out after each save, and come back when a rank has lost its
memory."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import struct
from threading import Lock, Thread
from typing import Any

import structlog

from pulsetrain.recovery.checkpoint.arena import Arena, ArenaWriter, SlotInfo
from pulsetrain.recovery.checkpoint.framing import (
    challenge,
    introduce,
    receive_frame,
    receive_into,
    send_frame,
)
from pulsetrain.recovery.checkpoint.replicas import Replicas, Snapshot
from pulsetrain.stream.errors import CheckpointError, CorruptData, PulsetrainError, Unavailable

log = structlog.get_logger(__name__)

_SOCKET_BUFFER = 4 << 20


class PeerServer:
    """Takes replicas in and gives them out, one thread for each connection."""

    def __init__(self, replicas: Replicas, *, address: str, port: int, token: str, job: str) -> None:
        """Listens at once. Raises `Unavailable` where the port cannot be had."""
        self._replicas = replicas
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
            challenge(sock, self._token, self._job)
            while True:
                request = receive_frame(sock)
                if request.get("op") == "put":
                    self._put(sock, request)
                else:
                    self._get(sock, request)
        except PulsetrainError as error:
            log.debug("peer_connection_ended", reason=str(error))
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _put(self, sock: socket.socket, request: dict[str, Any]) -> None:
        snapshot = Snapshot.parse(request)
        memory = self._replicas.buffer(snapshot)
        try:
            checksum = receive_into(sock, memoryview(memory)[: snapshot.total_bytes])
        except PulsetrainError:
            self._replicas.give_back(snapshot.rank, memory)
            raise
        if checksum == snapshot.checksum:
            self._replicas.put(snapshot, memory)
            send_frame(sock, {"ok": True})
        else:
            self._replicas.give_back(snapshot.rank, memory)
            send_frame(sock, {"ok": False})

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
            try:
                sock.sendall(data)
            except OSError as error:
                raise Unavailable(f"peer went away while fetching: {error}") from error


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
        _tune(self._sock, timeout_s=timeout_s)
        try:
            introduce(self._sock, token, job, node)
        except PulsetrainError:
            self._sock.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def put(self, arena: Arena, fd: int, info: SlotInfo) -> bool:
        """Send a slot's bytes without copying them here; false where the trainer wrote over them
        meanwhile."""
        send_frame(self._sock, {"op": "put", **dataclasses.asdict(Snapshot.of(info))})
        self._sendfile(fd, arena.file_offset(info), info.total_bytes)
        return bool(receive_frame(self._sock).get("ok")) and arena.still(info)

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
        if receive_into(self._sock, writing.bytes) != snapshot.checksum:
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
