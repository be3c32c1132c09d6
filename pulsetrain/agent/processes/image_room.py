"""Whether the disk has room for an image. It is asked before any process is stopped for it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from pulsetrain.core.errors import Unavailable

RESERVE_BYTES = 1 << 30
RESERVE_RATIO = 0.05
"""What is left to others on the same disk, whichever is less: the agent's own records, checkpoints."""
DUMPED = ("RssAnon:", "RssShmem:", "VmSwap:")
"""Fields of /proc/PID/status. Pages of files that nobody has changed are not dumped."""


def memory_bytes(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """What processes have in memory that a dump of them would write. 0 of one that is gone.

    Memory of devices is not counted: the driver moves it only when the process is dumped.
    """
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            for line in (proc / str(pid) / "status").read_text().splitlines():
                if line.startswith(DUMPED):
                    found += int(line.split()[1]) * 1024
    return found


def needed_bytes(processes: Sequence[int], kept: int) -> int:
    """How much room dumps of so much memory take at most.

    The largest one is there twice for a moment: as CRIU wrote it, and in pages by content. `kept` is what the
    pages of the last image take already.

    >>> needed_bytes([300, 200, 10], kept=400)
    410
    """
    return max(processes, default=0) + max(0, sum(processes) - kept)


def refuse_without_room(folder: Path, processes: Sequence[int], kept: int) -> None:
    """Raises `Unavailable` where the disk of `folder` has no room for dumps of so much memory."""
    needed, disk = needed_bytes(processes, kept), shutil.disk_usage(folder)
    reserve = min(RESERVE_BYTES, int(disk.total * RESERVE_RATIO))
    if needed > disk.free - reserve:
        gb = [f"{size / 1e9:.1f} GB" for size in (needed, disk.free, reserve)]
        raise Unavailable(f"it may take {gb[0]}, and {folder} has {gb[1]} free, of which {gb[2]} stay so")
