"""Asks NCCL's RAS for what every rank of a job has begun.

RAS (NCCL 2.24 and later) is one thread in each process. It listens on one TCP port of each node, by default
localhost:28028, and gathers what is known of all processes. The exchange is lines of text: the client says
its protocol, then ``TIMEOUT``, ``SET FORMAT`` and ``VERBOSE STATUS``. The answer goes on until NCCL closes
the connection. JSON is known from NCCL 2.28.7 on. Nothing here listens. Sources: NVIDIA/nccl,
src/ras/client.cc and client_support.cc, and
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pulsetrain.core.errors import CorruptData, Unavailable, UsageError

ADDRESS = "NCCL_RAS_ADDR"
ENABLE = "NCCL_RAS_ENABLE"
HOST, PORT = "localhost", 28028
PROTOCOL = 2
WAIT_S = 2  # that NCCL waits for processes that do not answer
LIMIT_S = 9.0  # for everything: NCCL itself adds 5 s to `WAIT_S`
GREETING_S = 1.0  # a stopped process may hold the port: all processes of a node share it
TRIES = 4
MOST_BYTES = 16 << 20
LINE_BYTES = 4096
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": HOST}  # what a server is bound to


@dataclass(frozen=True, kw_only=True)
class RasAddress:
    """Where RAS listens."""

    host: str = HOST
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, name: str = ADDRESS) -> RasAddress:
    """Return HOST:PORT, [IPv6]:PORT or HOST as an address. Raises `UsageError` naming `name` otherwise.

    >>> str(parse_address("node-3:9000")), str(parse_address("[::]:28028")), str(parse_address("node-3"))
    ('node-3:9000', '[::1]:28028', 'node-3:28028')
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        host, port = text.strip(), str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536) or " " in host:
        raise UsageError(f"{name} {text!r}: allowed: HOST:PORT, such as {HOST}:{PORT}")
    return RasAddress(host=_ANYWHERE.get(host, host), port=int(port))


def address_of(environ: Mapping[str, str]) -> RasAddress:
    """Return where RAS of ranks with this environment listens.

    Raises `Unavailable` where it is turned off, and `UsageError` for an address that is none.
    """
    if environ.get(ENABLE, "").strip() == "0":
        raise Unavailable(f"NCCL RAS is off: {ENABLE} is 0")
    text = environ.get(ADDRESS, "")
    return parse_address(text) if text else RasAddress()


def ask(
    address: RasAddress, *, limit_s: float = LIMIT_S, wait_s: int = WAIT_S, most_bytes: int = MOST_BYTES
) -> str:
    """Return what RAS says, as JSON text. Returns or raises within about `limit_s`.

    Raises `Unavailable` where nothing answers in time, and `CorruptData` where the answer is not one of RAS,
    is cut off, or is longer than `most_bytes`. All in one line.
    """
    deadline_s = time.monotonic() + limit_s
    with _greeted(address, deadline_s) as exchange:
        exchange.order(f"TIMEOUT {wait_s}")
        exchange.order("SET FORMAT json")
        exchange.send("VERBOSE STATUS")
        return exchange.rest(most_bytes)


def _greeted(address: RasAddress, deadline_s: float) -> _Exchange:
    """Return a connection whose other end is RAS. One that keeps silent is left, and another one tried."""
    for left in reversed(range(TRIES)):
        exchange = _Exchange(address, deadline_s, _connect(address, deadline_s))
        try:
            exchange.greet()
        except Unavailable:
            exchange.close()
            if not left or time.monotonic() >= deadline_s:
                raise
        except BaseException:
            exchange.close()
            raise
        else:
            return exchange
    raise AssertionError("unreachable")


def _connect(address: RasAddress, deadline_s: float) -> socket.socket:
    limit_s = min(GREETING_S, max(0.01, deadline_s - time.monotonic()))
    try:
        return socket.create_connection((address.host, address.port), timeout=limit_s)
    except TimeoutError as error:
        raise Unavailable(f"NCCL RAS at {address} does not answer") from error
    except ConnectionRefusedError as error:
        raise Unavailable(f"nothing listens at {address}: no NCCL runs there, or its RAS is off") from error
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Unavailable(f"NCCL RAS at {address} cannot be reached: {why}") from error


class _Exchange(contextlib.AbstractContextManager["_Exchange"]):
    """One conversation. Every call ends before `deadline_s` (monotonic)."""

    def __init__(self, address: RasAddress, deadline_s: float, connection: socket.socket) -> None:
        self._address, self._deadline_s, self._socket = address, deadline_s, connection
        self._read = bytearray()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def greet(self) -> None:
        """Say who asks. Raises `CorruptData` where the other end is something else."""
        whole_s = self._deadline_s
        self._deadline_s = min(whole_s, time.monotonic() + GREETING_S)
        self.send(f"CLIENT PROTOCOL {PROTOCOL}")
        line = self._line()
        self._deadline_s = whole_s
        if not line.upper().startswith("SERVER PROTOCOL "):
            raise CorruptData(f"what listens at {self._address} is not NCCL RAS: it says {line[:60]!r}")

    def order(self, command: str) -> None:
        """Send a command that is answered by OK. Raises `CorruptData` for another answer."""
        self.send(command)
        line = self._line()
        if line.upper() == "OK":
            return
        if command.startswith("SET FORMAT"):
            raise CorruptData(f"NCCL RAS at {self._address} knows no JSON: it takes NCCL 2.28.7 or later")
        raise CorruptData(f"NCCL RAS at {self._address} answers {command!r} with {line[:60]!r}")

    def send(self, line: str) -> None:
        """Send one line."""
        with self._limited("takes no command"):
            self._socket.sendall(line.encode() + b"\n")

    def rest(self, most_bytes: int) -> str:
        """Return everything up to the end of the connection."""
        while self._more():
            if len(self._read) > most_bytes:
                raise CorruptData(f"the answer of NCCL RAS is longer than {most_bytes} bytes")
        text = self._read.decode(errors="replace").strip()
        if not text.endswith("}"):
            raise CorruptData(f"the answer of NCCL RAS at {self._address} is cut off")
        return text

    def _line(self) -> str:
        while b"\n" not in self._read:
            if len(self._read) > LINE_BYTES:
                raise CorruptData(f"what listens at {self._address} is not NCCL RAS: its line has no end")
            if not self._more():
                raise CorruptData(f"NCCL RAS at {self._address} has closed the connection")
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace").strip()

    def _more(self) -> bool:
        with self._limited("does not answer"):
            data = self._socket.recv(1 << 16)
        self._read += data
        return bool(data)

    @contextlib.contextmanager
    def _limited(self, failure: str) -> Iterator[None]:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise Unavailable(f"NCCL RAS at {self._address} {failure} in time")
        self._socket.settimeout(left_s)
        try:
            yield
        except TimeoutError as error:
            raise Unavailable(f"NCCL RAS at {self._address} {failure} in time") from error
        except OSError as error:
            raise Unavailable(f"NCCL RAS at {self._address}: {error.strerror or error}") from error
