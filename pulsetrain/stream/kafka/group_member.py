"""A member of the consumer group that survives the failures of Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.core.supervisor import LoopMonitor, LoopStatus
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.kafka.client import KafkaConfig
from pulsetrain.stream.kafka.ingest import Backlog, Ingest
from pulsetrain.stream.kafka.ingest_config import IngestConfig
from pulsetrain.stream.store.row_store import RowStore

log = structlog.get_logger()

_RESTART_S = 1.0
STALE_S = 60.0  # a store that is away is waited for


class GroupMember:
    """An `Ingest` that is created again whenever Kafka fails it. Runs here or on a thread of its own.

    The first one is created by the constructor, so that a wrong address is the caller's error. With `waits`
    brokers that are away then are waited for by `run`. `watch` is told after each look at Kafka how far
    behind this member is.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        store: RowStore,
        clock: Clock,
        config: IngestConfig | None = None,
        metrics: IngestMetrics | None = None,
        watch: Callable[[Backlog], None] | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self.metrics = metrics or IngestMetrics()
        self._create = partial(Ingest, kafka, store, clock, config, self.metrics)
        self._watch = watch
        self._stopped = threading.Event()
        self._monitor = LoopMonitor("kafka ingest", stale_after_s=STALE_S, clock=clock)
        self._ingest: Ingest | None = None
        try:
            self._ingest = self._create()
        except Unavailable as error:
            if not waits:
                raise
            self._monitor.failed(error)
        self._thread = threading.Thread(target=self.run, args=[Exception], name="ingest", daemon=True)

    def status(self) -> LoopStatus:
        """How the loop is: a turn is one look at Kafka."""
        return self._monitor.status()

    def run(self, survived: type[Exception] = Unavailable) -> None:
        """Take messages until stopped. Errors of type `survived` lead to a new start, others are raised.

        Once it is stopped, brokers or a store that are away are no error: the next owner goes on.
        """
        if self._ingest is None:
            self._restart(survived)
        while self._ingest is not None and not self._stopped.is_set():
            try:
                self._ingest.run(self._looked)
            except (survived, PulsetrainError) as error:
                if not isinstance(error, survived) and not self._stopped.is_set():
                    raise
                self._monitor.failed(error)
                self._restart(survived)

    def start(self) -> None:
        """Begin to take messages on a thread, whatever fails."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is gathered and end. `run` returns then. A thread is waited for."""
        self._stopped.set()
        if self._ingest is not None:
            self._ingest.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def _looked(self) -> None:
        self._monitor.completed()
        if self._watch is not None and self._ingest is not None:
            self._watch(self._ingest.backlog())

    def _restart(self, survived: type[Exception]) -> None:
        while not self._stopped.wait(_RESTART_S):
            try:
                self._ingest = self._create()
            except survived as error:
                log.warning("ingest_failed", error=str(error))
            else:
                return
