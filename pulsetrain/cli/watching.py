"""How jobs are now: status and top."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from pulsetrain.cli.names import job_names
from pulsetrain.cli.numbers import NumberRange
from pulsetrain.cli.options import HubOptions, hub_options, json_option
from pulsetrain.cli.root import print_json, print_table, pulsetrain
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.leading_client import LeadingClient

_PATIENCE_S = 5.0  # for an answer to `top`


@pulsetrain.command()
@click.option(
    "--watch",
    "watch_s",
    type=NumberRange(min=0.2),
    is_flag=False,
    flag_value=2.0,
    metavar="[SECONDS]",
    help="Print again whenever something changed, until Ctrl-C. Look every SECONDS. Default: 2.",
)
@hub_options
@json_option
def status(watch_s: float | None, hub: HubOptions, as_json: bool) -> None:
    """Say how each job is, since when, and what to do, and list its nodes.

    Example: pulsetrain status --watch
    """
    if watch_s is not None:
        _watch(LeadingClient(hub.addresses()), watch_s, as_json=as_json)
        return
    client = hub.client()
    report = client.status()
    if as_json:
        print_json(report)
    else:
        from pulsetrain.terminal.hub_answers import HubQuestions

        _print_status(report, HubQuestions(client).incidents_of(report))


def _watch(client: LeadingClient, period_s: float, *, as_json: bool) -> None:
    """Print the status at first and after each change. As JSON each is one line."""
    from pulsetrain.terminal.changes import changes
    from pulsetrain.terminal.hub_answers import HubQuestions

    questions = HubQuestions(client)
    incidents: Sequence[JsonObject] = ()

    def ask() -> JsonObject:
        nonlocal incidents
        report = client.status()
        if not as_json:
            incidents = questions.incidents_of(report)
        return report

    for news in changes(ask, period_s=period_s, sleep=time.sleep):
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if isinstance(news, PulsetrainError):
            lost = click.style(f"No data: {news}. What is above is old. Still trying.", fg="red")
            click.echo(lost if as_json else f"== {now}\n{lost}", err=as_json)
        elif as_json:
            print_json(news)
        else:
            click.echo(click.style(f"== {now}", fg="bright_black"))
            _print_status(news, incidents)
        sys.stdout.flush()


def _print_status(report: JsonObject, incidents: Sequence[JsonObject]) -> None:
    from pulsetrain.terminal import status_lines
    from pulsetrain.terminal.pool_lines import pool_lines
    from pulsetrain.terminal.printable import printable
    from pulsetrain.terminal.view import Answers, view

    seen = view(Answers(status=report, incidents=incidents), here_ns=time.time_ns())
    by_name = {printable(job["job"]): job for job in report["jobs"]}
    waiting = status_lines.waiting_line(report["hub"])
    if waiting or not by_name:
        click.echo(waiting or "No job has joined this hub.")
    for job in (each for each in seen.jobs if each.runs_here):
        for line in status_lines.job_lines(job, seen.now_ns):
            click.echo(line)
        _print_details(by_name[job.job], seen.now_ns)
    for line in (*pool_lines(report.get("pool")), *status_lines.past_lines(seen)):
        click.echo(line)
    troubled = [row for row in report.get("loops", ()) if row["stale"] or row["failures"]]
    if troubled:
        click.echo("Loops that are stale or had failures:")
        shown = ("process", "node", "loop", "age_s", "stale", "turns", "failures", "last_error")
        print_table(troubled, shown, "")


def _print_details(job: JsonObject, now_ns: int) -> None:
    """What the script saves and says by itself, how it is updated, and the nodes."""
    from pulsetrain.terminal import status_lines

    if job.get("own_checkpoint"):
        click.echo(f"  {status_lines.own_checkpoint_line(job['own_checkpoint'])}")
    if status_lines.tells_instrumentation(job):
        click.echo(f"  {status_lines.instrumentation_line(job['instrumentation'])}")
    if job.get("update"):
        over = job.get("phase") in ("finished", "failed")
        click.echo(f"  {status_lines.update_line(job['update'], now_ns, over=over)}")
    rows = [{**node, "dropped": status_lines.dropped(node.get("gauges", {}))} for node in job["nodes"]]
    print_table(
        rows, ("node", "state", "node_rank", "ranks", "last_heartbeat_age_s", "dropped", "reason"), ""
    )


@pulsetrain.command()
@click.argument("job", required=False, default="", shell_complete=job_names)
@click.option("--once", is_flag=True, help="Print what the screen would show, and end.")
@hub_options
@json_option
def top(job: str, once: bool, hub: HubOptions, as_json: bool) -> int:
    """Show how jobs are on one screen that refreshes each second.

    JOB is shown in full. By default that is the job that needs a person most. Press q to end. Without a
    terminal the command prints one screen.

    Example: pulsetrain top gpt
    """
    from rich.console import Console

    from pulsetrain.terminal import live
    from pulsetrain.terminal.frame import frame
    from pulsetrain.terminal.hub_answers import HubQuestions, KeptAnswers
    from pulsetrain.terminal.view import Answers, view

    console = Console(highlight=False, emoji=False, markup=False)
    questions = HubQuestions(LeadingClient(hub.addresses(), timeout_s=_PATIENCE_S))
    first = questions()
    seen = view(Answers(**first), here_ns=time.time_ns())
    if job and seen.job(job) is None:
        known = ", ".join(each.job for each in seen.jobs) or "none"
        raise UsageError(f"job {job!r}: the hub does not know it; it knows: {known}")
    seen = seen.only(job)
    if as_json:
        print_json(seen.as_json())
    elif once or not console.is_terminal or console.is_dumb_terminal:
        for line in frame(seen, width=console.width, height=None):
            console.print(line, crop=False)
    else:
        kept = KeptAnswers(questions, first)
        ended_by = live.run(lambda: view(kept(), here_ns=time.time_ns()).only(job), console)
        return 128 + ended_by if ended_by else 0
    return 0
