"""Who holds up a hung job: from files, or from NCCL's RAS as it answers now."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulsetrain.cli.names import job_names
from pulsetrain.cli.options import HubOptions, hub_options, json_option
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.core.progress import progress
from pulsetrain.terminal.printable import printable, printable_text

if TYPE_CHECKING:
    from pulsetrain.analytics.hangs.hang import HangAnswer
    from pulsetrain.analytics.hangs.ras_lag import Lag

AT_FAULT = ("rank", "network", "desync")
PAUSE_S = 2.0  # between two questions to RAS
PATIENCE_S = 60.0  # with the hub: it may ask several nodes, each of which waits for processes that are silent


@pulsetrain.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--ras",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value="",
    help="Ask NCCL RAS now. Without an address: at NCCL_RAS_ADDR, else localhost:28028.",
)
@click.option("--job", metavar="JOB", shell_complete=job_names, help="Let an agent of a running job ask RAS.")
@hub_options
@json_option
def hang(folder: Path | None, ras: str | None, job: str | None, hub: HubOptions, as_json: bool) -> int:
    """Name the ranks that hold up a hung job.

    DIR holds one PyTorch Flight Recorder dump for each rank. It may hold NCCL RAS reports instead: two or
    more files that ncclras -f json wrote some seconds apart. With --ras or --job, RAS itself is asked twice.
    The exit status is 1 if somebody is at fault.

    Example: pulsetrain hang /tmp/nccl_trace --json
    """
    given = [name for name, value in (("DIR", folder), ("--ras", ras), ("--job", job)) if value is not None]
    if len(given) != 1:
        raise UsageError(f"give one of DIR, --ras and --job, not {' and '.join(given) or 'none'}")
    if job is not None:
        return _of_job(job, hub, as_json=as_json)
    if ras is not None:
        return _told(*_of_reports(_ask_twice(ras)), as_json=as_json)
    return _told(*_of_folder(Path(folder or "")), as_json=as_json)


def _told(answer: HangAnswer, lags: Sequence[Lag], *, as_json: bool) -> int:
    from pulsetrain.analytics.hangs.flight_recorder import sentences

    if as_json:
        print_json({**answer, "communicators": lags})
    else:
        for line in [*sentences(answer), *(f"  {printable(lag['sentence'])}" for lag in lags)]:
            click.echo(printable_text(line))
    return int(answer["verdict"] in AT_FAULT)


def _of_folder(folder: Path) -> tuple[HangAnswer, Sequence[Lag]]:
    from pulsetrain.analytics.hangs import ras
    from pulsetrain.analytics.hangs.flight_recorder import verdict

    with progress(f"Reading {folder}"):
        reports = ras.reports_in(folder)
        return _of_reports(reports) if reports else (verdict(folder), ())


def _of_reports(texts: Sequence[tuple[str, str]]) -> tuple[HangAnswer, Sequence[Lag]]:
    from pulsetrain.analytics.hangs import ras, ras_lag

    reports, notes = ras.read(texts)
    lags = ras_lag.lags(reports[0], reports[-1], ras.numbered(reports[-1])) if len(reports) > 1 else ()
    return ras.answer(reports, notes), lags


def _ask_twice(address: str) -> list[tuple[str, str]]:
    from pulsetrain.collectors.machine import ras_client

    where = ras_client.parse_address(address, "--ras") if address else ras_client.address_of(os.environ)
    with progress(f"Asking NCCL RAS at {where}"):
        first = ras_client.ask(where)
        time.sleep(PAUSE_S)
        return [("the first answer", first), ("the second answer", ras_client.ask(where))]


def _of_job(job: str, hub: HubOptions, *, as_json: bool) -> int:
    """Let the hub ask. 1 where somebody is at fault."""
    from pulsetrain.protocol.client import HubClient

    with progress(f"Asking NCCL RAS of {job}"):
        answer = HubClient(hub.address(), timeout_s=PATIENCE_S).ras(job)
    if as_json:
        print_json(answer)
    else:
        click.echo(printable(answer["sentence"]))
        if answer["culprits"]:
            at_fault = ", ".join(str(rank) for rank in answer["culprits"])
            click.echo(
                f"verdict: {answer['verdict']} (confidence {answer['confidence']:.2f}); at fault: {at_fault}"
            )
        for lag in answer["communicators"]:
            click.echo(f"  {lag['sentence']}")
    return int(answer["verdict"] in AT_FAULT)
