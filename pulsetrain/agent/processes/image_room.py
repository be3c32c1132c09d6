"""Whether the disk has room for an image. It is asked before any process is stopped for it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pulsetrain.core.errors import Unavailable

RESERVE_BYTES = 1 << 30
RESERVE_RATIO = 0.05
"""What is left to others on the same disk, whichever is less: the agent's own records, checkpoints."""
DUMPED = ("RssAnon", "RssShmem", "VmSwap")
"""Fields of /proc/PID/status. Pages of files that nobody has changed are not dumped."""
SHARES = ("Pss_Anon", "SwapPss")
"""Fields of /proc/PID/smaps_rollup, for RssAnon and VmSwap: of a page that several share, a part each."""


class Memory(NamedTuple):
    """What a dump of processes would write, and how much of it is left with shared pages counted once."""

    dumped_bytes: int
    kept_bytes: int


def memory_of(pids: Iterable[int], proc: Path = Path("/proc")) -> Memory:
    """What processes have in memory that a dump of them would write. 0 of one that is gone.

    A page that a process shares with one that it has forked is dumped for each, and kept once. Memory that is
    shared by design counts whole: the agent has it, too. Where the kernel does not say what is shared,
    nothing is. Memory of GPUs is not among it: the driver moves it to the host only for the dump.
    """
    dumped = kept = 0
    for pid in pids:
        fields = _fields(proc / str(pid) / "status")
        whole = sum(fields.get(name, 0) for name in DUMPED)
        rollup = _fields(proc / str(pid) / "smaps_rollup")
        shares = all(name in rollup for name in SHARES)
        dumped += whole
        kept += sum(rollup[name] for name in SHARES) + fields.get("RssShmem", 0) if shares else whole
    return Memory(dumped, kept)


def with_gpus(memory: Memory, pids: Iterable[int], on_gpus: Mapping[int, int]) -> Memory | None:
    """The same with what these processes have on GPUs. None where that of none of them is known."""
    known = [on_gpus[pid] for pid in pids if pid in on_gpus]
    more = sum(known)
    return Memory(memory.dumped_bytes + more, memory.kept_bytes + more) if known else None


def _fields(path: Path) -> dict[str, int]:
    """Its sizes in bytes, by name. Empty where it cannot be read."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(errors="replace").splitlines():
            name, _, size = line.partition(":")
            if size.endswith(" kB"):
                found[name] = int(size.removesuffix("kB")) * 1024
    return found


def needed_bytes(processes: Sequence[Memory]) -> int:
    """How much room dumps of so much memory take at most.

    The largest one is there twice for a moment: as CRIU wrote it, and in pages by content. Pages of the last
    image save nothing: each step changes all weights, and the old pages stay until the new ones are there.

    >>> needed_bytes([Memory(300, 250), Memory(200, 200), Memory(10, 10)])
    760
    """
    return max((each.dumped_bytes for each in processes), default=0) + sum(e.kept_bytes for e in processes)


def refuse_without_room(folder: Path, processes: Sequence[Memory]) -> None:
    """Raises `Unavailable` where the disk of `folder` has no room for dumps of so much memory."""
    needed, disk = needed_bytes(processes), shutil.disk_usage(folder)
    reserve = min(RESERVE_BYTES, int(disk.total * RESERVE_RATIO))
    if needed > disk.free - reserve:
        gb = [f"{size / 1e9:.1f} GB" for size in (needed, disk.free, reserve)]
        raise Unavailable(f"it may take {gb[0]}, and {folder} has {gb[1]} free, of which {gb[2]} stay so")
