"""Measures one TCP transfer between two nodes: bytes that arrived, and segments that had to be sent again."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

CHUNK = bytes(1 << 16)
BUFFER_BYTES = 1 << 17
"""of the sender. Small, so that what is queued does not hide loss, and no queue on the way overflows"""
WINDOW_S = 0.15
"""Time of which the rate is taken. What a token bucket lets through at once is little beside it."""
_PACING_RATE = 47  # asm-generic/socket.h: SO_MAX_PACING_RATE, bytes a second
_INFO_BYTES = 144  # linux/tcp.h: tcpi_total_retrans at 100, tcpi_bytes_acked at 120, tcpi_segs_out at 136


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """What a sender saw. `error` is one line, "" where it worked.

    Over TCP `bits_per_s` is that of the best window: a link never carries more than it can, while a busy
    processor makes any window slower. Over RDMA it is the mean, and `resent_share` is not known. `unmeasured`
    says why nothing could be sent, such as that the receiver could not take part. It says nothing about the
    link.
    """

    bits_per_s: float = 0.0
    resent_share: float = 0.0
    error: str = ""
    unmeasured: str = ""


class Sink:
    """Takes what others send to one address, and throws it away. "" is every address.

    With a `device` it takes what arrives there and answers there. Raises `OSError` where that may not be.
    """

    def __init__(self, address: str, device: str = "") -> None:
        self._socket = listen(address)
        try:
            bind_to_device(self._socket, device)
        except OSError:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name=f"sink {address}", daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the wait of the thread
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                taken, _ = self._socket.accept()
                threading.Thread(target=_drain, args=(taken,), daemon=True).start()


def _drain(taken: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    with contextlib.suppress(OSError), taken:
        while taken.recv_into(buffer):
            pass


def host_sink(
    *, address: str, seconds: float, cpus: Sequence[int] = (), device: str = ""
) -> Iterator[dict[str, int]]:
    """A service for `Zygote.serve`: {"port": int} of a sink.

    It ends itself after `seconds`, even if nobody says so. An `address` that no interface has, as behind a
    translation of addresses, is taken for all of them. With `cpus` it runs on these, so that what it takes
    ends in the memory next to them. Where they are not this process's to use, nothing is served. Nor is it
    where this process may not bind to the `device`.
    """
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError:
            yield {"port": 0}
            return
    try:
        sink = Sink(own_address(address), device)
    except OSError:
        if not device:
            raise
        yield {"port": 0}
        return
    threading.Timer(seconds, os._exit, (0,)).start()
    yield {"port": sink.port}
    sink.close()


def report(
    *, address: str, port: int, seconds: float, source: str, bits_per_s: float = 0.0, device: str = ""
) -> dict[str, object]:
    """`send` as the fields of its report."""
    own = own_address(source)
    return asdict(send(address, port, seconds=seconds, source=own, bits_per_s=bits_per_s, device=device))


def bind_to_device(out: socket.socket, device: str) -> None:
    """Let all packets of a socket pass one interface, whatever the routes say. "": any.

    Linux sends by the destination, so that with two ports in one network an address of its own is not enough.
    Raises `OSError` where the kernel (before 5.7 without CAP_NET_RAW) does not allow it.
    """
    if device:
        out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())


def own_address(address: str) -> str:
    """The address if an interface of this machine has it, else "". An IPv6 one, too."""
    try:
        family, at = resolved(address, 0)
        with socket.socket(family) as tried:
            tried.bind(at)
    except OSError:
        return ""
    return address


def resolved(address: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """The family of an address or a name, and what a socket of it takes. IPv4 where a name has both.

    Raises `OSError` for a name that nobody knows.

    >>> resolved("::1", 80)
    (<AddressFamily.AF_INET6: 10>, ('::1', 80, 0, 0))
    """
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    family, _, _, _, at = min(found, key=lambda row: row[0] != socket.AF_INET)
    return family, at


def listen(address: str) -> socket.socket:
    """A socket that listens on an own address, IPv4 or IPv6. "": on all of them."""
    if address:
        family, at = resolved(address, 0)
        return socket.create_server(at, family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def send(
    address: str,
    port: int,
    *,
    seconds: float,
    source: str = "",
    timeout_s: float = 2.0,
    bits_per_s: float = 0.0,
    device: str = "",
) -> TransferReport:
    """Send to a `Sink` for `seconds`, at `bits_per_s` at most, where that is not 0.

    `source` is the own address to send from. An error is in the report. Where a `device` does not lead to the
    receiver nothing is measured: networks of several ports need not be joined.
    """
    connected = False
    try:
        family, to = resolved(address, port)
        with socket.socket(family) as out:
            out.settimeout(timeout_s)
            out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            if bits_per_s:
                out.setsockopt(socket.SOL_SOCKET, _PACING_RATE, max(1, int(bits_per_s / 8)))
            bind_to_device(out, device)
            if source:
                out.bind(resolved(source, 0)[1])
            out.connect(to)
            connected = True
            marks = [_mark(out)]
            end_s = marks[0][0] + seconds
            while marks[-1][0] < end_s:
                out.send(CHUNK)
                if time.perf_counter() - marks[-1][0] >= WINDOW_S:
                    marks.append(_mark(out))
            info = out.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError as error:
        why = f"{address}: {error.strerror or error}"
        return TransferReport(unmeasured=why) if device and not connected else TransferReport(error=why)
    resent, segments = struct.unpack_from("I", info, 100)[0], struct.unpack_from("I", info, 136)[0]
    rates = [8 * (b - a) / (later - now) for (now, a), (later, b) in pairwise(marks)]
    return TransferReport(bits_per_s=max(rates, default=0.0), resent_share=resent / max(1, segments))


def _mark(out: socket.socket) -> tuple[float, int]:
    """The time, and how many bytes have arrived by then."""
    info = out.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return time.perf_counter(), struct.unpack_from("Q", info, 120)[0]
