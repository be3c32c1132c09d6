"""GPUs of this machine, without a driver's library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI vendor, and the class of display and 3D controllers


def visible_gpus(environ: Mapping[str, str], root: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Visible NVIDIA GPUs, counted without CUDA."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len(list(root.iterdir())) if root.is_dir() else 0


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
