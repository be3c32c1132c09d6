"""Verdicts from files that other tools wrote. They need no hub and no store."""

from __future__ import annotations

from pathlib import Path

import click

from pulsetrain.cli.options import json_option
from pulsetrain.cli.root import print_json, print_table, pulsetrain
from pulsetrain.core.progress import progress
from pulsetrain.terminal.printable import printable, printable_text

SOURCES = ("stdout", "stderr", "kmsg")


@pulsetrain.command()
@click.argument("trace", type=click.Path(path_type=Path))
@json_option
def whatif(trace: Path, as_json: bool) -> None:
    """Say how fast a job would be without its stragglers.

    TRACE is a Parquet file with one row for each operation.

    Example: pulsetrain whatif trace.parquet --json
    """
    from pulsetrain.analytics.whatif.analysis import analyze_file, sentences

    with progress(f"Reading {trace.name}"):
        answer = analyze_file(trace)
    if as_json:
        print_json(answer)
        return
    for sentence in sentences(answer):
        click.echo(sentence)


@pulsetrain.command()
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def logs(folder: Path, as_json: bool) -> None:
    """Compare the logs of all ranks and say who is likely to blame.

    FOLDER holds one log file for each rank or node.

    Example: pulsetrain logs /var/log/job-7 --json
    """
    from pulsetrain.analytics.machines.log_files import read_folder

    with progress(f"Reading {folder}"):
        answer = read_folder(folder)
    if as_json:
        print_json(answer)
        return
    rows = [{**f, **f["blame"]["shares"], "why": ", ".join(f["blame"]["reasons"])} for f in answer["files"]]
    print_table(rows, ("file", "lines", "infrastructure", "framework", "user", "why"), "No file.")
    for finding in answer["findings"]:
        click.echo(
            f"{finding['severity']}: {printable(finding['summary'])} (confidence {finding['confidence']:.2f})"
        )


@pulsetrain.group()
def rules() -> None:
    """Work on a site's own rules for log lines.

    Example: pulsetrain rules test rules.toml rank_0.err
    """


@rules.command("test")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--source",
    type=click.Choice(SOURCES),
    default="stderr",
    show_default=True,
    help="Try the rules for lines from there.",
)
@json_option
def rules_test(file: Path, log: Path, source: str, as_json: bool) -> None:
    """Try a file of log rules on a log.

    Prints how many lines each rule matches, and the first of them. A line counts for the first rule that it
    matches.

    Example: pulsetrain rules test rules.toml rank_0.err --json
    """
    from pulsetrain.analytics.machines.rule_trial import try_rules
    from pulsetrain.records import site_rules

    chosen = site_rules.read(file)
    with progress(f"Reading {log}"):
        answer = try_rules(chosen, log, source=source)
    if as_json:
        print_json(answer)
        return
    columns = ("rule", "action", "kind", "severity", "lines", "first", "line")
    print_table(answer["rules"], columns, "No rule.")
    per_line = answer["microseconds_per_line"]
    click.echo(f"{answer['matched']} of {answer['lines']} lines match. A line takes {per_line} microseconds.")


@pulsetrain.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--node", default="", metavar="NAME", help="Name of the machine that wrote the log.")
@click.option(
    "--policies",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder with your site's own tables. Their rows replace the shipped ones.",
)
@click.option("--check", is_flag=True, help="Exit with status 1 if a finding asks for action.")
@json_option
def kmsg(file: Path, node: str, policies: Path | None, check: bool, as_json: bool) -> int:
    """Say what a kernel log tells of GPUs and of the machine.

    FILE holds the output of dmesg or journalctl -k, or records of /dev/kmsg. Give - to read standard input.

    Example: dmesg -T | pulsetrain kmsg - --node node-7 --json
    """
    from pulsetrain.analytics import report
    from pulsetrain.analytics.machines import hardware
    from pulsetrain.analytics.machines.policies import load

    answer = hardware.read_file(file, node=node, policies=load(policies))
    if as_json:
        print_json(report.rows(answer))
    else:
        for line in report.lines(answer, everything=True):
            click.echo(printable_text(line))
    return report.exit_status(answer) if check else 0


@pulsetrain.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def failslow(file: Path, as_json: bool) -> None:
    """Find workers, or a whole job, that became slower than before.

    FILE is a CSV or Parquet table with the time of each step of each worker.

    Example: pulsetrain failslow steps.csv --json
    """
    from pulsetrain.analytics import report
    from pulsetrain.analytics.slowness import fail_slow
    from pulsetrain.analytics.slowness.step_times_file import read

    with progress(f"Reading {file.name}"):
        answer = fail_slow.find(read(file), config=fail_slow.for_recording())
    if as_json:
        print_json(report.rows(answer))
        return
    for line in report.lines(answer, everything=True):
        click.echo(printable_text(line))
