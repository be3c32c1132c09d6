"""An agent with all its parts, wired and running."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from pulsetrain.agent import node_switch
from pulsetrain.agent.config import AgentConfig
from pulsetrain.agent.hub_notice import HubNotice
from pulsetrain.agent.inspector_source import InspectorSource
from pulsetrain.agent.launch_options import LaunchOptions, await_address
from pulsetrain.agent.log_bound import LogBound
from pulsetrain.agent.log_lines import LogLineSink
from pulsetrain.agent.node import NodeParts
from pulsetrain.agent.processes.process_images import ProcessImages
from pulsetrain.agent.processes.rank import NodeIdentity
from pulsetrain.agent.processes.ranks import Ranks
from pulsetrain.agent.processes.replay_ranks import ReplayRanks
from pulsetrain.agent.processes.zygote import ZygoteHolder
from pulsetrain.agent.recorder import Recorder, RecorderPeriods
from pulsetrain.agent.shared_ticks import SharedTicks
from pulsetrain.agent.sources import CheckpointSource, HardwareSource, HostSource, TeeSink
from pulsetrain.agent.spool_writer import SpoolWriter
from pulsetrain.agent.squash_events import SquashEvents
from pulsetrain.agent.supervise import Agent
from pulsetrain.checkpoint.service import CheckpointService
from pulsetrain.checkpoint.service_config import CheckpointServiceConfig
from pulsetrain.checkpoint.storage.backend import why_unwritable
from pulsetrain.collectors.config import CollectorConfig
from pulsetrain.core.config import load
from pulsetrain.core.errors import FolderInUse
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.client import HubAddress
from pulsetrain.records import encoding, site_rules
from pulsetrain.stream.spool.queue import Encoder, Spool, SpoolConfig
from pulsetrain.stream.spool.shipper import Shipper
from pulsetrain.stream.spool.transport import HttpTransport, Transport


@dataclass(frozen=True, kw_only=True)
class AgentSetup:
    """What one agent is assembled from. `file` is the configuration file, `folder` the node's own.

    `say` tells a person one line. `keep_hub` is `LocalHub.keep` of a hub of the run's own.
    """

    options: LaunchOptions
    config: AgentConfig
    file: Mapping[str, JsonObject]
    hub: HubAddress
    folder: Path
    say: Callable[[str], None] = lambda _: None
    keep_hub: Callable[[], bool] = lambda: True

    @cached_property
    def identity(self) -> NodeIdentity:
        """Who the node is to its job. Waits until the name of the hub is known."""
        address = self.options.node.address or await_address(self.hub.urls, HubNotice(self.say))
        identity = self.options.identity(address)
        environ = self.options.environ
        switch = node_switch.find(identity.node, identity.address, self.config, environ)
        return replace(identity, switch=switch)


@contextlib.contextmanager
def assemble(setup: AgentSetup, zygotes: ZygoteHolder) -> Iterator[Agent]:
    """The agent and its recorder, spool, shipper and checkpoints; they end in order when the block does."""
    config, identity = setup.config, setup.identity
    with contextlib.ExitStack() as stack:
        spool, shipper = _start_shipping(setup, stack)
        checkpoints = _open_checkpoints(setup)
        stack.callback(checkpoints.close)
        logs = setup.options.output.log_dir or setup.folder / "logs"
        hardware = HardwareSource.of_node(
            identity,
            config.heartbeat_s,
            _collectors(setup),
            setup.options.environ,
            folders=(setup.folder, logs, _storage(setup)),
        )
        hardware.start()
        stack.callback(hardware.stop)
        inspector = InspectorSource.of_node(
            identity.node, setup.options.environ, lambda: {r.rank: r.pid for r in agent.node.ranks.alive}
        )
        stack.callback(inspector.stop)
        lines = LogLineSink(TeeSink(spool, checkpoints), log_rules(config), identity.nproc_per_node)
        recorder = _recorder(setup, lines, checkpoints, hardware, inspector, lambda: agent.node.ranks)
        images = ProcessImages(setup.folder, allowed=config.images, squashes=config.squash)
        images.tidy()
        ranks = partial(
            Ranks,
            identity,
            setup.options.program,
            logs,
            ring_slots=config.ring_slots,
            keeps=lambda: not images.possible,
            squash_every=config.squash_compare_steps if config.squash else 0,
        )
        parts = NodeParts(
            ranks=ranks,
            zygotes=zygotes,
            checkpoints=checkpoints,
            recorder=recorder,
            machine=hardware.health,
            images=images,
            environ=setup.options.environ,
            replays=ReplayRanks(setup.options.replay, logs),
            heartbeat_s=config.heartbeat_s,
            say=setup.say,
            loops=lambda: (
                spool.loop,
                shipper.loop,
                *checkpoints.loops,
                *recorder.loops,
                *hardware.loops,
                *inspector.loops,
            ),
        )
        agent = Agent(identity, config, setup.hub, parts, keep_hub=setup.keep_hub)
        stack.callback(agent.close)
        recorder.start()
        inspector.start()
        stack.callback(recorder.stop)
        yield agent


def _recorder(
    setup: AgentSetup,
    sink: LogLineSink,
    checkpoints: CheckpointService,
    hardware: HardwareSource,
    inspector: InspectorSource,
    ranks: Callable[[], Ranks],
) -> Recorder:
    """What moves the node's rows to `sink`. `ranks` is called once the agent is there."""
    config, identity = setup.config, setup.identity
    processes = HostSource(identity.node, lambda: {f"rank {r.rank}": r.pid for r in ranks().alive})
    return Recorder(
        sink,
        lambda: ranks().all,
        RecorderPeriods(drain_s=config.drain_s, echo_s=config.echo_s, sample_s=config.heartbeat_s),
        agent_pid=os.getpid(),
        sources=(
            processes,
            CheckpointSource(checkpoints, "events"),
            hardware,
            inspector,
            SquashEvents(identity, ranks),
        ),
        rare_sources=(
            CheckpointSource(checkpoints, "checkpoints"),
            LogBound(lambda: (path for r in ranks().all for path in (r.out, r.err)), config.log_bytes),
        ),
        echo_ranks=setup.options.output.echoes,
        node_gauges=lambda: {**hardware.gauges, **sink.gauges},
        ticks=partial(SharedTicks.of_node, identity.node, identity.nnodes),
    )


def check_tables(options: LaunchOptions, file: Mapping[str, JsonObject]) -> None:
    """Raise `UsageError` for a key of checkpoints or collectors that cannot be used. No hub is needed."""
    flags = {"storage": options.checkpoints}
    load(CheckpointServiceConfig, "checkpoint", file=file, environ=options.environ, flags=flags)
    load(CollectorConfig, "collectors", file=file, environ=options.environ)


def _collectors(setup: AgentSetup) -> CollectorConfig:
    return load(CollectorConfig, "collectors", file=setup.file, environ=setup.options.environ)


def log_rules(config: AgentConfig) -> tuple[site_rules.SiteRule, ...]:
    """The site's rules for log lines. Raises `ConfigError` for a file that cannot be used."""
    return site_rules.read(Path(config.log_rules).expanduser()) if config.log_rules else ()


def _start_shipping(setup: AgentSetup, stack: contextlib.ExitStack) -> tuple[SpoolWriter, Shipper]:
    """What fills the spool, and what empties it. The latter goes on for `flush_s` at a good end."""
    transport, encode = _transport(setup)
    config = SpoolConfig(max_bytes=setup.config.spool_bytes)
    spool = _open_spool(setup, config, encode)
    writer = SpoolWriter(spool)
    stack.callback(writer.close)
    writer.start()
    shipper = Shipper(spool, transport)
    shipper.start()
    stack.push(lambda failed, *_: shipper.stop(drain_s=0.0 if failed else setup.config.flush_s))
    return writer, shipper


def _open_spool(setup: AgentSetup, config: SpoolConfig, encode: Encoder) -> Spool:
    """The node's spool. Raises `FolderInUse` with what to do where another run is this node of this job."""
    identity = setup.identity
    try:
        return Spool(setup.folder / "spool", node=identity.node, config=config, encode=encode)
    except FolderInUse as error:
        raise FolderInUse(
            f"job {identity.job!r} already runs on this machine as node {identity.node!r}: give another "
            f"--job, or another --node where both are nodes of one job ({error})"
        ) from error


def _transport(setup: AgentSetup) -> tuple[Transport, Encoder]:
    """Kafka where the flag, the file or the environment names brokers, else the hub. And its encoder."""
    options = setup.options
    if not (options.kafka or "kafka" in setup.file or options.environ.get("PULSETRAIN_KAFKA_SERVERS")):
        hub = setup.hub
        return HttpTransport(hub.url, hub.token, others=hub.others, ca=hub.ca), encoding.encode
    from pulsetrain.records.batch import encode_columns
    from pulsetrain.stream.kafka.client import KafkaConfig, refuse_credentials  # only here
    from pulsetrain.stream.kafka.transport import KafkaTransport  # only here

    flags = {"servers": options.kafka}
    config = load(KafkaConfig, "kafka", file=setup.file, environ=options.environ, flags=flags)
    refuse_credentials(config)
    return KafkaTransport(config), encode_columns


def _checkpoint_config(setup: AgentSetup) -> CheckpointServiceConfig:
    options = setup.options
    flags = {"token": setup.hub.token, "storage": options.checkpoints}
    return load(CheckpointServiceConfig, "checkpoint", file=setup.file, environ=options.environ, flags=flags)


def _storage(setup: AgentSetup) -> str:
    """The folder of persisted checkpoints, "" where they are no files."""
    return _checkpoint_config(setup).storage.removeprefix("file://")


def _open_checkpoints(setup: AgentSetup) -> CheckpointService:
    identity, config = setup.identity, _checkpoint_config(setup)
    service = CheckpointService(config, job=identity.job, node=identity.node, address=identity.address)
    if config.storage:  # on a thread: a network file system that hangs must not delay the job
        threading.Thread(target=_check_storage, args=(config.storage, setup.say), daemon=True).start()
    return service


def _check_storage(storage: str, say: Callable[[str], None]) -> None:
    """Tell a person that checkpoints cannot be persisted. The job goes on: that may change."""
    why = why_unwritable(storage)
    if why:
        say(f"warning: checkpoints cannot be written to {storage}: {why}")
