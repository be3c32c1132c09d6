"""What an agent does for the hub's checks of links and arithmetic. The work is done in forked workers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol, cast

from pulsetrain.agent.rdma_ends import NEAR, RdmaEnds, active_ports, rdma_ends
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics import rdma_transfers
from pulsetrain.diagnostics.memory_nodes import other_memory_nodes
from pulsetrain.protocol.messages import ArithmeticCheck, LinkSend, LinkSink

SINK = "pulsetrain.diagnostics.transfers:host_sink"
SEND = "pulsetrain.diagnostics.transfers:report"
RDMA_SERVERS = "pulsetrain.diagnostics.rdma_transfers:host_servers"
RDMA_SEND = "pulsetrain.diagnostics.rdma_transfers:report"
ARITHMETIC = "pulsetrain.diagnostics.arithmetic:run"
WORKER_TIMEOUT_S = 10.0
SEND_MARGIN_S = 5.0
ARITHMETIC_MARGIN_S = 30.0


class Workers(Protocol):
    """Runs functions in forked processes."""

    def call(self, target: str, kwargs: JsonObject, timeout_s: float) -> object: ...
    def serve(self, target: str, kwargs: JsonObject, timeout_s: float) -> tuple[int, object]: ...
    def signal(self, pid: int, signum: int) -> None: ...


MemoryNodes = Callable[[str], Mapping[int, Sequence[int]]]
"""The processors of the memory nodes that are not next to the port with this address."""
FindEnds = Callable[[str], RdmaEnds]
"""The RDMA ports of this node, whose agent is reached at this address."""


class CheckCommands:
    """Carries out the checks of one node. There is one sink for each memory node at a time, which ends with
    its worker. One more worker starts the servers of RDMA transfers, where this node can take part in them.
    """

    def __init__(self, memory_nodes: MemoryNodes = other_memory_nodes, rdma: FindEnds = rdma_ends) -> None:
        self._lock = threading.Lock()
        self._memory_nodes, self._rdma = memory_nodes, rdma
        self._sinks: list[int] = []

    def link_sink(
        self, workers: Workers, address: str, command: LinkSink, rails: Mapping[str, str] | None = None
    ) -> JsonObject:
        """Begin to take what others send, or end it. See `LinkSink` for what is returned.

        `rails` are addresses of other interfaces by name.
        """
        with self._lock:
            for pid in self._sinks:
                workers.signal(pid, signal.SIGKILL)
            self._sinks = []
            if command.seconds <= 0:
                return {"port": 0, "memory_ports": {}}
            kwargs: JsonObject = {"address": address, "seconds": command.seconds}
            port = self._serve(workers, SINK, kwargs)
            ports = {
                str(node): self._serve(workers, SINK, {**kwargs, "cpus": list(cpus)})
                for node, cpus in self._memory_nodes(address).items()
            }
            return {
                "port": port,
                "memory_ports": {node: port for node, port in ports.items() if port},
                "rails": self._rails(workers, rails or {}, command.seconds),
                "rdma": self._rdma_servers(workers, kwargs),
            }

    def _rails(self, workers: Workers, rails: Mapping[str, str], seconds: float) -> JsonObject:
        """A sink for each of these interfaces. One that cannot be had is left out."""
        opened: JsonObject = {}
        for name, at in rails.items():
            with contextlib.suppress(PulsetrainError):
                port = self._serve(workers, SINK, {"address": at, "seconds": seconds, "device": name})
                if port:
                    opened[name] = {"address": at, "port": port}
        return opened

    def own_rdma(self, address: str) -> list[JsonObject]:
        """The fields that `own_rdma.checks` takes, of each RDMA port of this node whose link is up."""
        return active_ports(self._rdma(address))

    def _rdma_servers(self, workers: Workers, kwargs: JsonObject) -> JsonObject:
        found = self._rdma(str(kwargs["address"]))
        if not found.ends:
            return {"port": 0, "ports": {}, "why_not": found.why_not}
        ends = {
            name: {memory: asdict(end) for memory, end in memories.items()}
            for name, memories in found.ends.items()
        }
        return {
            "port": self._serve(workers, RDMA_SERVERS, {**kwargs, "ends": ends}),
            "ports": {
                name: {
                    "active": name in found.active,
                    "memories": [m for m in memories if m != NEAR],
                    "speed_bits_per_s": found.speeds.get(name, 0.0),
                }
                for name, memories in ends.items()
            },
            "why_not": "",
        }

    def _serve(self, workers: Workers, target: str, kwargs: JsonObject) -> int:
        pid, value = workers.serve(target, kwargs, WORKER_TIMEOUT_S)
        self._sinks.append(pid)
        return int(cast("JsonObject", value)["port"])

    def link_send(
        self,
        workers: Workers,
        address: str,
        command: LinkSend,
        other_ports: Callable[[str], Mapping[str, str]] = lambda address: {},
    ) -> JsonObject:
        """Send to another node. The fields of `TransferReport`.

        `other_ports` has the addresses of the interfaces besides that with an address, by name.
        """
        if command.rdma_port:
            return self._rdma_send(workers, address, command)
        kwargs: JsonObject = {
            "address": command.address,
            "port": command.port,
            "seconds": command.seconds,
            "source": address,
            "bits_per_s": command.bits_per_s,
        }
        if command.rail:
            own = other_ports(address).get(command.rail)
            if own is None:
                return {"unmeasured": f"{command.rail} has no link or no address"}
            kwargs |= {"source": own, "device": command.rail}
        return cast("JsonObject", workers.call(SEND, kwargs, command.seconds + SEND_MARGIN_S))

    def _rdma_send(self, workers: Workers, address: str, command: LinkSend) -> JsonObject:
        memories = self._rdma(address).ends.get(command.rdma_port)
        if memories is None:
            return {"error": f"{command.rdma_port} is gone"}
        kwargs: JsonObject = {
            "address": command.address,
            "port": command.port,
            "name": command.rdma_port,
            "memory": command.memory,
            "end": asdict(memories[NEAR]),
            "seconds": command.seconds,
            "source": address,
            "bits_per_s": command.bits_per_s,
        }
        timeout_s = command.seconds + rdma_transfers.MARGIN_S
        return cast("JsonObject", workers.call(RDMA_SEND, kwargs, timeout_s))

    def arithmetic(self, workers: Workers, command: ArithmeticCheck) -> JsonObject:
        """Repeat products whose answer is known. The report of `diagnostics.arithmetic`."""
        timeout_s = command.seconds + ARITHMETIC_MARGIN_S
        return cast("JsonObject", workers.call(ARITHMETIC, {"seconds": command.seconds}, timeout_s))
