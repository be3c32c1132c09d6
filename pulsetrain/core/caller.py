"""In whose name something is asked for."""

from __future__ import annotations

import getpass
import os


def caller() -> str:
    """The user's name, or `uid-N` where a container's user has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
