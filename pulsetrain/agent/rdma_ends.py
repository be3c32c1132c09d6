"""The RDMA ports of this node that can take part in tests of links, with the memory behind each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pulsetrain.collectors.machine.rdma_ports import RdmaPort, rdma_ports
from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics.memory_nodes import memory_nodes, others
from pulsetrain.diagnostics.perftest import TOOL, RdmaEnd

NEAR = ""
"""Names the memory node next to a port."""


@dataclass(frozen=True, kw_only=True)
class RdmaEnds:
    """The ends by name of the port and of the memory node. `why_not` says why there are none.

    `active` are the ports whose link is up. `speeds` are their rates in bits a second, as far as known.
    """

    ends: Mapping[str, Mapping[str, RdmaEnd]] = field(default_factory=dict)
    active: frozenset[str] = frozenset()
    speeds: Mapping[str, float] = field(default_factory=dict)
    why_not: str = ""


def rdma_ends(address: str, sys_root: Path = Path("/sys")) -> RdmaEnds:
    """The ends of this node, whose agent is reached at `address`.

    Memory nodes whose processors are not this process's to use are left out.
    """
    ports = rdma_ports(sys_root / "class" / "infiniband")
    if not ports:
        return RdmaEnds(why_not="it has no RDMA port")
    if shutil.which(TOOL) is None:
        return RdmaEnds(why_not=f"{TOOL} (perftest) is not installed")
    if ":" in address:
        return RdmaEnds(why_not=f"{TOOL} needs an IPv4 address")
    allowed = os.sched_getaffinity(0)
    usable = {
        number: mine
        for number, cpus in memory_nodes(sys_root).items()
        if (mine := tuple(cpu for cpu in cpus if cpu in allowed))
    }
    return RdmaEnds(
        ends={port.name: _of_port(port, usable) for port in ports},
        active=frozenset(port.name for port in ports if port.active),
        speeds={port.name: port.bits_per_s for port in ports if port.bits_per_s > 0},
    )


def active_ports(found: RdmaEnds) -> list[JsonObject]:
    """The fields that `own_rdma.checks` takes, of each port whose link is up."""
    return [
        {"name": name, "end": asdict(found.ends[name][NEAR]), "bits_per_s": found.speeds.get(name, 0.0)}
        for name in sorted(found.active & found.ends.keys())
    ]


def _of_port(port: RdmaPort, nodes: Mapping[int, tuple[int, ...]]) -> dict[str, RdmaEnd]:
    cpus = {NEAR: nodes.get(port.near, ())}
    cpus |= {str(number): cpus for number, cpus in others(nodes, port.near).items()}
    return {
        memory: RdmaEnd(device=port.device, port=port.number, gid_index=port.gid_index, cpus=mine)
        for memory, mine in cpus.items()
    }
