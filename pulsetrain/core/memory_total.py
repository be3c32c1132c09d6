"""How much memory this process may use: that of the machine, or of its control group where that is less.

Formats: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def memory_total(proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes. None where nothing says how many."""
    limits = [_machine(proc / "meminfo"), *map(_number, _limit_files(proc / "self/cgroup", mounts))]
    return min((limit for limit in limits if limit is not None), default=None)


def _machine(meminfo: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return None


def _limit_files(groups: Path, mounts: Path) -> Iterator[Path]:
    """The limits of the control groups of this process and of all above them."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = groups.read_text().splitlines()
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number == "0":
            mount, file = mounts, "memory.max"
        elif "memory" in controllers.split(","):
            mount, file = mounts / "memory", "memory.limit_in_bytes"
        else:
            continue
        path = PurePosixPath(name)
        for group in (path, *path.parents):
            yield mount.joinpath(*(part for part in group.parts[1:] if part != ".."), file)


def _number(file: Path) -> int | None:
    """The number that a file holds. None: it is not there, or says "max"."""
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None
