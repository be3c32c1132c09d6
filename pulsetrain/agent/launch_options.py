"""What the user asked `pulsetrain run` or `pulsetrain agent` for."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pulsetrain.agent.hub_notice import HubNotice
from pulsetrain.agent.processes.rank import NodeIdentity, Program
from pulsetrain.core.urls import split_url
from pulsetrain.protocol.client import data_folder

FIRST_WAIT_S, LAST_WAIT_S = 0.05, 2.0


@dataclass(frozen=True, kw_only=True)
class HubOptions:
    """Which hub to join."""

    url: str | None = None
    """None: the one in the environment, else the one that serves the data folder."""
    token: str | None = None
    """None: the one in the environment, else the data folder's."""
    own: bool = False
    """Start a hub of this run's own, whatever hub is known."""
    required: bool = False
    """Fail where no hub is known, instead of starting one."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Who this node is to its job. Empty text means the default."""

    job: str = ""
    """Default: the name of the script or module."""
    node: str = ""
    """Default: the machine's host name."""
    address: str = ""
    """Default: this machine's address on the way to the hub."""
    nnodes: int = 1
    min_nnodes: int = 0
    """The job goes on with so few nodes. 0: with no fewer than `nnodes`."""
    node_unit: int = 1
    """It runs on a multiple of this number of nodes."""
    node_unit_min: int = 0
    """A unit may go on with so few nodes. 0: with all of them only."""
    nproc_per_node: int = 1
    devices: int = 0
    """The ranks take turns on so many devices. 0: each has one."""
    max_restarts: int = 3
    may_begin_anew: bool = False
    """Restarts are wanted also where the script does not go on from its checkpoints."""
    standby: bool = False
    tier: str = "standard"
    """What the job is promised of a pool."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What becomes of what ranks print."""

    log_dir: Path | None = None
    """None: a folder of the run."""
    quiet: bool = False
    """Echo nothing."""
    local_ranks: frozenset[int] = frozenset()
    """Echo only these; empty: all."""

    def echoes(self, local_rank: int) -> bool:
        """Whether the output of this rank is echoed."""
        return not self.quiet and (not self.local_ranks or local_rank in self.local_ranks)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What the user asked for."""

    program: Program
    hub: HubOptions = field(default_factory=HubOptions)
    node: NodeOptions = field(default_factory=NodeOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    preload: tuple[str, ...] = ()
    """Modules that the zygote imports before it forks ranks."""
    data: Path | None = None
    """The data folder; None: the environment's, else the user's."""
    config: Path | None = None
    """A TOML file."""
    checkpoints: str | None = None
    """Where checkpoints are persisted."""
    replay: Program | None = None
    """What is trained where a fault is replayed. None: a training of the project's own."""
    kafka: str | None = None
    """Brokers that get the records instead of the hub."""
    auto: bool = True
    """Infer what the script does not say. The environment's `PULSETRAIN_AUTO=0` turns it off too."""
    end_signals: tuple[int, ...] = ()
    """Signals that end the run, besides those that always do."""
    shutdown_timeout_s: float | None = None
    """How long ranks may take to end. None: as the configuration has it."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def data_folder(self) -> Path:
        """`--data`, else `PULSETRAIN_DATA`, else the user's data folder."""
        return self.data or data_folder(self.environ)

    @property
    def job_name(self) -> str:
        """`--job`, else the name of the script or module."""
        return self.node.job or self.program.name

    @property
    def node_name(self) -> str:
        """`--node`, else the machine's host name."""
        return self.node.node or socket.gethostname()

    def identity(self, address: str) -> NodeIdentity:
        """Who this node is to the job. Other nodes reach it at `address`, unless the user says where."""
        return NodeIdentity(
            job=self.job_name,
            node=self.node_name,
            address=self.node.address or address,
            nproc_per_node=self.node.nproc_per_node,
            nnodes=self.node.nnodes,
            min_nnodes=self.node.min_nnodes,
            node_unit=self.node.node_unit,
            node_unit_min=self.node.node_unit_min,
            devices=self.node.devices,
            max_restarts=self.node.max_restarts,
            may_begin_anew=self.node.may_begin_anew,
            standby=self.node.standby,
            tier=self.node.tier,
        )


def address_towards(url: str) -> str:
    """This machine's address on the way to the hub, so that other nodes can reach it.

    The IPv4 one where there are both. "" where the hub's name is not known, or there is no way to it. Raises
    `UsageError` for an address that cannot be.
    """
    parts = split_url(url, "hub address")
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
            return str(probe.getsockname()[0])
    return ""


def await_address(urls: Sequence[str], notice: HubNotice, sleep: Callable[[float], None] = time.sleep) -> str:
    """This machine's address on the way to one of the hubs, as soon as the name of one is known.

    A node that begins with a wrong address could never be reached: other nodes take it from its ranks.
    """
    wait_s = FIRST_WAIT_S
    while True:
        for url in urls:
            if address := address_towards(url):
                notice.reached(url)
                return address
        notice.failed(f"hub {urls[0]}: its name is not known here, or there is no way to it")
        sleep(wait_s)
        wait_s = min(2 * wait_s, LAST_WAIT_S)
