"""`pulsetrain run` and `pulsetrain agent`: from what the user asked for to a running agent, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pulsetrain.agent.config import AgentConfig
from pulsetrain.agent.end_signals import EndSignals, await_ranks
from pulsetrain.agent.launch_options import LaunchOptions
from pulsetrain.agent.local_hub import join_hub, local_hub, wait_for_guests
from pulsetrain.agent.outcome import Outcome
from pulsetrain.agent.processes.program_check import check_program
from pulsetrain.agent.processes.zygote import Zygote, ZygoteHolder
from pulsetrain.agent.shared_memory import too_small
from pulsetrain.core.config import load, read_toml
from pulsetrain.core.errors import UsageError
from pulsetrain.core.open_files import allow_many_open_files
from pulsetrain.core.private_file import make_private_folder
from pulsetrain.core.process_title import set_process_title
from pulsetrain.protocol.client import HubAddress

if TYPE_CHECKING:
    from pulsetrain.agent.assembly import AgentSetup

Say = Callable[[str], None]

RUN_NAME_BYTES = 200
"""Of a job's name in the name of a run's folder. Time and process id follow it."""


def launch(options: LaunchOptions, say: Say) -> Outcome:
    """Run the agent until the job is over. Raises `UsageError` for what cannot be used."""
    await_ranks(options.end_signals)
    check_program(options.program)
    if options.replay is not None:
        check_program(options.replay, "--replay: ")
    file = read_toml(options.config) if options.config else {}
    with contextlib.ExitStack() as stack:
        hub = None
        if not options.hub.own:
            hub = stack.enter_context(join_hub(options.hub, options.data, options.environ))
        _check_hub(options, hub)
        if little := too_small():
            say(little)
        hub_folder = own_hub_folder(options)
        folder = _writable(node_folder(options, None if hub else hub_folder), "data", "--data")
        if options.output.log_dir is not None:
            _writable(options.output.log_dir, "log", "--log-dir")
        set_process_title(f"agent of node {options.node_name}, job {options.job_name}")
        zygotes = ZygoteHolder(lambda: _start_zygote(options))
        stack.callback(zygotes.close)
        allow_many_open_files()  # for this process: the ranks' parent has begun with the user's own limit
        # while the zygote imports torch
        from pulsetrain.agent.assembly import AgentSetup, check_tables, log_rules
        from pulsetrain.agent.node_switch import layout

        flags = {"kill_grace_s": options.shutdown_timeout_s}
        config = load(AgentConfig, "agent", file=file, environ=options.environ, flags=flags)
        # what cannot be used is told before a hub is started
        log_rules(config), layout(config)
        check_tables(options, file)
        setup = partial(AgentSetup, options=options, config=config, file=file, folder=folder, say=say)
        signals: list[int] = []
        if hub is not None:
            joined = replace(hub, ca=config.ca_certificate or hub.ca)
            return _run_agent(setup(hub=joined), zygotes, signals)
        own = stack.enter_context(local_hub(hub_folder))
        say(f"dashboard  {own.dashboard or 'none'}")
        say(f"data       {hub_folder}")
        outcome = _run_agent(setup(hub=own.address, keep_hub=own.keep), zygotes, signals)
        wait_for_guests(hub_folder, say, interrupted=lambda: bool(signals))
        return outcome


def _check_hub(options: LaunchOptions, hub: HubAddress | None) -> None:
    if hub is None and options.hub.required:
        raise UsageError("no hub: give --hub URL, set PULSETRAIN_HUB, or start `pulsetrain serve`")
    if hub is None and options.node.nnodes > 1:
        raise UsageError(f"--nnodes={options.node.nnodes} needs a hub that all nodes reach: give --hub URL")


def _run_agent(setup: AgentSetup, zygotes: ZygoteHolder, signals: list[int]) -> Outcome:
    """Wire an agent and live its life; everything it started has ended on return. `signals`: what came."""
    from pulsetrain.agent.assembly import assemble

    with assemble(setup, zygotes) as agent:

        def interrupt(signum: int) -> None:
            signals.append(signum)
            agent.interrupt(signum)

        patience_s = agent.kill_grace_s + setup.config.persist_at_end_s

        def end_now(code: int) -> None:
            agent.node.ranks.kill_now()
            os._exit(code)

        EndSignals(
            interrupt,
            end_now=end_now,
            patience_s=patience_s,
            forward=agent.forward,
            also=setup.options.end_signals,
        ).install()
        outcome = agent.run()
        agent.end(outcome)
        return outcome


def node_environment(options: LaunchOptions) -> dict[str, str]:
    """What all ranks of this node have in their environment, as under torchrun."""
    env = dict(options.environ)
    if options.node.nproc_per_node > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    names = [signal.Signals(signum).name for signum in options.end_signals]
    env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(names or ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
    return env


def _start_zygote(options: LaunchOptions) -> Zygote:
    env = node_environment(options)
    if not options.auto:
        env["PULSETRAIN_AUTO"] = "0"
    program = options.program
    path = search_path(program.argv[0]) if program.mode == "script" else Path.cwd()
    return Zygote.start(node=options.node_name, preload=options.preload, path=(path,), env=env)


def search_path(script: str) -> Path:
    """The folder in which Python looks first for what `script` imports. It may be a folder itself."""
    path = Path(script).resolve()
    return path if path.is_dir() else path.parent


def own_hub_folder(options: LaunchOptions) -> Path:
    """Where a hub of this run's own lives: the folder of `--data`, else a new folder for the run."""
    if options.data is not None and not options.hub.own:
        return options.data
    run = f"{_run_name(options.job_name)}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return options.data_folder / "runs" / run


def _run_name(job: str) -> str:
    """A job's name as one part of a path: commands look for hubs directly below `runs`."""
    whole = os.fsencode(job.replace("/", "-"))
    return whole[:RUN_NAME_BYTES].decode(errors="ignore")


def node_folder(options: LaunchOptions, hub_folder: Path | None) -> Path:
    """Where this node keeps its spool and logs. `hub_folder`: of the run's own hub, None: it has none."""
    if hub_folder is not None and hub_folder != options.data:
        return hub_folder
    return options.data_folder / "nodes" / options.job_name / options.node_name


def _writable(folder: Path, what: str, flag: str) -> Path:
    """The folder, made where it is missing. Raises `UsageError`."""
    try:
        if what == "data":
            make_private_folder(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # of a name of its own: other nodes may share the folder
            pass
    except OSError as error:
        raise UsageError(
            f"{what} folder {folder}: {error.strerror}; give {flag} a folder you can write"
        ) from error
    return folder
