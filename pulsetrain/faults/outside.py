"""Faults injected into other processes: stop or kill a rank, or a whole node with everything it started.

Processes are looked up in /proc below a process that the caller started. A rank is a process whose short name
is ``rank N``, as of Pulsetrain's ranks, or whose environment has ``RANK=N``, as of torchrun's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from pulsetrain.core.errors import UsageError
from pulsetrain.core.process_stat import PROC, stat_fields


def descendants(pid: int, root: Path = PROC) -> list[int]:
    """Every living process below `pid`, parents first; `pid` itself is not among them."""
    children: dict[int, list[int]] = {}
    for entry in root.iterdir():
        if entry.name.isdigit():
            parent = parent_of(int(entry.name), root)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    pids, queue = list[int](), [pid]
    while queue:
        below = sorted(children.get(queue.pop(0), ()))
        pids += below
        queue += below
    return pids


def parent_of(pid: int, root: Path = PROC) -> int | None:
    """The parent of a process that is alive and not a zombie; None for any other."""
    fields = stat_fields(pid, root)
    return int(fields[1]) if fields and fields[0] not in "ZX" else None


def state_of(pid: int, root: Path = PROC) -> str:
    """The kernel's letter (R, S, D, T, Z ...), or "" where there is no such process."""
    fields = stat_fields(pid, root)
    return fields[0] if fields else ""


def ranks_below(pid: int, root: Path = PROC) -> dict[int, int]:
    """Global rank -> pid, of the ranks below process `pid`."""
    ranks: dict[int, int] = {}
    for child in descendants(pid, root):
        rank = _rank_of(child, root)
        if rank is not None:
            ranks.setdefault(rank, child)
    return ranks


def _rank_of(pid: int, root: Path) -> int | None:
    try:
        name = (root / str(pid) / "comm").read_text().strip()
        if name.startswith("rank ") and name[5:].isdigit():
            return int(name[5:])
        for item in (root / str(pid) / "environ").read_bytes().split(b"\0"):
            if item.startswith(b"RANK="):
                return int(item[5:])
    except (OSError, ValueError):
        pass
    return None


def rank_pid(parent: int, rank: int, root: Path = PROC) -> int:
    """The pid of one rank below `parent`. Raises `UsageError` where it does not run there."""
    ranks = ranks_below(parent, root)
    if rank not in ranks:
        known = ", ".join(map(str, sorted(ranks))) or "none"
        raise UsageError(f"rank {rank} does not run below process {parent}; ranks there: {known}")
    return ranks[rank]


def send(pids: Iterable[int], number: int) -> list[int]:
    """Signal each process that still lives. Returns those that were reached."""
    reached = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached.append(pid)
    return reached


def stop(pid: int, timeout_s: float = 2.0) -> None:
    """Send SIGSTOP, and return once the process is stopped. Raises `UsageError` where it is gone."""
    if not send([pid], signal.SIGSTOP):
        raise UsageError(f"process {pid} is gone")
    deadline = time.monotonic() + timeout_s
    while state_of(pid) not in ("T", "t", "Z", "") and time.monotonic() < deadline:
        time.sleep(0.001)


def resume(pids: Iterable[int]) -> None:
    """Send SIGCONT to each that still lives."""
    send(pids, signal.SIGCONT)


def kill_tree(pid: int, *, timeout_s: float = 5.0, reap: bool = False) -> list[int]:
    """Send SIGKILL to `pid` and everything below it, like a power cut. Returns the pids; none of them lives.

    The root goes first, so that it can neither report nor restart anything. `reap` waits for an own child.
    """
    victims = [pid, *descendants(pid)]
    send(victims, signal.SIGKILL)
    if reap:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    deadline = time.monotonic() + timeout_s
    while (left := [p for p in victims if state_of(p) not in ("", "Z", "X")]) and time.monotonic() < deadline:
        for late in left:  # what one of them forked meanwhile
            send(descendants(late), signal.SIGKILL)
        send(left, signal.SIGKILL)
        time.sleep(0.005)
    return victims
