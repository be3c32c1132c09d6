"""What people decide on what the hub would do later: the hang that it waits with."""

from __future__ import annotations

import time

import click

from pulsetrain.cli.numbers import Number
from pulsetrain.cli.options import HubOptions, hub_options, job_argument, json_option
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.terminal.printable import printable


@pulsetrain.command()
@job_argument
@click.option(
    "--wait", "wait_minutes", type=Number(), metavar="MINUTES", help="Leave the job alone for so long."
)
@click.option("--now", "act_now", is_flag=True, help="Restart the job now.")
@click.option("--reason", default="", metavar="TEXT", help="Why. The reason is kept with the decision.")
@click.option("--dry-run", is_flag=True, help="Only say what is pending and whether it can be decided.")
@hub_options
@json_option
def pending(
    job: str,
    wait_minutes: float | None,
    act_now: bool,
    reason: str,
    dry_run: bool,
    hub: HubOptions,
    as_json: bool,
) -> None:
    """Show the hang of JOB that is named and not acted on. Say --wait or --now.

    Example: pulsetrain pending gpt --wait 30 --reason "I look at it in a debugger"
    """
    if act_now and wait_minutes is not None:
        raise UsageError("--wait and --now: give one of them")
    client = hub.client()
    if not act_now and wait_minutes is None:
        answer = client.pending_hang(job)
    else:
        if not reason.strip():
            raise UsageError("--reason is missing: say why, it is kept with the decision")
        decision, seconds = ("now", 0.0) if act_now else ("wait", 60.0 * (wait_minutes or 0.0))
        answer = client.decide_hang(job, decision, reason, seconds=seconds, dry_run=dry_run)
    if as_json:
        print_json(answer)
        return
    click.echo(printable(sentence(answer, time.time_ns())))


def sentence(answer: JsonObject, now_ns: int) -> str:
    """Return what is pending and what was decided, in one line.

    >>> sentence({"job": "gpt", "decision": "wait", "dry_run": False, "pending_hang": None}, 0)
    'gpt: no hang is pending. The job is left alone, as you said.'
    """
    hang = answer["pending_hang"]
    text = f"{answer['job']}: no hang is pending."
    if hang is not None:
        left_s = None if hang["act_at_ns"] is None else max(0.0, (hang["act_at_ns"] - now_ns) / 1e9)
        when = "It is not restarted." if left_s is None else f"It is restarted in {left_s:.0f} s."
        lasts_s = max(0.0, (now_ns - hang["since_ns"]) / 1e9)
        text = f"{answer['job']}: hangs at rank {hang['rank']} for {lasts_s:.0f} s. {hang['why']} {when}"
    if answer.get("dry_run") or not answer.get("decision"):
        return text
    if answer["decision"] == "now":
        return f"{answer['job']}: is restarted now, as you said."
    return f"{text} The job is left alone, as you said."
