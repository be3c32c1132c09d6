"""Measures one RDMA transfer between two nodes: asks the other node for a server, and sends to it.

The node that receives waits on a TCP port. The sender says in one line of JSON which of its ports is to
receive, and in which memory. The receiver starts `ib_write_bw` there and answers with its TCP port. When the
sender closes its side, the receiver ends that process and says why it had failed, if it had.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from pulsetrain.core.errors import Unavailable
from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics import perftest
from pulsetrain.diagnostics.perftest import Ended, RdmaEnd
from pulsetrain.diagnostics.transfers import TransferReport, listen, own_address

CONNECT_S = 2.0
LISTEN_S = 3.0
"""for a server to start"""
MARGIN_S = CONNECT_S + LISTEN_S + perftest.SETUP_S + 2.0
"""that a transfer may take beyond its own time"""
LONGEST_S = 10.0
_LAST_WORD_S = 0.5  # for a server to say why it failed
_LONGEST_LINE = 4096
_TCP = Path("/proc/self/net/tcp")
_LISTEN = "0A"  # include/net/tcp_states.h: TCP_LISTEN

Ends = Mapping[str, Mapping[str, JsonObject]]
"""The fields of an `RdmaEnd` by name of the port and of the memory node, "" for the one next to the port."""


def host_servers(*, address: str, seconds: float, ends: Ends) -> Iterator[dict[str, int]]:
    """A service for `Zygote.serve`: {"port": int} where others ask for servers at these ends.

    It ends itself after `seconds`, even if nobody says so. A port receives one transfer at a time.
    """
    listening = listen(own_address(address))
    threading.Timer(seconds, os._exit, (0,)).start()
    busy = {name: threading.Lock() for name in ends}
    threading.Thread(target=_accept, args=(listening, ends, busy), name="RDMA servers", daemon=True).start()
    yield {"port": int(listening.getsockname()[1])}
    with contextlib.suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)  # ends the wait of the thread
    listening.close()


def _accept(listening: socket.socket, ends: Ends, busy: Mapping[str, threading.Lock]) -> None:
    with contextlib.suppress(OSError):
        while True:
            taken, _ = listening.accept()
            threading.Thread(target=_answer, args=(taken, ends, busy), daemon=True).start()


def _answer(taken: socket.socket, ends: Ends, busy: Mapping[str, threading.Lock]) -> None:
    """Serve one sender. One that says nothing of use is not answered."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError), taken:
        taken.settimeout(CONNECT_S)
        asked = _read(taken)
        name, seconds = str(asked["name"]), min(float(asked["seconds"]), LONGEST_S)
        end = RdmaEnd(**ends[name][str(asked["memory"])])
        if not busy[name].acquire(timeout=LISTEN_S):
            _write(taken, {"failure": f"{name} is busy"})
            return
        try:
            _write(taken, {"failure": _serve(taken, end, seconds)})
        finally:
            busy[name].release()


def _serve(taken: socket.socket, end: RdmaEnd, seconds: float) -> str:
    """Run a server until the sender is done with it. Why it failed, "" if it did not."""
    limit_s = seconds + MARGIN_S
    tcp_port = _free_port()
    try:
        command = perftest.server_command(end, tcp_port=tcp_port, seconds=seconds)
        process = perftest.start(command, end.cpus, limit_s)
    except OSError as error:
        return f"{perftest.TOOL}: {error.strerror or error}"
    try:
        if _await_listening(process, tcp_port):
            _write(taken, {"port": tcp_port})
            taken.settimeout(limit_s)
            taken.recv(1)
        elif process.poll() is None:
            return f"{perftest.TOOL}: it did not listen in {LISTEN_S:g} s"
    finally:
        failure = perftest.stop(process, _LAST_WORD_S)
    return failure


def between_own(sender: RdmaEnd, receiver: RdmaEnd, *, seconds: float) -> Ended:
    """Send from one port of this machine to another one. A failure says nothing about a port.

    Cards hand such a write to the network, as they know nothing of each other.
    """
    tcp_port = _free_port()
    try:
        command = perftest.server_command(receiver, tcp_port=tcp_port, seconds=seconds)
        process = perftest.start(command, receiver.cpus, seconds + MARGIN_S)
    except OSError as error:
        return Ended(failure=f"{perftest.TOOL}: {error.strerror or error}")
    failure = ""
    try:
        if not _await_listening(process, tcp_port):
            return Ended(failure=f"{perftest.TOOL}: it did not listen in {LISTEN_S:g} s")
        ended = perftest.measure(sender, "127.0.0.1", tcp_port=tcp_port, seconds=seconds)
    except OSError as error:
        return Ended(failure=f"{perftest.TOOL}: {error.strerror or error}")
    finally:
        failure = perftest.stop(process, _LAST_WORD_S)
    return Ended(failure=f"{ended.failure}; {failure}") if ended.failure and failure else ended


def _await_listening(process: subprocess.Popen[str], port: int) -> bool:
    """Whether a server listens in time. Where it ended instead, there is nothing to wait for."""
    end_s = time.monotonic() + LISTEN_S
    while time.monotonic() < end_s and process.poll() is None:
        if listens(_TCP.read_text(), port):
            return True
        time.sleep(0.02)
    return False


def listens(table: str, port: int) -> bool:
    """Whether somebody listens on a port, in the kernel's table of TCP sockets (proc_net_tcp.txt).

    >>> listens("sl local_address rem_address st\\n 0: 00000000:4853 00000000:0000 0A", 18515)
    True
    """
    rows = (line.split() for line in table.splitlines()[1:])
    return any(len(row) > 3 and row[3] == _LISTEN and row[1].endswith(f":{port:04X}") for row in rows)


def _free_port() -> int:
    with socket.create_server(("0.0.0.0", 0)) as tried:
        return int(tried.getsockname()[1])


def report(
    *,
    address: str,
    port: int,
    name: str,
    memory: str,
    end: JsonObject,
    seconds: float,
    source: str,
    bits_per_s: float = 0.0,
) -> dict[str, object]:
    """Send from `end` to the port `name` of another node. The fields of a `TransferReport`.

    `address` and `port` are where the other node hosts servers. `bits_per_s` is the mean rate of at least one
    second. Raises `Unavailable` where this machine could not take part, which says nothing about the link.
    """
    asked: JsonObject = {"name": name, "memory": memory, "seconds": seconds}
    own = own_address(source)
    try:
        with socket.create_connection(
            (address, port), timeout=CONNECT_S, source_address=(own, 0) if own else None
        ) as control:
            control.settimeout(2 * LISTEN_S + CONNECT_S)
            _write(control, asked)
            answer = _read(control)
            if "port" not in answer:
                return asdict(judged("", str(answer["failure"])))
            try:
                ended = perftest.measure(
                    RdmaEnd(**end),
                    address,
                    tcp_port=int(answer["port"]),
                    seconds=seconds,
                    bits_per_s=bits_per_s,
                )
            except OSError as error:
                raise Unavailable(f"{perftest.TOOL}: {error.strerror or error}") from error
            if not ended.failure:
                return asdict(TransferReport(bits_per_s=ended.bits_per_s))
            control.shutdown(socket.SHUT_WR)
            return asdict(judged(ended.failure, str(_read(control)["failure"])))
    except (OSError, ValueError, LookupError) as error:
        said = getattr(error, "strerror", None) or error
        return asdict(TransferReport(error=f"{address}: {said}"))


def judged(ours: str, theirs: str) -> TransferReport:
    """Whose the failure of a transfer is, from what the sender's and the receiver's process said.

    Raises `Unavailable` where it is the sender's machine.

    >>> judged("ib_write_bw: Failed to exchange data", "ib_write_bw: Couldn't allocate MR").unmeasured
    "ib_write_bw: Couldn't allocate MR"
    """
    for said in (ours, theirs):
        if perftest.of_link(said):
            return TransferReport(error=said)
    if theirs and (not ours or perftest.second_hand(ours)):
        return TransferReport(unmeasured=theirs)
    raise Unavailable(ours or f"{perftest.TOOL}: it failed without a word")


def _write(control: socket.socket, said: JsonObject) -> None:
    control.sendall(json.dumps(said).encode() + b"\n")


def _read(control: socket.socket) -> JsonObject:
    """One line of JSON. Raises `ValueError` where there is none."""
    line = b""
    while not line.endswith(b"\n"):
        more = control.recv(_LONGEST_LINE)
        line += more
        if not more or len(line) > _LONGEST_LINE:
            raise ValueError("it ended without an answer")
    said = json.loads(line)
    if not isinstance(said, dict):
        raise ValueError("it answered something else")  # noqa: TRY004 - what was sent has the wrong value
    return said
