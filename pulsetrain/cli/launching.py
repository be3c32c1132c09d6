"""Training jobs: run, agent, demo."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import click

from pulsetrain.agent.container_init import live_beneath_init
from pulsetrain.agent.flags import CONTEXT as LAUNCH_CONTEXT
from pulsetrain.agent.flags import launch_flags
from pulsetrain.cli.interrupts import importing
from pulsetrain.cli.options import json_option
from pulsetrain.cli.root import print_json, pulsetrain


@pulsetrain.command(context_settings=LAUNCH_CONTEXT)
@launch_flags
@json_option
def run(as_json: bool, **flags: object) -> None:
    """Run SCRIPT under the agent, with torchrun's flags.

    If no hub is known, the command starts one for this run.

    Example: pulsetrain run --nproc-per-node 8 train.py --steps 1000
    """
    _launch(flags, as_json=as_json, needs_hub=False, level="warning")


@pulsetrain.command(context_settings=LAUNCH_CONTEXT)
@launch_flags
@click.option("--standby", is_flag=True, help="Wait until another node fails, even while the job forms.")
@json_option
def agent(as_json: bool, standby: bool, **flags: object) -> None:
    """Run the agent of this node for a job of a hub.

    Nodes beyond --nnodes wait as standbys.

    Example: pulsetrain agent --hub http://head:8780 --nnodes 4 --nproc-per-node 8 train.py
    """
    _launch(flags, as_json=as_json, needs_hub=True, level="info", standby=standby)


def _launch(
    flags: Mapping[str, object],
    *,
    as_json: bool,
    level: Literal["info", "warning"],
    needs_hub: bool = False,
    standby: bool = False,
) -> None:
    live_beneath_init(os.getpid())
    with importing():
        from pulsetrain.agent import flags as launching
        from pulsetrain.agent import outcome
        from pulsetrain.agent.launch import launch
        from pulsetrain.core.log import configure

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # who reads it may be gone: the job goes on
            click.echo(f"pulsetrain: {line}", err=True)

    configure(level=level)
    options = launching.launch_options(flags, say, needs_hub=needs_hub, standby=standby)
    result = launch(options, say)
    if as_json:
        _print_report(outcome.report(result), say)
    else:
        say(outcome.summary(result))
    sys.exit(outcome.exit_status(result))


def _print_report(report: object, say: Callable[[str], None]) -> None:
    """Print it where somebody takes it. The exit status is the job's, whoever reads the output."""
    try:
        print_json(report)
    except OSError as error:
        sys.stdout = io.StringIO()  # what is left in the buffer would fail once more at the end
        say(f"the outcome was not printed: {error.strerror}")


@pulsetrain.command()
@click.option("--exit", "exit_", is_flag=True, help="End after the report. Default: keep the dashboard up.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@click.option("--steps", type=int, metavar="N", help="Optimizer steps. Default: 120, more on many cores.")
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of parameters and data order."
)
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep data and logs in this new folder."
)
@json_option
def demo(
    exit_: bool, report: Path | None, steps: int | None, seed: int, keep: Path | None, as_json: bool
) -> int:
    """Train a real job on five local nodes, break it three times, and watch it heal.

    Example: pulsetrain demo --exit --report demo.json
    """
    with importing():
        from pulsetrain.core.log import configure
        from pulsetrain.demo.main import DemoOptions, run

    configure(level="error")
    options = DemoOptions(
        exit=exit_ or as_json,
        report=report,
        seed=seed,
        keep=keep,
        **({} if steps is None else {"steps": steps}),
    )
    return run(options, lambda line: click.echo(line, err=as_json), print_json if as_json else None)
