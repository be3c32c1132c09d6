"""Whether the links of a job are measured by RDMA or by TCP, from what its nodes can do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics.link_search import LEAST_NODES
from pulsetrain.diagnostics.link_tests import Port

RAIL = "net"
"""The one port of a node over TCP: the address that its agent is reached at."""


@dataclass(frozen=True, kw_only=True)
class OpenPorts:
    """What a node opened for a check. `tcp_port` is its sink, and `memory_ports` those on its other memory.

    A sender asks at `rdma_port` for a server. `rdma` has the memory nodes by RDMA port, `active` the ports
    whose link is up. `why_no_rdma` says why there are none. `speeds` has the rates of ports in bits a second,
    that of the TCP port too, without those that do not count. `machine` is what kind of machine it is.
    `others` are interfaces besides the TCP port. `rails` has address and TCP port of those that listen.
    """

    tcp_port: int
    memory_ports: Mapping[str, int] = field(default_factory=dict)
    rdma_port: int = 0
    rdma: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    active: frozenset[str] = frozenset()
    why_no_rdma: str = ""
    speeds: Mapping[str, float] = field(default_factory=dict)
    machine: str = ""
    others: tuple[str, ...] = ()
    rails: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, data: JsonObject) -> OpenPorts:
        """What the reply to `LinkSink` says. An agent that knows no RDMA says nothing of it."""
        rdma: JsonObject = data.get("rdma") or {"why_not": "its agent knows no RDMA"}
        ports: JsonObject = rdma.get("ports") or {}
        return cls(
            tcp_port=int(data["port"]),
            memory_ports={str(k): int(v) for k, v in (data.get("memory_ports") or {}).items()},
            rdma_port=int(rdma.get("port", 0)),
            rdma={name: tuple(map(str, port.get("memories", ()))) for name, port in ports.items()},
            active=frozenset(name for name, port in ports.items() if port.get("active")),
            why_no_rdma=str(rdma.get("why_not", "")),
            speeds={RAIL: float(data.get("speed_bits_per_s", 0.0))}
            | {
                name: float(port.get("speed_bits_per_s", 0.0))
                for name, port in {**(data.get("rails") or {}), **ports}.items()
            },
            machine=str(data.get("machine", "")),
            others=tuple(map(str, data.get("others") or ())),
            rails={
                str(name): (str(rail["address"]), int(rail["port"]))
                for name, rail in (data.get("rails") or {}).items()
            },
        )


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The RDMA ports that are measured on every node. None: TCP, and `why_tcp` says why."""

    rails: tuple[str, ...] = ()
    why_tcp: str = ""

    @property
    def name(self) -> str:
        return "rdma" if self.rails else "tcp"


def transport(nodes: Mapping[str, OpenPorts]) -> Transport:
    """RDMA over the ports that all nodes have by the same name, if at least three of them are up.

    One method for all nodes, because a rate over RDMA says nothing about one over TCP, and a good port of the
    one network nothing about the other. A port that is up on three nodes is measured on all: where it is
    down, that is a fault.
    """
    lacking = Counter(node.why_no_rdma for node in nodes.values() if not node.rdma)
    if lacking:
        return Transport(why_tcp=_lacking(nodes, lacking))
    has, up = (Counter(name for n in nodes.values() for name in ports(n)) for ports in (_names, _active))
    rails = sorted(name for name, count in has.items() if count == len(nodes) and up[name] >= LEAST_NODES)
    why = f"no RDMA port of the same name is on all nodes, and up on {LEAST_NODES} of them"
    return Transport(rails=tuple(rails)) if rails else Transport(why_tcp=why)


def _names(node: OpenPorts) -> Mapping[str, Sequence[str]]:
    return node.rdma


def _active(node: OpenPorts) -> frozenset[str]:
    return node.active


def _lacking(nodes: Mapping[str, OpenPorts], reasons: Mapping[str, int]) -> str:
    """For each reason the first node that has it, and how many more do."""
    said: list[str] = []
    for why, count in reasons.items():
        first = min(name for name, n in nodes.items() if not n.rdma and n.why_no_rdma == why)
        said.append(f"{first}: {why}" + (f" (and {count - 1} more)" if count > 1 else ""))
    return "; ".join(said)


def tcp_rails(nodes: Mapping[str, OpenPorts]) -> dict[str, list[str]]:
    """The nodes that listen on an interface besides their TCP port, by its name, where three of them do.

    Nodes that say the same address are left out: they share a machine, or each has a network of its own.
    """
    found: dict[str, list[str]] = {}
    for rail in sorted({name for node in nodes.values() for name in node.rails}):
        said = Counter(node.rails[rail][0] for node in nodes.values() if rail in node.rails)
        able = [n for n, node in nodes.items() if rail in node.rails and said[node.rails[rail][0]] == 1]
        if len(able) >= LEAST_NODES:
            found[rail] = sorted(able)
    return found


def port(node: str, rail: str, switch: str, opened: OpenPorts) -> Port:
    """The port of a node on one rail, with its other memory nodes."""
    memories = opened.memory_ports if rail == RAIL else opened.rdma.get(rail, ())
    speed = opened.speeds.get(rail, 0.0)
    return Port(node=node, rail=rail, switch=switch, memories=tuple(sorted(memories)), link_bits_per_s=speed)
