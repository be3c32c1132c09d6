"""Connections of ranks over which nothing comes back: TCP sends the same bytes again and again, in vain.

The receiver's kernel acknowledges what arrives, whatever its process does. So a rank that computes, saves or
is stopped never makes its peers resend. Only a network that loses everything does. Sources: proc_net_tcp in
the kernel's documentation, RFC 6298: each resend waits twice as long as the one before, so that four in a row
take 3 s at least.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pulsetrain.protocol.messages import StuckConnection

RESENDS = 4
MOST_BYTES = 1 << 20
"""Of the kernel's table. A machine with more than some thousand connections is not looked into further."""
MOST_LISTED = 16
_SENDING = ("01", "02")  # TCP_ESTABLISHED, TCP_SYN_SENT
_RESEND_TIMER = "01"
_SOCKET = "socket:["


def stuck_connections(pids: Sequence[int], proc: Path = Path("/proc")) -> dict[int, list[StuckConnection]]:
    """Connections with unacknowledged bytes that were resent `RESENDS` times in a row or more, by process.

    All processes are in the network namespace of the first. Only processes that have some are listed.
    """
    if not pids:
        return {}
    folder = proc / str(pids[0]) / "net"
    found = {inode: row for name in ("tcp", "tcp6") for inode, row in _stuck(folder / name)}
    if not found:
        return {}
    owned = {pid: [found[i] for i in _inodes(proc / str(pid) / "fd") if i in found] for pid in pids}
    return {pid: rows[:MOST_LISTED] for pid, rows in owned.items() if rows}


def _stuck(file: Path) -> Iterator[tuple[str, StuckConnection]]:
    """Inode and connection of the rows of a table of the kernel."""
    for line in _text(file).splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] not in _SENDING or not fields[5].startswith(_RESEND_TIMER):
            continue
        queued, resends = fields[4].partition(":")[0], int(fields[6], 16)
        if resends >= RESENDS and int(queued, 16) > 0:
            local, remote = _address(fields[1]), _address(fields[2])
            yield fields[9], StuckConnection(local=local, remote=remote, resends=resends)


def _address(text: str) -> str:
    """The address in hexadecimal words of the machine's byte order, without the port.

    >>> _address("0200A8C0:0016"), _address("0000000000000000FFFF00000200A8C0:0016")
    ('192.168.0.2', '192.168.0.2')
    """
    words = bytes.fromhex(text.partition(":")[0])
    packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _inodes(folder: Path) -> Iterator[str]:
    """Inodes of the sockets that a process has open."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(folder / name)
        except OSError:
            continue
        if target.startswith(_SOCKET):
            yield target[len(_SOCKET) : -1]


def _text(file: Path) -> str:
    """The file, up to the last whole line of its first `MOST_BYTES`."""
    try:
        with file.open(errors="replace") as opened:
            text = opened.read(MOST_BYTES)
    except OSError:
        return ""
    return text[: text.rfind("\n") + 1]
