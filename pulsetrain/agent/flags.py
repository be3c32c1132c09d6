"""Flags of `pulsetrain run` and `pulsetrain agent`: torchrun's, where they mean the same, and our own."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from pulsetrain.agent.hub_flags import DATA, HUB, TOKEN
from pulsetrain.agent.slurm import step_of
from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.pool.demand import TIERS

if TYPE_CHECKING:  # the agent takes most of a command's start
    from pulsetrain.agent.launch import Say
    from pulsetrain.agent.launch_options import HubOptions, LaunchOptions
    from pulsetrain.agent.processes.rank import Program
    from pulsetrain.agent.processes.zygote_protocol import Mode

Command = TypeVar("Command", bound=Callable[..., object])
"""A function, or the command that click made of one."""

LONGEST_NAME_BYTES = 255
"""Of a job and of a node: a file system takes no longer name of a folder."""

CONTEXT = {
    "allow_interspersed_args": False,  # what follows the script is the script's
    "token_normalize_func": lambda flag: flag.replace("_", "-"),  # torchrun takes both spellings
}

_IGNORED = {
    "--node-rank": "ranks follow the order of node names",
    "--rdzv-backend": "the hub is the rendezvous",
    "--rdzv-conf": "the hub is the rendezvous",
    "--monitor-interval": "a rank's end is noticed at once",
    "--redirects": "output is always in the log folder and echoed; --quiet silences it",
    "--tee": "output is always echoed; --quiet silences it",
    "--event-log-handler": "events are records in the store",
    "--log-line-prefix-template": "a line begins with the rank in brackets",
    "--duplicate-stdout-filters": "use the log files, or --log-dir",
    "--duplicate-stderr-filters": "use the log files, or --log-dir",
}
_REFUSED = {
    "--master-addr": "the hub chooses where ranks meet; give --hub URL and, for this node, --address IP",
    "--master-port": "the hub chooses where ranks meet, on a free port",
    "--rdzv-endpoint": "the hub is the rendezvous; give --hub URL",
    "--start-method": "ranks are forked from a process that has imported torch",
    "--logs-specs": "use --log-dir",
    "--virtual-local-rank": "every rank gets its own LOCAL_RANK",
    "--numa-binding": "start the agent under numactl instead",
}


_SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_SHORT = {"--redirects": "-r", "--tee": "-t"}


def _hidden(flag: str) -> Callable[[Command], Command]:
    return click.option(flag, *filter(None, [_SHORT.get(flag)]), default=None, hidden=True)


def _torchrun(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    """An option of torchrun, which its variable gives too: PET_NNODES for --nnodes. The flag goes first."""
    return click.option(*names, envvar=_variable(names[-1]), show_envvar=True, **attributes)


def _variable(flag: str) -> str:
    return "PET_" + flag.removeprefix("--").replace("-", "_").upper()


def _files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Leave it to the shell to complete the name of a file."""
    return [CompletionItem(incomplete, type="file")]


_TORCHRUN = (
    _torchrun(
        "--nnodes",
        metavar="N|MIN:MAX",
        help="Nodes that run ranks. With MIN:MAX the job goes on with what is left. Default: those of the "
        "Slurm step, else 1.",
    ),
    _torchrun(
        "--nproc-per-node",
        default="1",
        show_default=True,
        metavar="N",
        help="Ranks here: N, auto, gpu, xpu, cpu.",
    ),
    _torchrun(
        "--max-restarts",
        show_default="3",
        type=click.IntRange(0),
        help="Relaunches after a crash, also where training begins anew.",
    ),
    _torchrun("--standalone", is_flag=True, help="One node and a hub of its own, whatever hub is known."),
    _torchrun("-m", "--module", is_flag=True, help="SCRIPT is a module's name, as for python -m."),
    _torchrun("--no-python", is_flag=True, help="SCRIPT is a program to run as it is."),
    _torchrun("--run-path", is_flag=True, help="Has no effect: scripts always run that way."),
    _torchrun("--log-dir", metavar="DIR", help="Write output to DIR/attempt_N/rank_R.{out,err}."),
    _torchrun("--role", default="default", hidden=True),
    _torchrun("--rdzv-id", metavar="NAME", help="Same as --job."),
    _torchrun("--local-addr", metavar="IP", help="Same as --address."),
    _torchrun(
        "--shutdown-timeout",
        type=click.IntRange(0),
        metavar="SECONDS",
        help="How long ranks may take to end after a signal. Default: 30, with --checkpoints 5.",
    ),
    _torchrun(
        "--signals-to-handle",
        metavar="NAMES",
        help="These end the run too, as SIGUSR1. SIGINT, SIGTERM, SIGQUIT and SIGHUP always do.",
    ),
    _torchrun("--local-ranks-filter", metavar="0,1", help="Echo only these local ranks."),
)
_OURS = (
    HUB,
    TOKEN,
    DATA,
    click.option(
        "--node-unit",
        default=1,
        show_default=True,
        type=click.IntRange(1),
        metavar="U",
        help="With --nnodes MIN:MAX, run on a multiple of U nodes.",
    ),
    click.option(
        "--node-unit-min",
        default=0,
        type=click.IntRange(0),
        metavar="L",
        help="A unit may go on with L nodes: the script can train with replicas of unequal size.",
    ),
    click.option(
        "--devices-per-node",
        default=0,
        type=click.IntRange(0),
        metavar="M",
        help="Ranks of this node take turns on M devices. Default: each rank has one.",
    ),
    click.option(
        "--tier",
        type=click.Choice(TIERS),
        default="standard",
        show_default=True,
        help="What a hub with a pool promises this job.",
    ),
    click.option("--job", metavar="NAME", help="Name of the job. Default: Slurm's, else the script's."),
    click.option("--node", metavar="NAME", help="Name of this node. Default: Slurm's, else the host's."),
    click.option(
        "--address", metavar="IP", help="Where other nodes reach this one. Default: the way to the hub."
    ),
    click.option(
        "--preload", metavar="MODULE", multiple=True, help="Import this too before forking. Repeatable."
    ),
    click.option(
        "--kafka",
        metavar="HOST:PORT,...",
        help="Send records to these brokers instead of the hub's HTTP route.",
    ),
    click.option("--config", metavar="FILE", help="TOML file with tables [agent], [checkpoint] and [kafka]."),
    click.option(
        "--checkpoints",
        metavar="URL",
        help="Persist checkpoints here: a folder that all nodes share, or s3://...",
    ),
    click.option(
        "--replay",
        metavar="COMMAND",
        help="Script and arguments that train a few steps and write nothing, to find out which node makes "
        "training fail.",
    ),
    click.option(
        "--no-auto", is_flag=True, help="Record only what the script says: infer no steps, phases, numbers."
    ),
    click.option("--quiet", is_flag=True, help="Do not echo what ranks print."),
    click.argument("script", nargs=1, shell_complete=_files),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=_files),
)


def launch_flags(command: Command) -> Command:
    """All options and arguments. Those of torchrun that mean nothing here are ignored or refused by name."""
    unused = tuple(_hidden(flag) for flag in (*_IGNORED, *_REFUSED))
    for flag in reversed((*_TORCHRUN, *_OURS, *unused)):
        command = flag(command)
    return command


class LaunchFlags(TypedDict):
    """The flags that mean something here, as click gives them. None: not given."""

    script: str
    args: tuple[str, ...]
    nnodes: str | None
    node_unit: int
    node_unit_min: int
    devices_per_node: int
    tier: str
    nproc_per_node: str
    max_restarts: int | None
    standalone: bool
    module: bool
    no_python: bool
    log_dir: str | None
    role: str
    rdzv_id: str | None
    local_addr: str | None
    shutdown_timeout: int | None
    signals_to_handle: str | None
    local_ranks_filter: str | None
    hub: str | None
    token: str | None
    job: str | None
    node: str | None
    address: str | None
    preload: tuple[str, ...]
    data: Path | None
    kafka: str | None
    config: str | None
    checkpoints: str | None
    replay: str | None
    no_auto: bool
    quiet: bool


def launch_options(
    given: Mapping[str, object],
    say: Say,
    *,
    needs_hub: bool = False,
    standby: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> LaunchOptions:
    """The flags as a `LaunchOptions`; `say` gets one line for each that is ignored. Raises `UsageError`.

    In a Slurm step job, node and number of nodes are the step's, unless flags say otherwise.
    """
    from pulsetrain.agent.launch_options import LaunchOptions, NodeOptions, OutputOptions
    from pulsetrain.agent.local_processes import local_processes
    from pulsetrain.agent.processes.rank import Program

    flags, step = cast("LaunchFlags", given), step_of(environ)
    sizes = _nodes(flags["nnodes"] or str(step.nodes or 1))
    min_nnodes, nnodes = sizes
    _check_unit(sizes, flags["node_unit"], flags["node_unit_min"])
    _check_torchrun_flags(given, say, alone=nnodes == 1)
    _note_variables(environ, say)
    program = Program(argv=(flags["script"], *flags["args"]), mode=_mode(flags), role=flags["role"])
    _check_name("--job", flags["job"] or flags["rdzv_id"] or "")
    _check_name("--node", flags["node"] or "")
    ranks = local_processes(flags["nproc_per_node"], environ)
    return LaunchOptions(
        program=program,
        hub=_hub(flags, nnodes, needs_hub=needs_hub),
        node=NodeOptions(
            job=flags["job"] or flags["rdzv_id"] or (f"{step.job}-{program.name}" if step.job else ""),
            node=flags["node"] or step.node,
            address=flags["address"] or flags["local_addr"] or "",
            nnodes=nnodes,
            min_nnodes=min_nnodes,
            node_unit=flags["node_unit"],
            node_unit_min=flags["node_unit_min"],
            devices=_devices(flags, ranks),
            nproc_per_node=ranks,
            max_restarts=3 if flags["max_restarts"] is None else flags["max_restarts"],
            may_begin_anew=flags["max_restarts"] is not None,
            standby=standby,
            tier=flags["tier"],
        ),
        output=OutputOptions(
            log_dir=_folder(flags["log_dir"]),
            quiet=flags["quiet"],
            local_ranks=_local_ranks(flags["local_ranks_filter"]),
        ),
        preload=tuple(flags["preload"]),
        data=_folder(flags["data"]),
        config=_path(flags["config"]),
        checkpoints=flags["checkpoints"],
        replay=_replay(flags["replay"], program),
        auto=not flags["no_auto"],
        kafka=flags["kafka"],
        shutdown_timeout_s=_shutdown_timeout_s(flags["shutdown_timeout"], environ),
        end_signals=_signals(flags["signals_to_handle"]),
    )


def _check_name(flag: str, name: str) -> None:
    """Names are folders of the data folder too, and must not lead out of it. The hub takes only these."""
    if name.startswith("/") or ".." in name.split("/"):
        raise UsageError(f"{flag}={name}: allowed: a name that does not begin with / and has no part ..")
    if name and (not name.isprintable() or len(os.fsencode(name)) > LONGEST_NAME_BYTES):
        raise UsageError(
            f"{flag} {name[:40]!r}: allowed: printable characters, {LONGEST_NAME_BYTES} bytes at most"
        )


def _mode(flags: LaunchFlags) -> Mode:
    if flags["module"] and flags["no_python"]:
        raise UsageError("--module and --no-python exclude each other")
    return "module" if flags["module"] else "exec" if flags["no_python"] else "script"


def _replay(text: str | None, program: Program) -> Program | None:
    """What replays a part of training. Its first word is a script, or with --no-python a program."""
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--replay={text}: {str(error).lower()}") from error
    mode = program.mode
    if mode != "exec":
        mode, words = ("module", words[1:]) if words[:1] == ["-m"] else ("script", words)
    if not words:
        raise UsageError(f"--replay={text}: allowed: SCRIPT ARGS, or -m MODULE ARGS")
    return replace(program, argv=tuple(words), mode=mode)


def _hub(flags: LaunchFlags, nnodes: int, *, needs_hub: bool) -> HubOptions:
    from pulsetrain.agent.launch_options import HubOptions

    if flags["standalone"] and nnodes > 1:
        raise UsageError(f"--standalone is for one node; --nnodes={nnodes}")
    if flags["standalone"] and flags["hub"]:
        raise UsageError("--standalone starts a hub of its own; leave --hub out")
    return HubOptions(url=flags["hub"], token=flags["token"], own=flags["standalone"], required=needs_hub)


def _check_torchrun_flags(given: Mapping[str, object], say: Say, *, alone: bool) -> None:
    """Name every flag of torchrun that was given and means nothing here. Raises `UsageError` for some."""
    for table in (_IGNORED, _REFUSED):
        for flag, why in table.items():
            if given[flag.removeprefix("--").replace("-", "_")] is None:
                continue
            if table is _REFUSED and not (alone and flag.startswith(("--master", "--rdzv"))):
                raise UsageError(f"{flag}: {why}")
            say(f"note: {flag} has no effect: {why}")


def _note_variables(environ: Mapping[str, str], say: Say) -> None:
    """Name torchrun's variables that mean nothing here. Others set them for every job: none is refused."""
    unused = [name for flag in (*_IGNORED, *_REFUSED) if environ.get(name := _variable(flag))]
    if unused:
        say(f"note: {', '.join(unused)}: no effect, the hub chooses ranks and where they meet")


def _nodes(text: str) -> tuple[int, int]:
    """The fewest and the most nodes. Both are the same for a fixed number."""
    least, colon, most = text.partition(":")
    numbers = (least, most) if colon else (text, text)
    if not all(number.isdecimal() and int(number) >= 1 for number in numbers):
        raise UsageError(f"--nnodes={text}: allowed: a number from 1, or MIN:MAX")
    if int(numbers[0]) > int(numbers[1]):
        raise UsageError(f"--nnodes={text}: MIN is above MAX")
    return int(numbers[0]), int(numbers[1])


def _check_unit(sizes: tuple[int, int], unit: int, unit_least: int) -> None:
    least, most = sizes
    if unit_least > unit:
        raise UsageError(f"--node-unit-min={unit_least}: allowed: 1 to --node-unit={unit}")
    if most // unit * unit < least:
        said = f"{least}:{most}" if least < most else str(most)
        raise UsageError(f"--node-unit={unit}: --nnodes={said} allows no multiple of it")


def _devices(flags: LaunchFlags, ranks: int) -> int:
    """On how many devices the `ranks` of this node take turns, 0: each has one."""
    devices = flags["devices_per_node"]
    if devices > ranks:
        raise UsageError(f"--devices-per-node={devices}: allowed: 1 to {ranks}, the ranks of this node")
    if devices and flags["no_python"]:
        raise UsageError(
            "--devices-per-node: not with --no-python, nothing of Pulsetrain runs in those ranks"
        )
    return devices


def _local_ranks(text: str | None) -> frozenset[int]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--local-ranks-filter={text}: allowed: numbers with commas between, as 0,1")
    return frozenset(int(part) for part in parts)


def _shutdown_timeout_s(flag: int | None, environ: Mapping[str, str]) -> float | None:
    """How long ranks may take to end, by the flag or torch's variable."""
    text = environ.get(_SHUTDOWN_TIMEOUT, "")
    if flag is not None or not text:
        return flag
    if not text.isdecimal():
        raise UsageError(f"{_SHUTDOWN_TIMEOUT}={text}: allowed: a number of seconds")
    return float(text)


def _signals(text: str | None) -> tuple[int, ...]:
    """The numbers of signals that are named with commas between."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    signals = [signal.Signals.__members__.get(name) for name in names]
    found = tuple(each for each in signals if each not in (None, signal.SIGKILL, signal.SIGSTOP))
    if len(found) < len(names):
        raise UsageError(
            f"--signals-to-handle={text}: allowed: names with commas between, as SIGUSR1,SIGTERM"
        )
    return tuple(int(each) for each in found if each is not None)


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None


def _folder(text: str | Path | None) -> Path | None:
    """The folder from here: a script may go to another one and still write into it."""
    return Path(text).expanduser().absolute() if text else None
