"""What a node records besides its ranks: the host, its hardware, its checkpoints."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from pulsetrain.agent.gpu_opening import LIMIT_S, GpuOpener
from pulsetrain.agent.machine_health import MachineHealth
from pulsetrain.agent.processes.rank import NodeIdentity
from pulsetrain.agent.traffic_watch import TrafficWatch
from pulsetrain.collectors.config import CollectorConfig
from pulsetrain.collectors.machine.gpu import GpuSampler
from pulsetrain.collectors.machine.gpu_count import gpus_on_bus
from pulsetrain.collectors.machine.host import HostSampler
from pulsetrain.collectors.machine.interfaces import InterfaceChoice
from pulsetrain.collectors.machine.kmsg import KmsgReader
from pulsetrain.collectors.machine.nic import NicSampler
from pulsetrain.collectors.machine.rdma import RdmaSampler
from pulsetrain.collectors.machine.unused_ports import unused_ports
from pulsetrain.collectors.machine.used_disks import UsedDisks
from pulsetrain.core.supervisor import FailureCollector, LoopStatus, LoopThread
from pulsetrain.diagnostics.memory_nodes import interface_of
from pulsetrain.records.columns import Columns

log = structlog.get_logger()

STALE_AFTER_S = 30.0
PERIOD_S = 1.0
"""of hardware, however rarely the agent reports: signs are made for samples that are no further apart"""

Batches = Iterable[Columns]


class Source(Protocol):
    """Something that has rows from time to time."""

    def take(self, now_ns: int) -> Batches:
        """The rows since the last call, by record."""
        ...


class Sink(Protocol):
    """Where batches go. It never blocks for long, and never raises because of a full disk."""

    def append(self, batch: Columns) -> bool: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def dropped_rows(self) -> int: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...


class Sampler(Protocol):
    """Reads one kind of hardware. `blind` says why it cannot, "" where it can."""

    @property
    def blind(self) -> str: ...
    def sample(self, now_ns: int) -> Columns: ...


class KernelLog(Protocol):
    """The kernel's log. `blind` says why it cannot be read, "" where it can."""

    blind: str

    def poll(self) -> Columns | None: ...


class RecordListener(Protocol):
    """Learns from what ranks record."""

    def observe(self, rows: Columns) -> None: ...


class CheckpointRecords(Protocol):
    """Keeps rows of what it did until they are taken."""

    def take_records(self, now_ns: int, *records: str) -> Batches: ...


class HostSource:
    """Samples of the node, and of the processes of its ranks (`processes`: pids by name)."""

    def __init__(self, node: str, processes: Callable[[], Mapping[str, int]]) -> None:
        self._sampler = HostSampler(node=node)
        self._processes = processes

    def take(self, now_ns: int) -> Batches:
        """See `Source`."""
        self._sampler.watch(self._processes())
        return [self._sampler.sample(now_ns)]


class HardwareSource:
    """GPUs, ports, interfaces and the kernel's log.

    They are read on a thread of their own: a driver that hangs holds up nothing else. `inventory` gives an
    event that lists the GPUs. It is asked until it does. `health` sees all that is read. GPUs are read once
    `opener` has them.
    """

    def __init__(
        self,
        samplers: Sequence[Sampler],
        kernel_log: KernelLog,
        period_s: float,
        inventory: Callable[[int], Columns | None] = lambda now_ns: None,
        gpus: int = 0,
        traffic: TrafficWatch | None = None,
        health: MachineHealth | None = None,
        opener: GpuOpener | None = None,
    ) -> None:
        self._opener = opener
        self.health = health or MachineHealth()
        self._samplers, self._kernel_log = samplers, kernel_log
        self._inventory, self._listed = inventory, False
        self._gpus, self._traffic = gpus, traffic
        self._period_s = period_s
        self._batches: queue.SimpleQueue[Columns] = queue.SimpleQueue()
        self._thread = LoopThread("hardware", self.sample, stale_after_s=max(STALE_AFTER_S, 5 * period_s))

    @classmethod
    def of_node(
        cls,
        identity: NodeIdentity,
        heartbeat_s: float,
        config: CollectorConfig,
        environ: Mapping[str, str],
        *,
        folders: Iterable[str | Path] = (),
        gpus_limit_s: float = LIMIT_S,
    ) -> HardwareSource:
        """Everything that this machine has. Ranks have this environment, and the job uses `folders`.

        It is read with each heartbeat, and once a second at least. A driver that does not answer within
        `gpus_limit_s` is a sign, and its GPUs are not read until it does.
        """
        node, ports, period_s = identity.node, config.port_names, min(PERIOD_S, heartbeat_s)
        on_bus = gpus_on_bus()
        opener = GpuOpener(lambda: GpuSampler(node=node), expected=bool(on_bus), limit_s=gpus_limit_s)
        choice = InterfaceChoice.of(ports, environ)
        log_reader = KmsgReader(node=node)
        samplers = (RdmaSampler(node=node), NicSampler(node=node, choice=choice), log_reader)
        own = (_working_folder(), environ.get("TMPDIR", "/tmp"), environ.get("HOME", ""), sys.prefix)
        health = MachineHealth(
            environ=environ,
            unused=unused_ports(environ, (*ports, interface_of(identity.address))),
            on_bus=on_bus,
            disks=UsedDisks((*own, *folders)),
        )
        traffic = TrafficWatch(node, listed=ports, budget_ratio=config.sampling_budget_ratio)
        source = cls(samplers, log_reader, period_s, traffic=traffic, health=health, opener=opener)
        opener.wait()
        source.seek_gpus(time.time_ns())
        return source

    @property
    def gauges(self) -> Mapping[str, float]:
        """For the heartbeat: how many GPUs, and what the ports carry."""
        return {"gpus": self._gpus, **(self._traffic.gauges if self._traffic else {})}

    @property
    def blind(self) -> bool:
        """There is nothing here that can be read."""
        if self._opener is not None and not self._opener.done:
            return False
        return bool(all(sampler.blind for sampler in self._samplers) and self._kernel_log.blind)

    @property
    def loops(self) -> tuple[LoopStatus, ...]:
        """How the thread is; none where there is nothing to read."""
        return () if self.blind else (self._thread.status(), *self.health.loops)

    def start(self) -> None:
        """Begin to read, where there is anything to read."""
        if not self.blind:
            self.health.start()  # first: what the thread finds may begin to be waited for
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end. One that a driver holds is left behind."""
        self._thread.stop(timeout_s=0.0)
        self.health.stop()

    def take(self, now_ns: int) -> Batches:
        """See `Source`."""
        return [self._batches.get_nowait() for _ in range(self._batches.qsize())]

    def sample(self) -> float:
        """Read everything once; the seconds until the next time. One that fails does not stop the others."""
        now_ns = time.time_ns()
        failures = FailureCollector()
        with failures.collect("GPUs"):
            self.seek_gpus(now_ns)
        for sampler in self._samplers:
            if not sampler.blind:
                with failures.collect(type(sampler).__name__):
                    batch = sampler.sample(now_ns)
                    self._put(batch)
                    self._watch_traffic(batch, now_ns)
        with failures.collect("list of GPUs"):
            self._list_gpus(now_ns)
        with failures.collect("kernel log"):
            lines = self._kernel_log.poll()
            if lines is not None:
                self._put(lines)
        failures.raise_any()
        return self._period_s

    def seek_gpus(self, now_ns: int) -> None:
        """Begin to read GPUs, as soon as the driver has some."""
        if self._opener is None or self._opener.done:
            return
        gpus = self._opener.poll()
        if gpus is not None:
            self._samplers = (gpus.sampler, *self._samplers)
            self._inventory, self._listed, self._gpus = gpus.sampler.inventory, False, gpus.sampler.count
            self.health.adopt(gpus.identities, gpus.events, lost=gpus.sampler.lost, complete=gpus.complete)
        elif late_s := self._opener.late_s:
            self.health.gpus_silent(now_ns, late_s)
        else:
            self.health.gpus_answered()

    def _put(self, batch: Columns) -> None:
        """Keep a batch. Then look at it: what is recorded does not depend on what is made of it."""
        self._batches.put(batch)
        self.health.observe(batch)

    def _watch_traffic(self, batch: Columns, now_ns: int) -> None:
        if self._traffic is not None:
            self._traffic.note(batch, now_ns)
            for event in self._traffic.take():
                self._batches.put(event)

    def _list_gpus(self, now_ns: int) -> None:
        listed = None if self._listed else self._inventory(now_ns)
        if listed is not None:
            self._listed = True
            self._batches.put(listed)


class CheckpointSource:
    """What the checkpoint service did, as rows of one record."""

    def __init__(self, checkpoints: CheckpointRecords, record: str) -> None:
        self._checkpoints, self._record = checkpoints, record

    def take(self, now_ns: int) -> Batches:
        """See `Source`."""
        return self._checkpoints.take_records(now_ns, self._record)


class SinkAround:
    """A sink in front of another one, whose sizes and losses are its own."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def size_bytes(self) -> int:
        """See `Sink`."""
        return self._sink.size_bytes

    @property
    def dropped_rows(self) -> int:
        """See `Sink`."""
        return self._sink.dropped_rows

    @property
    def dropped(self) -> Mapping[str, int]:
        """See `Sink`."""
        return self._sink.dropped


class TeeSink(SinkAround):
    """A sink, with a listener that sees the same rows. What the listener raises does not stop the rows."""

    def __init__(self, sink: Sink, listener: RecordListener) -> None:
        super().__init__(sink)
        self._listener = listener

    def append(self, batch: Columns) -> bool:
        """See `Sink`."""
        kept = self._sink.append(batch)
        try:
            self._listener.observe(batch)
        except Exception:
            log.exception("checkpoint_profile_failed", record=batch.record)
        return kept


def _working_folder() -> str:
    """The working folder, "" where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
