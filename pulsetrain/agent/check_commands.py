"""What an agent does for the hub's checks of links and arithmetic. The work is done in forked workers."""

from __future__ import annotations

import signal
import threading
from typing import Protocol, cast

from pulsetrain.core.json import JsonObject
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


class CheckCommands:
    """Carries out the checks of one node. There is one sink at a time, which ends with its worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sink: int | None = None

    def link_sink(self, workers: Workers, address: str, command: LinkSink) -> JsonObject:
        """Begin to take what others send, or end it. {"port": int}."""
        with self._lock:
            if self._sink is not None:
                workers.signal(self._sink, signal.SIGKILL)
                self._sink = None
            if command.seconds <= 0:
                return {"port": 0}
            kwargs: JsonObject = {"address": address, "seconds": command.seconds}
            self._sink, value = workers.serve(SINK, kwargs, WORKER_TIMEOUT_S)
            return cast("JsonObject", value)

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
