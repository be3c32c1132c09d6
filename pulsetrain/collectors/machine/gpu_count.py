"""How many GPUs a process of this machine may use, without a driver's library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def visible_gpus(environ: Mapping[str, str], root: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Visible NVIDIA GPUs, counted without CUDA."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len(list(root.iterdir())) if root.is_dir() else 0
