"""How the agent and its zygote talk: packets of one JSON object each, with open files beside it."""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any

PACKET_BYTES = 1 << 20
FDS_PER_PACKET = 16
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61  # prctl(2); only where the Yama module restricts who may trace


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends whose packets hold up to `PACKET_BYTES`, as far as the kernel's limit lets them."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
    return ends


def send(sock: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """One packet. Raises `OSError` where the other end is gone."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([json.dumps(message).encode()], rights)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next packet and the open files that came with it; None once the other end is closed."""
    try:
        body, ancillary, _, _ = sock.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(4 * FDS_PER_PACKET))
    except OSError:
        return None
    if not body:
        return None
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return json.loads(body), list(fds)


def die_with(parent: int, signum: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `signum` when `parent` ends; end now where it already has.

    The kernel watches the thread that forked, so a parent must fork from a thread that lives as long as it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def readable_by(pid: int) -> None:
    """Let `pid` and what it starts read this process's memory where only ancestors may (ptrace_scope 1)."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
