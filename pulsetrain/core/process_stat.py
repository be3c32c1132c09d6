"""What the kernel says of a process in one line."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def stat_fields(pid: int, proc: Path = PROC) -> list[str]:
    """The fields of proc(5)'s stat from the state on, the third. Empty where there is no such process.

    The name before them may hold spaces, brackets and bytes that are no text.
    """
    try:
        line = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return line.rpartition(")")[2].split()
