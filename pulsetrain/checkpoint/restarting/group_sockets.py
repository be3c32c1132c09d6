"""The sockets of this process's gloo groups: whoever waits in a collective is woken by shutting them.

Gloo's own abort does not wake a thread that waits for a peer which is stopped but not dead. Neither gloo nor
torch says which sockets a group has. So they are the ones that are new when torch has made a group.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

OPEN_FILES = Path("/proc/self/fd")


def open_sockets(folder: Path = OPEN_FILES) -> dict[int, str]:
    """The sockets that are open, with their inodes as the kernel shows them, by descriptor."""
    found = {}
    for name in os.listdir(folder):
        try:
            target = os.readlink(folder / name)
        except OSError:
            continue  # it was closed meanwhile
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


class GroupSockets:
    """Notes the sockets that open while torch makes a process group."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def watch(self) -> None:
        """Note them from now on. Call it once in a process."""
        from torch.distributed import distributed_c10d as c10d

        c10d._new_process_group_helper = self.noting(c10d._new_process_group_helper)

    def noting(self, make: Callable[P, T]) -> Callable[P, T]:
        """As `make`. The sockets that it leaves open are those of a group."""

        @functools.wraps(make)
        def made(*args: P.args, **kwargs: P.kwargs) -> T:
            before = open_sockets()
            try:
                return make(*args, **kwargs)
            finally:
                after = open_sockets()
                self._known |= {fd: inode for fd, inode in after.items() if before.get(fd) != inode}

        return made

    def shut(self) -> int:
        """End the connections of all groups. Returns how many. Any thread may call it.

        A descriptor that means something else by now is left alone. So is a socket that listens: gloo's
        thread ends the process where that fails.
        """
        present = open_sockets()
        return sum(_shut(fd) for fd, inode in list(self._known.items()) if present.get(fd) == inode)

    def forget(self) -> None:
        """The groups are gone."""
        self._known.clear()


def _shut(fd: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            connection.getpeername()
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True
