"""An agent with all its parts, wired and running."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pulsetrain.agent.launch_options import LaunchOptions
from pulsetrain.agent.processes.ranks import NodeIdentity, Program, Ranks
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.agent.recorder import Batches, Recorder
from pulsetrain.agent.supervise import Agent, AgentConfig
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.collectors.machine.gpu import GpuSampler
from pulsetrain.collectors.machine.host import HostSampler
from pulsetrain.collectors.machine.kmsg import KmsgReader
from pulsetrain.collectors.machine.nic import NicSampler
from pulsetrain.collectors.machine.rdma import RdmaSampler
from pulsetrain.core.config import load
from pulsetrain.protocol.client import HubAddress
from pulsetrain.records import encoding
from pulsetrain.records.columns import Columns
from pulsetrain.stream.spool.queue import Encoder, Spool, SpoolConfig
from pulsetrain.stream.spool.shipper import Shipper
from pulsetrain.stream.spool.transport import HttpTransport, Transport

log = structlog.get_logger()


class _Host:
    """The node's own samples, and those of its ranks' processes."""

    def __init__(self, node: str, processes: Callable[[], Mapping[str, int]]) -> None:
        self._sampler = HostSampler(node=node)
        self._processes = processes

    def take(self, now_ns: int) -> Batches:
        self._sampler.watch(self._processes())
        return [self._sampler.sample(now_ns)]


class _Hardware:
    """GPUs, ports, interfaces and the kernel's log, on their own thread: a hung driver holds only that."""

    def __init__(self, node: str, period_s: float) -> None:
        self._samplers = (GpuSampler(node=node), RdmaSampler(node=node), NicSampler(node=node))
        self._kernel = KmsgReader(node=node)
        self._period_s, self._ended = period_s, threading.Event()
        self._taken: queue.SimpleQueue[Columns] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)

    def start(self) -> None:
        """Begin to read, where there is anything to read."""
        if not (all(sampler.blind for sampler in self._samplers) and self._kernel.blind):
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; one that a driver holds is left behind."""
        self._ended.set()

    def take(self, now_ns: int) -> Batches:
        """What was read since the last call."""
        return [self._taken.get_nowait() for _ in range(self._taken.qsize())]

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            now_ns = time.time_ns()
            for sampler in self._samplers:
                if not sampler.blind:
                    self._taken.put(sampler.sample(now_ns))
            lines = self._kernel.poll()
            if lines is not None:
                self._taken.put(lines)


class TeeSink:
    """The spool, with the keeper listening to what ranks record."""

    def __init__(self, spool: Spool, keeper: CheckpointService) -> None:
        self._spool, self._keeper = spool, keeper

    @property
    def size_bytes(self) -> int:
        return self._spool.size_bytes

    @property
    def dropped_rows(self) -> int:
        return self._spool.dropped_rows

    @property
    def dropped(self) -> Mapping[str, int]:
        return self._spool.dropped

    def append(self, batch: Columns) -> bool:
        kept = self._spool.append(batch)
        try:
            self._keeper.observe(batch)
        except Exception:  # what is learnt from a record is not worth the record
            log.exception("checkpoint_profile_failed", record=batch.record)
        return kept


class _Checkpoints:
    """What the keeper did since the last call, as rows of one record."""

    def __init__(self, keeper: CheckpointService, record: str) -> None:
        self._keeper, self._record = keeper, record

    def take(self, now_ns: int) -> Batches:
        return self._keeper.take_records(now_ns, self._record)


def _transport(asked: LaunchOptions, file: Mapping[str, Any], hub: HubAddress) -> tuple[Transport, Encoder]:
    """Kafka where the flag, the file or the environment names brokers, else the hub. And its encoder."""
    named = asked.kafka or "kafka" in file or asked.environ.get("PULSETRAIN_KAFKA_SERVERS")
    if not named:
        return HttpTransport(hub.url, hub.token), encoding.encode
    from pulsetrain.records.batch import encode_columns
    from pulsetrain.stream.kafka.transport import KafkaConfig, KafkaTransport, refuse_credentials  # only here

    flags = {"servers": asked.kafka}
    config = load(KafkaConfig, "kafka", file=file, environ=asked.environ, flags=flags)
    refuse_credentials(config)
    return KafkaTransport(config), encode_columns


@contextlib.contextmanager
def assemble(
    asked: LaunchOptions,
    config: AgentConfig,
    file: Mapping[str, Any],
    hub: HubAddress,
    folder: Path,
    address: str,
    zygote: Zygote,
    start_zygote: Callable[[], Zygote],
) -> Iterator[Agent]:
    """The agent and its recorder, spool, shipper and keeper; they end in order when the block does."""
    identity = NodeIdentity(
        job=asked.job_name,
        node=asked.node_name,
        address=address,
        nproc_per_node=asked.nproc_per_node,
        max_restarts=asked.max_restarts,
    )
    flags = {"token": hub.token, "storage": asked.checkpoints}
    keeper_config = load(CheckpointServiceConfig, "checkpoint", file=file, environ=asked.environ, flags=flags)
    with contextlib.ExitStack() as stack:
        transport, encode = _transport(asked, file, hub)
        spool_config = SpoolConfig(max_bytes=config.spool_bytes)
        spool = Spool(folder / "spool", node=identity.node, config=spool_config, encode=encode)
        stack.callback(spool.close)
        shipper = Shipper(spool, transport)
        shipper.start()
        stack.push(lambda failed, *_: shipper.stop(drain_s=0.0 if failed else config.flush_s))
        keeper = CheckpointService(keeper_config, job=identity.job, node=identity.node, address=address)
        stack.callback(keeper.close)
        hardware = _Hardware(identity.node, config.heartbeat_s)
        hardware.start()
        stack.callback(hardware.stop)
        ranks = partial(
            Ranks,
            identity,
            Program(argv=asked.argv, mode=asked.mode, role=asked.role),
            asked.log_dir or folder / "logs",
            ring_slots=config.ring_slots,
        )
        pump = Recorder(
            TeeSink(spool, keeper),
            lambda: agent.ranks.all,
            drain_s=config.drain_s,
            echo_s=config.echo_s,
            sample_s=config.heartbeat_s,
            agent_pid=os.getpid(),
            sources=(
                _Host(identity.node, lambda: {f"rank {r.rank}": r.pid for r in agent.ranks.alive}),
                _Checkpoints(keeper, "events"),
                hardware,
            ),
            rare_sources=(_Checkpoints(keeper, "checkpoints"),),
            echo_ranks=lambda local: (
                not asked.quiet and (not asked.local_ranks or local in asked.local_ranks)
            ),
        )
        agent = Agent(
            identity,
            ranks,
            config=config,
            nnodes=asked.nnodes,
            hub=(hub.url, hub.token),
            keeper=keeper,
            zygote=zygote,
            start_zygote=start_zygote,
            watcher=pump,
            standby=asked.standby,
        )
        stack.callback(agent.close)
        pump.start()
        stack.callback(pump.stop)
        yield agent
