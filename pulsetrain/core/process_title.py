"""What `ps` and `top` show of a process, for instance `pulsetrain: rank 3 of job gpt`."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PR_SET_NAME = 15
_KEEP_ENVIRONMENT = "SPT_NOENV"


def set_process_title(title: str) -> None:
    """Show `pulsetrain: TITLE` as this process's command line, cut to the length of its first one.

    The short name (/proc/PID/comm) and /proc/PID/environ stay as they are: programs find ranks by them.
    Nothing happens where setproctitle is not installed.
    """
    keep_before = os.environ.get(_KEEP_ENVIRONMENT)
    os.environ[_KEEP_ENVIRONMENT] = "1"  # else the title would be written over /proc/PID/environ
    try:
        import setproctitle
    except ImportError:
        return
    else:
        name = Path("/proc/self/comm").read_text().rstrip("\n")
        setproctitle.setproctitle(f"pulsetrain: {title}")
        set_short_name(name)
    finally:
        if keep_before is None:
            del os.environ[_KEEP_ENVIRONMENT]


def set_short_name(name: str) -> None:
    """The name in /proc/PID/comm, cut to 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
