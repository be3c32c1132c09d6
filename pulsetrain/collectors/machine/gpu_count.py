"""GPUs of this machine, without a driver's library."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI vendor, and the class of display and 3D controllers


def visible_gpus(environ: Mapping[str, str], root: Path = NVIDIA_GPUS) -> int:
    """Visible NVIDIA GPUs, counted without CUDA.

    Of `CUDA_VISIBLE_DEVICES` those before the first that is none, as CUDA does it. One GPU where they are
    instances of MIG, of which a process can use one, and none where one is named twice.
    """
    there = len(_entries(root)) if root.is_dir() else None
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there or 0
    names = list(takewhile(lambda name: _is_there(name, there), map(str.strip, visible.split(","))))
    if len(set(names)) < len(names):
        return 0
    return min(len(names), 1) if names and names[0].startswith("MIG-") else len(names)


def _is_there(name: str, there: int | None) -> bool:
    """Whether the word can be a GPU's, of so many where that is known."""
    return bool(name) and name != "-1" and not (name.isdecimal() and there is not None and int(name) >= there)


def gpus_on_bus(sys_root: Path = Path("/sys")) -> list[str]:
    """PCI addresses of NVIDIA's GPUs as the kernel shows them, also to a process that may use only some."""
    return [folder.name for folder in _entries(sys_root / "bus" / "pci" / "devices") if _is_gpu(folder)]


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
    except OSError:
        return False
    return vendor == _NVIDIA and kind.startswith(_DISPLAY)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
