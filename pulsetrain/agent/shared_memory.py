"""How much shared memory the ranks of this node have. Containers get 64 MB unless somebody asks for more."""

from __future__ import annotations

import os
from pathlib import Path

LEAST_BYTES = 128 * 2**20
"""Above what Docker and Kubernetes give by themselves. NCCL takes about 10 MB for each segment."""


def too_small(path: Path = Path("/dev/shm")) -> str:
    """One line where there is little shared memory, "" where there is enough, or none is to be seen."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return ""
    return shortage(stat.f_blocks * stat.f_frsize, path)


def shortage(size_bytes: int, path: Path) -> str:
    """What is said of shared memory of this size.

    >>> shortage(2**34, Path("/dev/shm"))
    ''
    """
    if not 0 < size_bytes < LEAST_BYTES:
        return ""
    return (
        f"{path} has {size_bytes / 2**20:.0f} MB, too little for NCCL or workers of a DataLoader: "
        "give the container more (docker run --shm-size=8g, in Kubernetes an emptyDir of medium Memory there)"
    )
