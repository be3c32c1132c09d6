"""How long a cgroup's processor quota held this process back.

The kernel counts that time as time in a run queue, so it looks like chance. Only a group that holds this
process alone tells about it: in a group of several ranks nobody knows whose time it was.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from time import perf_counter_ns

REFRESH_NS = 2_000_000_000  # others may have come into the group
MOVED_NS = 250_000_000  # this process may have been moved to another group
_UNITS = {"throttled_time": 1, "throttled_usec": 1000}  # of cpu.stat, in cgroup v1 and v2, in ns


class Quota:
    """The quota of the group that this process is in now."""

    def __init__(self, proc: Path = Path("/proc/self"), mounts: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._mounts = proc, mounts
        self._group: Path | None = None
        self._looked = self._placed = 0
        self._place = b""
        self._seen = self._total = 0

    def held_ns(self) -> int:
        """Return the nanoseconds since the first call. Where no quota can be read it does not grow."""
        now = perf_counter_ns()
        if not self._looked or now - self._looked > REFRESH_NS or self._moved(now):
            self._looked = now
            self._refresh()
        if self._group is not None:
            throttled = _throttled(self._group)
            self._total += max(0, throttled - self._seen)
            self._seen = throttled
        return self._total

    def _moved(self, now: int) -> bool:
        """Whether the process is in other groups than at the last look, which is not often."""
        if now - self._placed <= MOVED_NS:
            return False
        self._placed, before = now, self._place
        with contextlib.suppress(OSError):
            self._place = (self._proc / "cgroup").read_bytes()
        return self._place != before

    def _refresh(self) -> None:
        try:
            group = self._own_group()
            if group != self._group:
                self._group, self._seen = group, _throttled(group) if group is not None else 0
        except (OSError, ValueError):
            self._group = None

    def _own_group(self) -> Path | None:
        """The process's group, if it has a quota and holds nobody else."""
        for line in (self._proc / "cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            mount = self._mounts / "cpu" if "cpu" in controllers.split(",") else self._mounts
            if "cpu" not in controllers.split(",") and number != "0":
                continue
            group = mount / path.lstrip("/")
            if (group / "cpu.stat").is_file() and path != "/":
                members = (group / "cgroup.procs").read_text().split()
                return group if members == [str(os.getpid())] else None
        return None


def _throttled(group: Path) -> int:
    """Nanoseconds that the group was held back since it was made. 0 where its file cannot be read."""
    try:
        pairs = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return max((int(value) * _UNITS[name] for name, value in pairs if name in _UNITS), default=0)
    except (OSError, ValueError):
        return 0
