"""`pulsetrain run` and `pulsetrain agent`: from what the user asked for to a running agent, and its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pulsetrain.agent.launch_options import LaunchOptions
from pulsetrain.agent.local_hub import known_hub, local_hub
from pulsetrain.agent.outcome import Outcome
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.core.config import load, read_toml
from pulsetrain.core.errors import ConfigError, UsageError
from pulsetrain.protocol.client import HubAddress, data_folder

if TYPE_CHECKING:
    from pulsetrain.agent.supervise import Agent, AgentConfig

Say = Callable[[str], None]


def launch(asked: LaunchOptions, say: Say) -> Outcome:
    """Run the agent until the job is over. Raises `UsageError` for what cannot be used."""
    _check_program(asked)
    file = read_toml(asked.config) if asked.config else {}
    hub = None if asked.own_hub else known_hub(asked.hub, asked.token, asked.environ)
    if hub is None and asked.needs_hub:
        raise UsageError("no hub: give --hub URL, set PULSETRAIN_HUB, or start `pulsetrain serve`")
    if hub is None and asked.nnodes > 1:
        raise UsageError(f"--nnodes={asked.nnodes} needs a hub that all nodes reach: give --hub URL")
    folder = _writable(_folder(asked, own_hub=hub is None), "data", "--data")
    if asked.log_dir is not None:
        _writable(asked.log_dir, "log", "--log-dir")
    with contextlib.ExitStack() as stack:
        zygote = _start_zygote(asked)
        stack.callback(zygote.close)
        config = _agent_config(file, asked.environ)
        if hub is None:
            own = stack.enter_context(local_hub(folder / "hub"))
            hub = own.address
            say(f"dashboard  {own.dashboard or 'none'}")
            say(f"data       {folder}")
        return _supervise(asked, config, file, hub, folder, zygote)


def _agent_config(file: Mapping[str, Any], environ: Mapping[str, str]) -> AgentConfig:
    from pulsetrain.agent.supervise import AgentConfig  # while the zygote imports torch

    return load(AgentConfig, "agent", file=file, environ=environ)


def _supervise(
    asked: LaunchOptions,
    config: AgentConfig,
    file: Mapping[str, Any],
    hub: HubAddress,
    folder: Path,
    zygote: Zygote,
) -> Outcome:
    """Wire an agent and live its life; everything it started has ended on return."""
    from pulsetrain.agent.assembly import assemble

    address = asked.address or _address_towards(hub.url)
    with assemble(asked, config, file, hub, folder, address, zygote, lambda: _start_zygote(asked)) as agent:
        _obey_signals(agent)
        outcome = agent.run()
        agent.close(grace_s=config.kill_grace_s if outcome.exit_code > 128 else 0.0)
        return outcome


def _obey_signals(agent: Agent) -> None:
    """SIGINT and SIGTERM end the run in order; a second one ends it now: the kernel ends what we started."""
    seen: list[int] = []

    def handle(signum: int, _: FrameType | None) -> None:
        if seen:
            os._exit(128 + signum)
        seen.append(signum)
        agent.interrupt(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, handle)


def _start_zygote(asked: LaunchOptions) -> Zygote:
    env = dict(asked.environ)
    if asked.nproc_per_node > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    path = (Path(asked.argv[0]).resolve().parent if asked.mode == "script" else Path.cwd(),)
    return Zygote.start(preload=asked.preload, path=path, env=env)


def _check_program(asked: LaunchOptions) -> None:
    name = asked.argv[0]
    if asked.mode == "script" and not Path(name).is_file():
        raise UsageError(f"script {name!r}: no such file")
    if asked.mode == "exec" and shutil.which(name) is None:
        raise UsageError(f"program {name!r}: not found; with --no-python give a path or a name in PATH")
    if asked.mode == "module" and not _importable(name):
        raise UsageError(f"module {name!r}: not found from {Path.cwd()}")


def _importable(module: str) -> bool:
    """Whether the top-level package is there; the module itself is found by the ranks."""
    from importlib.machinery import PathFinder

    return PathFinder.find_spec(module.partition(".")[0], [str(Path.cwd()), *sys.path]) is not None


def _folder(asked: LaunchOptions, *, own_hub: bool) -> Path:
    """Where this run keeps its spool and logs: a new folder for a run of its own, else the node's."""
    data = asked.data or data_folder(asked.environ)
    if own_hub:
        return data / "runs" / f"{asked.job_name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return data / "nodes" / asked.job_name / asked.node_name


def _writable(folder: Path, what: str, flag: str) -> Path:
    """The folder, made where it is missing. Raises `UsageError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700 if what == "data" else 0o777)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"{what} folder {folder}: {error.strerror}; give {flag} a folder you can write"
        ) from error
    return folder


def _address_towards(url: str) -> str:
    """This machine's address on the way to the hub, so that other nodes can reach it."""
    parts = urlsplit(url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def local_processes(asked: str) -> int:
    """`--nproc-per-node` as a number: itself, or what auto, gpu and cpu mean here. Raises `ConfigError`."""
    gpus = _gpus(os.environ)
    cpus = len(os.sched_getaffinity(0))
    if asked == "gpu" and not gpus:
        raise ConfigError("--nproc-per-node gpu: this machine has no NVIDIA GPU")
    named = {"gpu": gpus, "cpu": cpus, "auto": gpus or cpus}
    if asked in named:
        return named[asked]
    if not asked.isdecimal() or int(asked) < 1:
        raise ConfigError(f"--nproc-per-node {asked!r}: allowed: a number from 1, auto, gpu, cpu")
    return int(asked)


def _gpus(environ: Mapping[str, str], root: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Visible NVIDIA GPUs, without CUDA."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len(list(root.iterdir())) if root.is_dir() else 0
