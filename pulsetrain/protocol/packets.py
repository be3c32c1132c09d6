"""Packets of one JSON object each, with open files attached, between processes of one machine."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

PACKET_BYTES = 1 << 16
"""A larger object travels in a file: a packet is limited by the kernel's `net.core.wmem_max`."""
BUFFER_BYTES = 1 << 20
FILES_PER_PACKET = 16
IN_FILE = b"in file"
"""The packet of an object that is in the last of its files."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, with room for `BUFFER_BYTES`, or less where the kernel's limit is lower."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return ends


def send(
    end: socket.socket, message: Mapping[str, object], files: Sequence[int] = (), *, flags: int = 0
) -> None:
    """Send one object of any size. Raises `OSError` where the other end is gone."""
    body = json.dumps(message).encode()
    if len(body) <= PACKET_BYTES:
        _send(end, body, files, flags)
        return
    large = os.memfd_create("pulsetrain-packet", os.MFD_CLOEXEC)
    try:
        with open(large, "wb", closefd=False) as file:
            file.write(body)
        _send(end, IN_FILE, (*files, large), flags)
    finally:
        os.close(large)


def _send(end: socket.socket, body: bytes, files: Sequence[int], flags: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    end.sendmsg([body], rights, flags)


def receive(end: socket.socket, *, flags: int = 0) -> tuple[Any, list[int]] | None:
    """The next object and the open files that came with it, None once the other end is closed.

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
    opened = list(files)
    if body == IN_FILE:
        body = _read(opened.pop())
    return json.loads(body), opened


def _read(fd: int) -> bytes:
    with open(fd, "rb") as file:
        file.seek(0)  # the sender has left it at its end
        return file.read()
