"""Packets of one JSON object each, with open files attached, between processes of one machine."""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

PACKET_BYTES = 1 << 20
FILES_PER_PACKET = 16


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends. A packet holds up to `PACKET_BYTES`, or less where the kernel's limit is lower."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
    return ends


def send(
    end: socket.socket, message: Mapping[str, object], files: Sequence[int] = (), *, flags: int = 0
) -> None:
    """Send one packet. Raises `OSError` where the other end is gone."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    end.sendmsg([json.dumps(message).encode()], rights, flags)


def receive(end: socket.socket, *, flags: int = 0) -> tuple[Any, list[int]] | None:
    """The next packet and the open files that came with it, None once the other end is closed.

    `socket.recv_fds` does not pass its flags on.
    """
    try:
        body, ancillary, _, _ = end.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(4 * FILES_PER_PACKET), flags)
    except OSError:
        return None
    if not body:
        return None
    files = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return json.loads(body), list(files)
