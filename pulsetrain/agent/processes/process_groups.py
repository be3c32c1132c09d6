"""Process groups: each rank leads one, in which is what it starts."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def kill_group(pid: int, signum: int) -> None:
    """Send a signal to the group that `pid` leads, or to `pid` where it leads none yet."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:  # forked, but not yet the leader of its group
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)


def has_members(pgid: int, root: Path = Path("/")) -> bool:
    """Whether a process of the group lives. A zombie does not."""
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            state, _, group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(group) == pgid and state not in "ZX":
                return True
    return False
