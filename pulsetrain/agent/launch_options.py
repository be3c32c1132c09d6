"""What the user asked `pulsetrain run` or `pulsetrain agent` for."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pulsetrain.agent.processes.zygote import Mode


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What the user asked for. Empty text means the default."""

    argv: tuple[str, ...]
    mode: Mode = "script"
    nnodes: int = 1
    nproc_per_node: int = 1
    max_restarts: int = 3
    role: str = "default"
    hub: str | None = None
    token: str | None = None
    own_hub: bool = False
    needs_hub: bool = False
    job: str = ""
    node: str = ""
    address: str = ""
    preload: tuple[str, ...] = ()
    log_dir: Path | None = None
    data: Path | None = None
    config: Path | None = None
    checkpoints: str | None = None
    kafka: str | None = None
    standby: bool = False
    quiet: bool = False
    local_ranks: frozenset[int] = frozenset()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def job_name(self) -> str:
        """`--job`, else the name of the script or module."""
        return self.job or Path(self.argv[0]).stem

    @property
    def node_name(self) -> str:
        """`--node`, else the machine's host name."""
        return self.node or socket.gethostname()
