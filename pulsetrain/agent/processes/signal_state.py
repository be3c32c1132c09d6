"""What processes do with a signal, as /proc says."""

from __future__ import annotations

import contextlib
from pathlib import Path


def listens(pid: int, signum: int, root: Path = Path("/")) -> bool:
    """Whether the process has a handler for the signal, or waits for it with the signal blocked."""
    return _is_in(("SigCgt", "SigBlk"), pid, signum, root)


def ignores(pid: int, signum: int, root: Path = Path("/")) -> bool:
    """Whether the signal does nothing to the process."""
    return _is_in(("SigIgn",), pid, signum, root)


def listeners(pid: int, signum: int, root: Path = Path("/")) -> list[int]:
    """The process where it listens, else the nearest ones below it that do."""
    if listens(pid, signum, root):
        return [pid]
    return [each for child in _children(pid, root) for each in listeners(child, signum, root)]


def _is_in(sets: tuple[str, ...], pid: int, signum: int, root: Path) -> bool:
    with contextlib.suppress(OSError):
        for line in (root / "proc" / str(pid) / "status").read_text(errors="replace").splitlines():
            name, _, mask = line.partition(":")
            if name in sets and int(mask, 16) >> (signum - 1) & 1:
                return True
    return False


def _children(pid: int, root: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for each in (root / f"proc/{pid}/task/{pid}/children").read_text().split()]
    return []
