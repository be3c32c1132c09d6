"""The rate that the port with an address has negotiated, where it is one.

/sys/class/net/NAME/speed is in Mbit/s (sysfs-class-net). A veth reports 10,000 whatever it is attached to,
and a bridge or a bond what others of it have. So only an interface with hardware behind it counts. In a
virtual machine the provider limits the traffic to less than the port's rate, so there none counts.
"""

from __future__ import annotations

import socket
from pathlib import Path

import psutil

_IP = (socket.AF_INET, socket.AF_INET6)


def speed_of_address(address: str, *, sys_root: Path = Path("/sys"), proc: Path = Path("/proc")) -> float:
    """Bits a second of the port that has this address. 0.0: no rate is known, or it means nothing."""
    rows = psutil.net_if_addrs().items()
    name = next((name for name, own in rows if any(a.address == address for a in own)), "")
    if not name or in_virtual_machine(sys_root, proc):
        return 0.0
    return speed_of_interface(sys_root / "class" / "net" / name)


def other_ports(address: str, *, sys_root: Path = Path("/sys")) -> dict[str, str]:
    """Interfaces with hardware that are up and have an address, besides the port with this address.

    The first address of each by its name, an IPv4 one if there is one. Those on the USB bus, as of a
    management controller, and members of a bond or bridge are left out.
    """
    found = {}
    for name, own in sorted(psutil.net_if_addrs().items()):
        folder, addresses = sys_root / "class" / "net" / name, [a for a in own if a.family in _IP]
        routable = [a for a in addresses if not a.address.startswith("fe80:")]
        is_it = any(a.address == address for a in addresses)
        if routable and not is_it and _is_up(folder) and not (folder / "master").exists():
            found[name] = min(routable, key=lambda a: a.family != socket.AF_INET).address
    return found


def _is_up(interface: Path) -> bool:
    """Whether an interface has hardware that is not on the USB bus, and a link."""
    device = interface / "device"
    if not device.exists() or (device / "subsystem").resolve().name == "usb":
        return False
    try:
        return (interface / "operstate").read_text().strip() == "up"
    except OSError:
        return False


def speed_of_interface(interface: Path) -> float:
    """Bits a second of an interface, a folder of /sys/class/net. 0.0 where it has no hardware or no rate."""
    if not (interface / "device").exists():
        return 0.0
    try:
        mbit = int((interface / "speed").read_text())
    except (OSError, ValueError):
        return 0.0  # EINVAL while it is down
    return mbit * 1e6 if mbit > 0 else 0.0  # -1: not known


def in_virtual_machine(sys_root: Path = Path("/sys"), proc: Path = Path("/proc")) -> bool:
    """Whether a hypervisor says so: the flag of that name that x86 processors show, or Xen's own file."""
    if (sys_root / "hypervisor" / "type").exists():
        return True
    try:
        lines = (proc / "cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return "hypervisor" in flags.split()
