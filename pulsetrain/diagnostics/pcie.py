"""What the PCIe link of a device promises, from /sys/bus/pci/devices.

Generation and width are those that the link has negotiated. An idle link may run at the lowest speed, so they
are read while something is copied. A link that has fewer lanes than its device can use is told only: a slot
may be made for less.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

LEAST_SHARE = 0.5
"""of what a link promises. Copies of pinned memory reach about three quarters and more of it: about 12 GB/s
over 16 lanes of generation 3 (CUDA C++ Best Practices Guide, Pinned Memory)"""
_PAYLOAD_SHARES = {
    2.5: 8 / 10,
    5.0: 8 / 10,
    8.0: 128 / 130,
    16.0: 128 / 130,
    32.0: 128 / 130,
    64.0: 242 / 256,
}
"""of the bits of each speed in GT/s: 8b/10b, 128b/130b and FLIT encoding (PCI Express Base Specification)"""
_SPEED = re.compile(r"([0-9.]+) GT/s")
_MOST_LANES = 32


@dataclass(frozen=True, kw_only=True)
class PcieLink:
    """A link: speed of a lane, lanes in use, lanes that the device has, and the memory node next to it.

    `near` is -1 where the machine does not say.
    """

    gt_per_s: float
    width: int
    device_width: int
    near: int = -1

    @property
    def bytes_per_s(self) -> float:
        """What it carries in one direction.

        >>> round(PcieLink(gt_per_s=16.0, width=16, device_width=16).bytes_per_s / 1e9, 1)
        31.5
        """
        return self.gt_per_s * 1e9 * _PAYLOAD_SHARES[self.gt_per_s] * self.width / 8

    def __str__(self) -> str:
        lanes = f"x{self.width}"
        narrow = f" of x{self.device_width}" if self.width < self.device_width else ""
        return f"PCIe {self.gt_per_s:g} GT/s {lanes}{narrow}"


def link_of(address: str, sys_root: Path = Path("/sys")) -> PcieLink | None:
    """The link of the device at a PCI address such as 0000:17:00.0. None where it is not known."""
    device = sys_root / "bus" / "pci" / "devices" / address
    speed = _SPEED.match(_text(device / "current_link_speed"))
    width, most = (_number(device / f"{which}_link_width") for which in ("current", "max"))
    if not address or speed is None or float(speed[1]) not in _PAYLOAD_SHARES or not 0 < width <= _MOST_LANES:
        return None
    return PcieLink(
        gt_per_s=float(speed[1]),
        width=width,
        device_width=max(width, most),
        near=_number(device / "numa_node"),
    )


def address_of_gpu(uuid: str, proc: Path = Path("/proc")) -> str:
    """The PCI address of an NVIDIA GPU, as its driver says. "" where it says nothing."""
    for file in sorted((proc / "driver" / "nvidia" / "gpus").glob("*/information")):
        if re.search(rf"^GPU UUID:\s*{re.escape(uuid)}\s*$", _text(file), re.MULTILINE):
            return file.parent.name
    return ""


def encrypts_memory(proc: Path = Path("/proc")) -> bool:
    """Whether this is a confidential virtual machine, where copies to a GPU are encrypted and so slower."""
    flags = next((li for li in _text(proc / "cpuinfo").splitlines() if li.startswith("flags")), "").split()
    sev = "hypervisor" in flags and any(flag in flags for flag in ("sev", "sev_es", "sev_snp"))
    return sev or "tdx_guest" in flags


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(errors="replace").strip()
    return ""


def _number(file: Path) -> int:
    with contextlib.suppress(ValueError):
        return int(_text(file))
    return -1
