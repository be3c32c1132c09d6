"""Process groups: each rank leads one, in which is what it starts."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pulsetrain.core.process_stat import stat_fields


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
    processes = (stat_fields(int(folder.name), root / "proc") for folder in (root / "proc").glob("[0-9]*"))
    return any(fields and int(fields[2]) == pgid and fields[0] not in "ZX" for fields in processes)
