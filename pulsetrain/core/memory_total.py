"""How much memory this process may use: that of the machine, or of its control group where that is less.

Formats: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def memory_total(proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes. None where nothing says how many."""
    groups = control_groups(proc, mounts)
    limits = [number_in(group / ("memory.limit_in_bytes" if v1 else "memory.max")) for group, v1 in groups]
    limits.append(numbers_in(proc / "meminfo", 1024).get("MemTotal:"))
    return min((limit for limit in limits if limit is not None), default=None)


def control_groups(proc: Path, mounts: Path) -> Iterator[tuple[Path, bool]]:
    """The control group of this process and all above it, and whether they are of version 1.

    In a container the path is often that of the host, of which only the group at the mount is seen.
    """
    paths = {}
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            number, controllers, name = line.split(":", 2)
            if "memory" in controllers.split(",") or number == "0":
                paths[bool(controllers)] = PurePosixPath(name)
    v1 = True in paths
    mount = mounts / "memory" if v1 else mounts
    path = paths.get(v1, PurePosixPath("/"))
    for group in (path, *path.parents):
        yield mount.joinpath(*(part for part in group.parts[1:] if part != "..")), v1


def number_in(file: Path) -> int | None:
    """The number that a file holds. None where it cannot be read, or says "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def numbers_in(file: Path, unit: int) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line. Empty where it cannot be read."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
        return {name: int(number) * unit for name, number, *_ in lines}
    except (OSError, ValueError):
        return {}
