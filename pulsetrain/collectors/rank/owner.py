"""Whose ring it is: a program that a rank starts may inherit the descriptor, and must not write there."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from pulsetrain.collectors.layout import LAYOUT_VERSION, MAGIC, W_PID
from pulsetrain.core.process_stat import PROC, stat_fields


def is_of_another(fd: int, proc: Path = PROC) -> bool:
    """Return whether another process that still lives writes into the ring `fd`.

    False for a ring that nobody has opened yet, as behind a shell that a rank was started through, and for a
    descriptor that is no ring.
    """
    try:
        head = os.pread(fd, 8 * (W_PID + 1), 0)
        words = struct.unpack(f"<{W_PID + 1}q", head)
    except (OSError, struct.error):
        return False
    pid = words[W_PID]
    return words[:2] == (MAGIC, LAYOUT_VERSION) and pid not in (0, os.getpid()) and _lives(pid, proc)


def _lives(pid: int, proc: Path) -> bool:
    """Whether the process has not ended. One that nobody has reaped yet has."""
    fields = stat_fields(pid, proc)
    return bool(fields) and fields[0] not in "ZX"
