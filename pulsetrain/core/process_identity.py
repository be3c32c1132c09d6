"""Which process a pid in a file means: by now it may be another one's, or it is one of another machine."""

from __future__ import annotations

import os
from pathlib import Path

from pulsetrain.core.process_stat import PROC, stat_fields


def process_identity(pid: int, proc: Path = PROC) -> str:
    """What one process has alone: boot of the host, PID namespace, time of its start. "" where unknown.

    Containers that share a folder have each other's pids, and so has a machine that was started anew.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(proc / "self/ns/pid")
        return f"{boot} {namespace} {stat_fields(pid, proc)[19]}"
    except (OSError, IndexError):
        return ""


def is_process(pid: int, identity: str) -> bool:
    """Whether a process that runs here is the one that wrote its identity. "": it wrote none."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass  # somebody else's
    except (OSError, OverflowError):
        return False
    return not identity or process_identity(pid) in ("", identity)


def ran_here(identity: str) -> bool:
    """Whether a process with this identity was started here since the last boot. Not known: no."""
    here = process_identity(os.getpid()).split()[:2]
    return bool(here) and identity.split()[:2] == here
