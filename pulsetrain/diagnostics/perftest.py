"""Runs perftest's `ib_write_bw`, and says what its output means.

One transfer needs two of these processes: a server on the node that receives, and a client on the node that
sends. They meet over TCP and then write by RDMA. Options, report and messages are those of perftest 4.5 (read
in its source at v4.5-0.17, the version of Debian 12). The report that newer versions write is read, too.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.core.errors import CorruptData

TOOL = "ib_write_bw"
MESSAGE_BYTES = 1 << 16
SETUP_S = 6.0
"""for a client to start, to connect and to end. It sleeps one second itself before it exchanges anything."""
_GRACE_S = 5  # after which `timeout` ends a process whose parent did not
_LONGEST_LINE = 200  # characters
_AVERAGE = re.compile(r'"?\bBW_average"?\s*:\s*(\S+?),?\s*$', re.MULTILINE)
_OF_LINK = ("Completion with error", " state is ", "no end in ")
_SECOND_HAND = (
    "exchange data",
    "Couldn't read",
    "from socket",
    "to socket",
    "close connection",
    "exit status",
)


@dataclass(frozen=True, kw_only=True)
class RdmaEnd:
    """One end of a transfer: a port of a card, and the memory that is written from or to.

    `gid_index` is for RoCE, -1 for InfiniBand. `cpus` are the processors next to the memory, none for any.
    """

    device: str
    port: int
    gid_index: int = -1
    cpus: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended. `failure` is one line, "" where it worked."""

    bits_per_s: float = 0.0
    failure: str = ""


def whole_seconds(seconds: float) -> int:
    """How long a transfer takes that should take `seconds`: the tool counts whole seconds only.

    >>> whole_seconds(0.5), whole_seconds(2.0)
    (1, 2)
    """
    return max(1, math.ceil(seconds))


def server_command(end: RdmaEnd, *, tcp_port: int, seconds: float) -> list[str]:
    """The command that waits for one client on a TCP port of all addresses."""
    gid = ["-x", str(end.gid_index)] if end.gid_index >= 0 else []
    return [
        *(TOOL, "-d", end.device, "-i", str(end.port), *gid),
        *("-p", str(tcp_port), "-s", str(MESSAGE_BYTES), "-D", str(whole_seconds(seconds))),
        *("-F", "--report_gbits"),  # -F: clocks of processors may differ
    ]


def client_command(
    end: RdmaEnd, address: str, *, tcp_port: int, seconds: float, report: Path, bits_per_s: float = 0.0
) -> list[str]:
    """The command that sends to a server, at `bits_per_s` at most, where that is not 0.

    The least limit is one message a second. What was measured is in the file `report` afterwards.
    """
    gbits = max(bits_per_s, 8.0 * MESSAGE_BYTES) / 1e9
    limit = [f"--rate_limit={gbits:.6f}", "--rate_limit_type=SW", "--rate_units=g", "--burst_size=1"]
    return [
        *server_command(end, tcp_port=tcp_port, seconds=seconds),
        *(limit if bits_per_s else ()),
        *("--out_json", f"--out_json_file={report}", address),
    ]


def average_bits_per_s(report: str) -> float:
    """The mean rate in bits a second, from a report that was made with `--report_gbits`.

    What version 4.5 writes is no JSON: names have no quotes, and commas are left over. Versions from 2025 on
    write JSON. Raises `CorruptData` where there is no rate.

    >>> average_bits_per_s("results: {\\nBW_peak: 0.00,\\nBW_average: 392.50,\\nMsgRate: 0.748634,\\n},\\n")
    392500000000.0
    """
    match = _AVERAGE.search(report)
    with contextlib.suppress(ValueError):
        gbits = float(match[1]) if match else math.nan
        if math.isfinite(gbits) and gbits >= 0:
            return gbits * 1e9
    raise CorruptData(f"{TOOL}: no BW_average in its report")


def failure(stderr: str, code: int) -> str:
    """What a process said as it failed, in one line.

    >>> failure(" Port number 1 state is Down\\n Couldn't set the link layer\\n", 1)
    "ib_write_bw: Port number 1 state is Down; Couldn't set the link layer"
    """
    lines = [" ".join(line.split()) for line in stderr.splitlines()]
    said = "; ".join(filter(None, lines)) or f"exit status {code}"
    return f"{TOOL}: {said}"[:_LONGEST_LINE]


def of_link(failure: str) -> bool:
    """Whether a failure is the link's: a port that is down, a write that did not arrive, no end in time.

    All others, such as no right to lock memory, say something about a machine only.
    """
    return any(words in failure for words in _OF_LINK)


def second_hand(failure: str) -> bool:
    """Whether a failure only says that the other side went away, or nothing: such a write ends in SIGPIPE."""
    return any(words in failure for words in _SECOND_HAND)


def start(command: Sequence[str], cpus: Sequence[int], limit_s: float) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, on some processors. Raises `OSError`.

    `timeout` ends the command also where nobody is left to do so.
    """
    before = os.sched_getaffinity(0)  # of this thread
    try:
        os.sched_setaffinity(0, cpus or before)
        return subprocess.Popen(
            ["timeout", "--signal=KILL", f"{limit_s + _GRACE_S:.0f}", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    finally:
        os.sched_setaffinity(0, before)


def stop(process: subprocess.Popen[str], wait_s: float = 0.0) -> str:
    """Kill a process and its group, if it does not end in `wait_s`. Why it had failed before, "" if not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    code = process.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _, stderr = process.communicate()
    return failure(stderr, code) if code else ""


def measure(end: RdmaEnd, address: str, *, tcp_port: int, seconds: float, bits_per_s: float = 0.0) -> Ended:
    """Send to a server that listens, and wait for the end. Raises `OSError` where nothing can be started."""
    limit_s = whole_seconds(seconds) + SETUP_S
    with tempfile.TemporaryDirectory(prefix="pulsetrain-perftest-") as folder:
        report = Path(folder) / "report"
        command = client_command(
            end, address, tcp_port=tcp_port, seconds=seconds, report=report, bits_per_s=bits_per_s
        )
        process = start(command, end.cpus, limit_s)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            stop(process)
            return Ended(failure=f"{TOOL}: no end in {limit_s:g} s")
        if failed := stop(process):
            return Ended(failure=failed)
        try:
            return Ended(bits_per_s=average_bits_per_s(report.read_text(errors="replace")))
        except (OSError, CorruptData) as error:
            return Ended(failure=f"{TOOL}: no report ({error})")
