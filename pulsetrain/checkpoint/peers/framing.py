"""How agents exchange replicas over TCP: frames, and the handshake.

A frame is a length, one JSON header, and as many raw bytes as the header says. The job's token is never
sent: each side proves that it has the token with an HMAC of the other's nonce.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread

import xxhash

from pulsetrain.checkpoint.memory.blocks import Span
from pulsetrain.core.errors import AuthError, CorruptData, Unavailable
from pulsetrain.core.json import JsonObject

MAX_HEADER = 1 << 20
CHUNK = 256 << 10  # stays in the second-level cache between the copy from the socket and the checksum
_LENGTH = struct.Struct("!I")
VERSION = 2
OFFERS = 3  # format of offers: several ranks, each with its digests, then the spans included with them
PATIENT, WORKING = "patient_s", "working"  # who says in a request how patient it is, knows frames of this
WORKING_S = 1.0
REFUSED = "refused"  # in an answer: why there was no memory for a replica
_SOCKET_BUFFER = 4 << 20
_KEEPALIVE = {  # a machine that vanishes without a word is noticed after 90 s, also where nothing is sent
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 6,
}


def send_frame(sock: socket.socket, header: JsonObject, *bodies: bytes | memoryview) -> None:
    """Send one header, and short bodies that follow it at once. Raises `Unavailable`."""
    data = json.dumps(header, separators=(",", ":")).encode()
    try:
        sock.sendall(b"".join((_LENGTH.pack(len(data)), data, *bodies)))
    except OSError as error:
        raise Unavailable(f"peer went away while sending: {error}") from error


def receive_frame(sock: socket.socket) -> JsonObject:
    """Receive one header. Raises `Unavailable` at the end of the stream, `CorruptData` for anything else
    than a header."""
    (length,) = _LENGTH.unpack(receive_bytes(sock, _LENGTH.size))
    if length > MAX_HEADER:
        raise CorruptData(f"frame header of {length} bytes; allowed: {MAX_HEADER}")
    try:
        header = json.loads(receive_bytes(sock, length))
    except ValueError as error:
        raise CorruptData(f"frame header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CorruptData("frame header is not an object")
    return header


def receive_answer(sock: socket.socket) -> JsonObject:
    """Receive the answer to a request of a peer that may have to work for it. Raises as `receive_frame`."""
    while True:
        answer = receive_frame(sock)
        if WORKING not in answer:
            return answer


@contextmanager
def telling_that_it_works(sock: socket.socket, request: JsonObject) -> Iterator[None]:
    """Send a frame each second until the block ends, so that the peer does not take this node for away.

    Only where the request says that the peer knows such frames, and for how many seconds it waits for the
    next one. Nothing else may be sent meanwhile.
    """
    patient_s = request.get(PATIENT)
    if not isinstance(patient_s, int | float) or patient_s <= 0:
        yield
        return
    ended, pause_s = Event(), min(WORKING_S, patient_s / 4)

    def tell() -> None:
        with suppress(Unavailable):  # the answer fails too
            while not ended.wait(pause_s):
                send_frame(sock, {WORKING: True})

    teller = Thread(target=tell, name="pulsetrain-working", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def receive_into(sock: socket.socket, target: memoryview) -> bytes:
    """Fill `target` from the stream and return the xxh3-128 of what arrived. Raises `Unavailable`."""
    hasher, done = xxhash.xxh3_128(), 0
    while done < len(target):
        part = target[done : done + CHUNK]
        try:
            got = sock.recv_into(part, len(part), socket.MSG_WAITALL)
        except OSError as error:
            raise Unavailable(f"peer went away while receiving: {error}") from error
        if got == 0:
            raise Unavailable(f"peer went away after {done} of {len(target)} bytes")
        hasher.update(part[:got])
        done += got
    return hasher.digest()


def drop_bytes(sock: socket.socket, size: int) -> None:
    """Receive bytes that nobody needs. Raises `Unavailable`."""
    nowhere = memoryview(bytearray(min(size, CHUNK)))
    for done in range(0, size, CHUNK):
        receive_into(sock, nowhere[: size - done])


def challenge(sock: socket.socket, token: str, job: str, *, offers: int = 0) -> str:
    """The server's half of the handshake. Returns the client's node name.

    `offers` is the format of offers that the server accepts. 0: none. Raises `AuthError` for a wrong token or
    job.
    """
    nonce = secrets.token_hex(16)
    send_frame(sock, {"version": VERSION, "nonce": nonce, "offers": offers})
    hello = receive_frame(sock)
    proof = _proof(token, "client", nonce, str(hello.get("job")))
    if hello.get("job") != job or not hmac.compare_digest(proof, str(hello.get("proof"))):
        send_frame(sock, {"error": "wrong token or job"})
        raise AuthError(f"peer {hello.get('node')!r}: wrong token or job")
    send_frame(sock, {"proof": _proof(token, "server", str(hello.get("nonce")), job)})
    return str(hello.get("node"))


def introduce(sock: socket.socket, token: str, job: str, node: str) -> int:
    """The client's half of the handshake. Returns the format of offers that the server accepts, 0: none.

    Raises `AuthError` where either side does not have the token, `CorruptData` for another version.
    """
    greeting = receive_frame(sock)
    if greeting.get("version") != VERSION:
        raise CorruptData(f"peer speaks version {greeting.get('version')}; this is {VERSION}")
    nonce = secrets.token_hex(16)
    proof = _proof(token, "client", str(greeting.get("nonce")), job)
    send_frame(sock, {"job": job, "node": node, "nonce": nonce, "proof": proof})
    answer = receive_frame(sock)
    if not hmac.compare_digest(_proof(token, "server", nonce, job), str(answer.get("proof"))):
        raise AuthError(f"peer refused: {answer.get('error', 'it does not have the token')}")
    offers = greeting.get("offers")
    return offers if isinstance(offers, int) else 0


def _proof(token: str, side: str, nonce: str, job: str) -> str:
    return hmac.new(token.encode(), f"{side}|{nonce}|{job}".encode(), "sha256").hexdigest()


def receive_bytes(sock: socket.socket, size: int) -> bytes:
    """Receive `size` raw bytes. Raises `Unavailable`."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        try:
            got = sock.recv_into(view[done:])
        except OSError as error:
            raise Unavailable(f"peer went away while receiving: {error}") from error
        if got == 0:
            raise Unavailable("peer closed the connection")
        done += got
    return bytes(data)


def receive_blocks(sock: socket.socket, target: memoryview, spans: Sequence[Span]) -> bytes:
    """Fill the spans of `target` one after the other and return their digests. Raises `Unavailable`."""
    return b"".join(receive_into(sock, target[at : at + size]) for at, size in spans)


def send_bytes(sock: socket.socket, data: memoryview) -> None:
    """Send raw bytes. Raises `Unavailable`."""
    try:
        sock.sendall(data)
    except OSError as error:
        raise Unavailable(f"peer went away while fetching: {error}") from error


def parse_spans(raw: object, total: int) -> list[Span]:
    """Spans of a checkpoint of `total` bytes. Raises `CorruptData` for a span that is not in it."""
    if not isinstance(raw, list):
        raise CorruptData(f"not spans of a checkpoint: {raw!r}")
    try:
        spans = [(int(at), int(size)) for at, size in raw]
    except (TypeError, ValueError) as error:
        raise CorruptData(f"not spans of a checkpoint: {raw!r}") from error
    if any(at < 0 or size < 1 or at + size > total for at, size in spans):
        raise CorruptData(f"peer names {spans} of {total} bytes")
    return spans


def tune(sock: socket.socket, *, timeout_s: float) -> None:
    """Make the socket blocking with the kernel's timeouts, and give it large buffers.

    sendfile knows no other timeouts. 0: none while the other machine is there.
    """
    sock.settimeout(None)
    span = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, span)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
