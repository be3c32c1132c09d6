"""What an agent does for the hub's checks of links and arithmetic. The work is done in forked workers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics.memory_nodes import other_memory_nodes
from pulsetrain.protocol.messages import ArithmeticCheck, LinkSend, LinkSink

SINK = "pulsetrain.diagnostics.transfers:host_sink"
SEND = "pulsetrain.diagnostics.transfers:report"
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


class CheckCommands:
    """Carries out the checks of one node. There is one sink for each memory node at a time, which ends with
    its worker."""

    def __init__(self, memory_nodes: MemoryNodes = other_memory_nodes) -> None:
        self._lock = threading.Lock()
        self._memory_nodes = memory_nodes
        self._sinks: list[int] = []

    def link_sink(self, workers: Workers, address: str, command: LinkSink) -> JsonObject:
        """Begin to take what others send, or end it. {"port": int, "memory_ports": {memory node: int}}."""
        with self._lock:
            for pid in self._sinks:
                workers.signal(pid, signal.SIGKILL)
            self._sinks = []
            if command.seconds <= 0:
                return {"port": 0, "memory_ports": {}}
            kwargs: JsonObject = {"address": address, "seconds": command.seconds}
            port = self._serve(workers, kwargs)
            ports = {
                str(node): self._serve(workers, {**kwargs, "cpus": list(cpus)})
                for node, cpus in self._memory_nodes(address).items()
            }
            return {"port": port, "memory_ports": {node: port for node, port in ports.items() if port}}

    def _serve(self, workers: Workers, kwargs: JsonObject) -> int:
        pid, value = workers.serve(SINK, kwargs, WORKER_TIMEOUT_S)
        self._sinks.append(pid)
        return int(cast("JsonObject", value)["port"])

    def link_send(self, workers: Workers, address: str, command: LinkSend) -> JsonObject:
        """Send to another node's sink. The fields of `TransferReport`."""
        kwargs: JsonObject = {
            "address": command.address,
            "port": command.port,
            "seconds": command.seconds,
            "source": address,
            "bits_per_s": command.bits_per_s,
        }
        return cast("JsonObject", workers.call(SEND, kwargs, command.seconds + SEND_MARGIN_S))

    def arithmetic(self, workers: Workers, command: ArithmeticCheck) -> JsonObject:
        """Repeat products whose answer is known. The report of `diagnostics.arithmetic`."""
        timeout_s = command.seconds + ARITHMETIC_MARGIN_S
        return cast("JsonObject", workers.call(ARITHMETIC, {"seconds": command.seconds}, timeout_s))
