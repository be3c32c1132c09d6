"""Answers from the records that a store holds: findings and timelines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from pulsetrain.cli.options import StoreOptions, grouped, job_option, json_option, store_options
from pulsetrain.cli.output_files import check_output
from pulsetrain.cli.root import print_json, print_table, pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.core.progress import progress
from pulsetrain.terminal.printable import printable_text


@dataclass(frozen=True, kw_only=True)
class StepRange:
    """Which steps to look at. None means no limit, and the newest attempt that has such steps."""

    since: int | None = None
    until: int | None = None
    attempt: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """What all ranks run on, for the MFU."""

    device: str | None = None
    peaks: Path | None = None


_step_options = grouped(
    "steps",
    StepRange,
    click.option("--since", type=int, metavar="STEP", help="First step. Default: the attempt's first."),
    click.option("--until", type=int, metavar="STEP", help="Last step. Default: the newest."),
    click.option(
        "--attempt",
        type=int,
        metavar="N",
        help="Launch of the job, from 0. Default: the newest that has such steps.",
    ),
)
_device_options = grouped(
    "devices",
    DeviceOptions,
    click.option(
        "--device", metavar="DEVICE/DTYPE", help="What all ranks run on, such as H100-SXM/bf16. Adds the MFU."
    ),
    click.option(
        "--peaks",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Your site's own table of device peaks. Its rows replace the shipped ones.",
    ),
)


@pulsetrain.command()
@job_option
@_step_options
@click.option("--verdicts", is_flag=True, help="Also print what is healthy, undecided or blind, and why.")
@_device_options
@store_options
@json_option
def analyze(
    job: str, steps: StepRange, verdicts: bool, devices: DeviceOptions, store: StoreOptions, as_json: bool
) -> int:
    """Run all analyzers over the stored steps of a job.

    The exit status is 1 if a finding asks for action.

    Example: pulsetrain analyze --job gpt --since 100 --until 300 --json
    """
    from pulsetrain.analytics import report

    if devices.peaks is not None and not devices.device:
        raise UsageError(f"--peaks {devices.peaks}: it needs --device, which names a row of it")
    peak = report.device_peak(devices.device, devices.peaks) if devices.device else None
    with store.open() as opened, progress(f"Analyzing {job}"):
        answer = report.verdicts_from_store(
            opened, job, since=steps.since, until=steps.until, attempt=steps.attempt, device=peak
        )
    if as_json:
        print_json(report.states(answer) if verdicts else report.rows(answer))
    else:
        for line in report.lines(answer, everything=verdicts):
            click.echo(printable_text(line))
    return report.exit_status(answer)


@pulsetrain.command()
@job_option
@store_options
@json_option
def errors(job: str, store: StoreOptions, as_json: bool) -> None:
    """Show the first error of each rank of a job, with its call stack.

    Example: pulsetrain errors --job gpt --json
    """
    from pulsetrain.analytics.machines.rule_matches import first_errors
    from pulsetrain.stream.queries import machines, views

    with store.open() as opened:
        answer = first_errors(machines.first_errors(opened, job))
        if not answer["ranks"] and not views.knows(opened, job):
            raise UsageError(f"job {job!r}: nothing of it is on record")
    if as_json:
        print_json(answer)
        return
    rows = [
        {"rank": rank, **error, "error": error["message"].get("message", "")}
        for rank, error in answer["ranks"].items()
    ]
    print_table(rows, ("rank", "node", "attempt", "exitcode", "datetime", "error"), "No error on record.")
    first = answer["ranks"].get(str(answer["culprit"]))
    if first:
        stack = first["message"].get("extraInfo", {}).get("py_callstack", "")
        click.echo(f"First: rank {answer['culprit']}." + (f"\n{printable_text(str(stack))}" if stack else ""))
    elif rows:
        click.echo("Which rank was first is not known: each of them says that a peer was gone.")


@pulsetrain.group()
def trace() -> None:
    """Write timelines for other tools.

    Example: pulsetrain trace export --job gpt --steps 40:45 -o gpt.json
    """


@trace.command("export")
@job_option
@click.option("--steps", required=True, metavar="A:B", help="First and last step, as 40:45, or one step.")
@click.option("--ranks", default="", metavar="LIST", help="Ranks, as 0-3,7. Default: all.")
@click.option(
    "--attempt",
    type=click.IntRange(min=0),
    metavar="N",
    help="Launch of the job, from 0. Default: of each step the newest.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write.",
)
@store_options
@json_option
def trace_export(
    job: str,
    steps: str,
    ranks: str,
    attempt: int | None,
    output: Path,
    store: StoreOptions,
    as_json: bool,
) -> None:
    """Write the spans of some steps as a trace that ui.perfetto.dev opens.

    Example: pulsetrain trace export --job gpt --steps 40:45 -o gpt.json
    """
    from pulsetrain.analytics import trace_export as traces
    from pulsetrain.analytics.selection import parse_ranks, parse_steps

    chosen, wanted = parse_steps(steps), parse_ranks(ranks, limit=1 << 20)
    if chosen is None:
        raise UsageError("--steps is empty: give FIRST:LAST, such as 40:45")
    check_output(output)
    with store.open() as opened, progress(f"Reading spans of {job}"):
        written = traces.export_file(
            opened, job, output, first=chosen[0], last=chosen[1], ranks=wanted, attempt=attempt
        )
    if as_json:
        print_json({"file": str(output), "bytes": written, "job": job, "steps": list(chosen)})
    else:
        click.echo(f"{output}: {written:,} bytes. Open it at ui.perfetto.dev.")
