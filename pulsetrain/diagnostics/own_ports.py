"""Sends from one network port of this machine to another one, through the network between them.

Linux does not do that by itself. It finds every own address in its table of local routes and hands the packet
over inside the machine, whatever port has the address. Such a transfer says nothing about a port. A socket
that is bound to a port (SO_BINDTODEVICE) skips the local routes of other ports, and then the packet leaves.
The other port takes a packet from an own address only if the administrator has allowed that: `accept_local`
must be on and strict filtering of sources off (ip-sysctl). Both are settings of the machine, so they are read
and never changed here. Where they do not allow it, or the ports' own counters do not show the bytes, the way
is not measurable, and nothing is said about it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from pulsetrain.diagnostics.measurement import Check
from pulsetrain.diagnostics.port_rates import LEAST_SHARE, STREAM_SHARE, promised
from pulsetrain.diagnostics.port_speed import in_virtual_machine, speed_of_interface

SEEN_SHARE = 0.9
"""of the bytes, which the counters of both ports must show"""
CONNECT_S = 1.0
COUNTERS_S = 2.5
"""for counters to show what went through: some drivers ask the card once in a second or two"""
MOST_PORTS = 16
SPARE_S = 9.0
"""beyond the time that was asked for. No transfer begins after it: where ports do not reach each other, each
one waits"""
_CHUNK = bytes(1 << 16)


@dataclass(frozen=True, kw_only=True)
class OwnPort:
    """A port with hardware, its IPv4 address, and the rate that counts for it, 0 for none (`port_speed`)."""

    name: str
    address: str
    bits_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What came of one transfer, by the sender and by the counters of both ports, in bytes."""

    sent: int
    left: int
    arrived: int
    seconds: float
    error: str = ""


def checks(seconds: float, *, sys_root: Path = Path("/sys"), proc: Path = Path("/proc")) -> list[Check]:
    """One check for each two ports that follow each other, in both directions, for about `seconds` in all.

    None where the machine has no two ports.
    """
    ports = own_ports(sys_root, proc)[:MOST_PORTS]
    pairs = [pair for two in _ring(ports) for pair in (two, two[::-1])]
    share = seconds / (len(pairs) + 1)
    stream: float | None = None
    found: list[Check] = []
    end_s = time.monotonic() + seconds + SPARE_S
    for sender, receiver in pairs:
        late = "no time was left" if time.monotonic() >= end_s else ""
        if why := why_not((sender.name, receiver.name), proc) or late:
            found.append(_not_measurable(_name(sender, receiver), why))
            continue
        if stream is None:
            stream = _own_stream(share)
        if not stream:
            found.append(_not_measurable(_name(sender, receiver), "it could not send to itself"))
            continue
        sent = _send(sender, receiver, share, sys_root)
        found.append(judged(sender, receiver, sent, stream))
    return found


def own_ports(sys_root: Path = Path("/sys"), proc: Path = Path("/proc")) -> list[OwnPort]:
    """The ports of this machine that have hardware, are up and have an IPv4 address, by name."""
    found, virtual = [], in_virtual_machine(sys_root, proc)
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        folder = sys_root / "class" / "net" / name
        address = next((a.address for a in addresses if a.family == socket.AF_INET), "")
        if address and (folder / "device").exists() and _text(folder / "operstate") == "up":
            rate = 0.0 if virtual else speed_of_interface(folder)
            found.append(OwnPort(name=name, address=address, bits_per_s=rate))
    return found


def why_not(ports: Sequence[str], proc: Path = Path("/proc")) -> str:
    """Why the kernel would drop what comes from an own address. "" where it would take it.

    `accept_local` counts if it is on for all ports or for this one. Of `rp_filter` the larger value counts,
    and 1 is strict (ip-sysctl).
    """
    settings = proc / "sys" / "net" / "ipv4" / "conf"
    for port in ports:
        if not any(_number(settings / scope / "accept_local") == 1 for scope in ("all", port)):
            return f"net.ipv4.conf.{port}.accept_local is off"
        if max(_number(settings / scope / "rp_filter") for scope in ("all", port)) == 1:
            return f"net.ipv4.conf.{port}.rp_filter is strict"
    return ""


def judged(sender: OwnPort, receiver: OwnPort, sent: Sent, stream_bits_per_s: float) -> Check:
    """What a transfer says. A way on which the counters saw nothing was none through the network.

    A port promises no more than half of what a stream inside this machine reaches.

    >>> a, b = (OwnPort(name=name, address="", bits_per_s=1e11) for name in ("eth0", "eth1"))
    >>> judged(a, b, Sent(sent=10**9, left=0, arrived=0, seconds=0.1), 4e10).detail
    'not measurable: the bytes stayed inside the machine'
    """
    name = _name(sender, receiver)
    if sent.error:
        return _not_measurable(name, sent.error)
    if min(sent.left, sent.arrived) < SEEN_SHARE * sent.sent or not sent.sent:
        return _not_measurable(name, "the bytes stayed inside the machine")
    known = sender.bits_per_s > 0 and receiver.bits_per_s > 0
    stream = STREAM_SHARE * stream_bits_per_s
    least = LEAST_SHARE * promised(sender.bits_per_s, receiver.bits_per_s, stream) / 8
    return Check(name=name, value=sent.sent / sent.seconds, unit="B/s", limit=least if known else None)


def _name(sender: OwnPort, receiver: OwnPort) -> str:
    return f"port_{sender.name}_to_{receiver.name}"


def _not_measurable(name: str, why: str) -> Check:
    return Check(name=name, value=0.0, unit="B/s", detail=f"not measurable: {why}")


def _ring(ports: Sequence[OwnPort]) -> list[tuple[OwnPort, OwnPort]]:
    """Neighbours, and the last beside the first where there are more than two."""
    return list(pairwise([*ports, ports[0]] if len(ports) > 2 else ports))


def _own_stream(seconds: float) -> float:
    """Bits a second of one stream inside this machine, with the same buffers. 0.0 where that failed, as where
    a busy processor let it wait."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as out:
            sent, took = _stream(server, out, seconds)
    except OSError:
        return 0.0
    return 8 * sent / took


def _send(sender: OwnPort, receiver: OwnPort, seconds: float, sys_root: Path) -> Sent:
    counters = [
        sys_root / "class" / "net" / port.name / "statistics" / file
        for port, file in ((sender, "tx_bytes"), (receiver, "rx_bytes"))
    ]
    try:
        with _bound(receiver) as server, _bound(sender) as out:
            server.listen()
            before = [_number(file) for file in counters]
            sent, took = _stream(server, out, seconds)
    except OSError as error:
        return Sent(sent=0, left=0, arrived=0, seconds=0.0, error=str(error.strerror or error))
    end_s = time.monotonic() + COUNTERS_S
    while True:
        left, arrived = (_number(file) - first for file, first in zip(counters, before, strict=True))
        if min(left, arrived) >= SEEN_SHARE * sent or time.monotonic() > end_s:
            return Sent(sent=sent, left=left, arrived=arrived, seconds=took)
        time.sleep(0.05)


@contextlib.contextmanager
def _bound(port: OwnPort) -> Iterator[socket.socket]:
    """A socket whose packets leave and arrive by one port alone. Raises `OSError`, on old kernels for lack of
    a privilege."""
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, port.name.encode())
        made.bind((port.address, 0))
        yield made


def _stream(server: socket.socket, out: socket.socket, seconds: float) -> tuple[int, float]:
    """Bytes that arrived over one connection, and the seconds that this took. Raises `OSError`."""
    received: list[int] = []
    server.settimeout(CONNECT_S)
    reader = threading.Thread(target=_drain, args=(server, received), daemon=True)
    reader.start()
    out.settimeout(CONNECT_S)
    out.connect(server.getsockname())
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        out.send(_CHUNK)
    out.shutdown(socket.SHUT_WR)
    reader.join(timeout=CONNECT_S)
    return sum(received), time.perf_counter() - began


def _drain(server: socket.socket, received: list[int]) -> None:
    buffer = bytearray(1 << 18)
    with contextlib.suppress(OSError):
        taken, _ = server.accept()
        with taken:
            taken.settimeout(CONNECT_S)
            while count := taken.recv_into(buffer):
                received.append(count)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(file: Path) -> int:
    try:
        return int(_text(file))
    except ValueError:
        return 0
