"""Which RDMA ports a machine has, from /sys/class/infiniband: state, GID and memory node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.collectors.machine.rdma import CLASS, LAYERS
from pulsetrain.records.counters import numbered, rate_bits_per_s

ACTIVE = 4  # ib_verbs.h: IB_PORT_ACTIVE
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
_IPV4 = "0000:0000:0000:0000:0000:ffff:"
_ROUTABLE = "RoCE v2"


@dataclass(frozen=True, kw_only=True)
class RdmaPort:
    """One port of a card. `near` is the memory node next to it, -1 where it is not known.

    `gid_index` is the one to use for RoCE, -1 for InfiniBand, which needs none.
    """

    device: str
    number: int
    active: bool
    gid_index: int
    near: int
    bits_per_s: float = 0.0
    """that it has negotiated, 0 where it is not known"""

    @property
    def name(self) -> str:
        """As "mlx5_0/1"."""
        return f"{self.device}/{self.number}"


def rdma_ports(path: Path = CLASS) -> list[RdmaPort]:
    """The InfiniBand and RoCE ports of this machine, by name. Others, as EFA's, are left out."""
    return list(_ports(path))


def _ports(path: Path) -> Iterator[RdmaPort]:
    for port in sorted(path.glob("*/ports/*")):
        layer = _text(port / "link_layer")
        if layer not in LAYERS or not port.name.isdecimal():
            continue
        card = port.parent.parent
        state, near = numbered(_text(port / "state")), _text(card / "device" / "numa_node")
        yield RdmaPort(
            device=card.name,
            number=int(port.name),
            active=state is not None and state[0] == ACTIVE,
            gid_index=_gid_index(port) if layer == "Ethernet" else -1,
            near=int(near) if near.isdecimal() else -1,
            bits_per_s=rate_bits_per_s(_text(port / "rate")) or 0.0,
        )


def _gid_index(port: Path) -> int:
    """The first GID of RoCE v2 with an IPv4 address, else the first of RoCE v2, else the first, else 0.

    Both ends need one of the same kind, and IPv4 is what agents reach each other by.
    """
    gids = sorted((int(f.name), _text(f)) for f in (port / "gids").glob("*") if f.name.isdecimal())
    used = [(index, gid) for index, gid in gids if gid not in ("", _EMPTY)]
    routable = [
        (index, gid) for index, gid in used if _text(port / "gid_attrs" / "types" / str(index)) == _ROUTABLE
    ]
    ipv4 = [(index, gid) for index, gid in routable if gid.startswith(_IPV4)]
    return next((index for index, _ in (*ipv4, *routable, *used)), 0)


def _text(file: Path) -> str:
    """What a file says, "" where it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
