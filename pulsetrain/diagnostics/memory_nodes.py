"""The memory nodes of a machine, and which one is next to a port.

A process that runs on the processors of a memory node gets its memory there, as far as nothing else was
chosen for it (numa(7)). So a transfer to such a process crosses the link between the two nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

MOST_NODES = 16
"""of which the ways are measured, the first ones"""


def other_memory_nodes(address: str, sys_root: Path = Path("/sys")) -> Mapping[int, tuple[int, ...]]:
    """The processors of each memory node, without the node next to the port of `address`.

    Empty where there is one memory node alone. Where it is not known which one is next to the port, all are
    there. A node without processors is left out.
    """
    nodes = memory_nodes(sys_root)
    near = _number(sys_root / "class" / "net" / _interface(address) / "device" / "numa_node")
    return others(nodes, near)


def memory_nodes(sys_root: Path = Path("/sys")) -> dict[int, tuple[int, ...]]:
    """The processors of each memory node that has some."""
    folder = sys_root / "devices" / "system" / "node"
    known = {int(node.name[4:]): _cpus(node / "cpulist") for node in folder.glob("node[0-9]*")}
    return {number: cpus for number, cpus in sorted(known.items()) if cpus}


def others(nodes: Mapping[int, tuple[int, ...]], near: int) -> dict[int, tuple[int, ...]]:
    """The memory nodes without the one next to a port. Empty where there is one alone.

    >>> others({0: (0, 1), 1: (2, 3)}, 0)
    {1: (2, 3)}
    """
    if len(nodes) < 2:
        return {}
    return dict([(number, cpus) for number, cpus in nodes.items() if number != near][:MOST_NODES])


def parse_cpus(text: str) -> tuple[int, ...]:
    """A list of processors as the kernel writes it. Raises `ValueError`.

    >>> parse_cpus("0-2,8")
    (0, 1, 2, 8)
    """
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _cpus(file: Path) -> tuple[int, ...]:
    try:
        return parse_cpus(file.read_text())
    except (OSError, ValueError):
        return ()


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return -1


def _interface(address: str) -> str:
    """The interface that has an address, "-" for none."""
    rows = psutil.net_if_addrs().items()
    return next((name for name, own in rows if any(a.address == address for a in own)), "-")
