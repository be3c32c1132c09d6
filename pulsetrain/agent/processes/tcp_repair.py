"""Lets the TCP connections of a process go on after a dump.

CRIU reads a connection in the kernel's repair mode (TCP_REPAIR of Linux's tcp(7)). Each read and write of the
process fails with EPERM meanwhile. CRIU ends that mode only where it fails, or where it lets the process run.
It does not where the process is left stopped, nor where CRIU itself is killed.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_PIDFD_GETFD = 438  # the same on every architecture, from Linux 5.6 on
_TCP_REPAIR = 19
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def end_repair(pid: int) -> int:
    """End the repair mode of all connections of a process. Returns of how many it did.

    Raises `OSError` where one of them cannot be reached. A process that is gone has none.
    """
    ended = 0
    for connection in _connections(pid):
        with connection:
            if connection.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR):
                connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 0)
                ended += 1
    return ended


def _connections(pid: int) -> Iterator[socket.socket]:
    """Our own ends of its TCP sockets. To close one changes nothing for the process."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in _socket_numbers(pid):
            one = socket.socket(fileno=_get_fd(process, number))
            if one.family in _FAMILIES and one.type == socket.SOCK_STREAM:
                yield one
            else:
                one.close()
    finally:
        os.close(process)


def _socket_numbers(pid: int) -> list[int]:
    """Numbers of the files of a process that are sockets."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
        return [int(link.name) for link in links if os.readlink(link).startswith("socket:")]
    except FileNotFoundError:  # the process has just ended
        return []


def _get_fd(process: int, number: int) -> int:
    """A file of another process. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(ctypes.c_long(_PIDFD_GETFD), process, number, 0))
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return found
