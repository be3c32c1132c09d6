"""Which network ports of a machine its job leaves alone, because the environment of the ranks says so.

NCCL_IB_HCA names the RDMA ports of a job, or those that it leaves out, and NCCL_SOCKET_IFNAME its interfaces.
Where they are not set, or the latter only leaves some out, any port may be used. An interface is also in use
if a default route leaves by it, if it has the address of the agent, if a bond, bridge or VLAN in use is made
of it, and if its card has an RDMA port in use. An interface on the USB bus, as that of a management
controller, is left alone unless it is named or one of these. Source: NCCL user guide, environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pulsetrain.collectors.machine.interfaces import InterfaceChoice, default_routes

_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def unused_ports(
    environ: Mapping[str, str],
    in_use: Collection[str] = (),
    *,
    sys_root: Path = Path("/sys"),
    proc: Path = Path("/proc"),
) -> frozenset[str]:
    """Interfaces by name, RDMA ports as `mlx5_0/1`, and the PCI address of each card that has no other ports.

    `in_use` are interfaces that are needed anyway.
    """
    ports = _rdma_ports(sys_root)
    unused = {f"{card}/{port}" for card, port in ports if not _is_named(environ, card, port)}
    cards = {card for card, port in ports if f"{card}/{port}" not in unused}
    unused |= _interfaces(environ, in_use, cards, sys_root, proc)
    return frozenset(unused | _addresses(unused, ports, sys_root))


def _addresses(unused: Collection[str], ports: Sequence[tuple[str, str]], sys_root: Path) -> set[str]:
    """PCI addresses of the cards all of whose ports are unused: the kernel's log names cards so."""
    owners = [(f"{card}/{port}", sys_root / "class" / "infiniband" / card) for card, port in ports]
    owners += [(folder.name, folder) for folder in _entries(sys_root / "class" / "net")]
    by_address: dict[str, set[str]] = {}
    for name, folder in owners:
        by_address.setdefault((folder / "device").resolve().name, set()).add(name)
    return {pci for pci, names in by_address.items() if _PCI.fullmatch(pci) and names <= {*unused}}


def _interfaces(
    environ: Mapping[str, str], in_use: Collection[str], cards: Collection[str], sys_root: Path, proc: Path
) -> set[str]:
    choice = InterfaceChoice.of((), environ, proc)
    socket = InterfaceChoice.of((), {"NCCL_SOCKET_IFNAME": environ.get("NCCL_SOCKET_IFNAME", "")})
    folders = {folder.name: folder for folder in _entries(sys_root / "class" / "net")}
    used = {name for name in folders if name in in_use or choice.names(name)} | default_routes(proc)
    used |= {name for name, f in folders.items() if _cards(f) & set(cards)}
    below = {name: _below(folder) for name, folder in folders.items()}
    while more := {lower for name in used for lower in below.get(name, ())} - used:
        used |= more
    named = bool(socket.chosen)
    return {n for n, f in folders.items() if (f / "device").exists() and (named or _is_usb(f))} - used


def _is_usb(interface: Path) -> bool:
    return (interface / "device" / "subsystem").resolve().name == "usb"


def _is_named(environ: Mapping[str, str], card: str, port: str) -> bool:
    """Whether NCCL_IB_HCA leaves a port to the job: a list of `card` or `card:port`, of which a beginning is
    enough unless it begins with `=`, and which names what is left out if it begins with `^`."""
    named = environ.get("NCCL_IB_HCA", "").strip()
    if not named:
        return True
    excludes, exact = named.startswith("^"), named.removeprefix("^").startswith("=")
    for word in named.removeprefix("^").removeprefix("=").split(","):
        name, _, number = word.strip().partition(":")
        if name and (card == name if exact else card.startswith(name)) and number in ("", port):
            return not excludes
    return excludes


def _rdma_ports(sys_root: Path) -> list[tuple[str, str]]:
    cards = _entries(sys_root / "class" / "infiniband")
    return [(card.name, port.name) for card in cards for port in _entries(card / "ports")]


def _cards(interface: Path) -> set[str]:
    return {card.name for card in _entries(interface / "device" / "infiniband")}


def _below(interface: Path) -> set[str]:
    """The interfaces that a bond, a bridge or a VLAN is made of."""
    return {e.name.removeprefix("lower_") for e in _entries(interface) if e.name.startswith("lower_")}


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
