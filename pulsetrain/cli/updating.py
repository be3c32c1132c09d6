"""Updating the program that a job runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import click

from pulsetrain.cli.numbers import NumberRange
from pulsetrain.cli.options import HubOptions, grouped, hub_options, job_argument, json_option
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.text import clock
from pulsetrain.dashboard.models.time_use import price_sentence
from pulsetrain.terminal.printable import printable


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """What is changed, when, why, and whether it is done."""

    env: tuple[str, ...] = ()
    now: bool = False
    within_s: float | None = None
    revert: bool = False
    cancel: bool = False
    reason: str = ""
    dry_run: bool = False

    @property
    def what(self) -> str:
        """What is asked of the hub. Raises `UsageError` for options that exclude each other."""
        if self.revert and self.cancel:
            raise UsageError("--revert and --cancel: give one of them")
        if self.now and self.within_s is not None:
            raise UsageError("--now and --within: give one of them")
        return "revert" if self.revert else "cancel" if self.cancel else "apply"

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables by name. One without a value has that of `environ`. Raises `UsageError`."""
        named = [part.partition("=") for part in self.env]
        missing = [name for name, equals, _ in named if not equals and name not in environ]
        if missing:
            raise UsageError(f"--env {missing[0]}: it is not set here; give {missing[0]}=VALUE")
        return {name: value if equals else environ[name] for name, equals, value in named}


_update_options = grouped(
    "options",
    UpdateOptions,
    click.option(
        "--env",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="Set this variable for the ranks. Without a value: as it is set here. Repeatable.",
    ),
    click.option("--now", is_flag=True, help="Stop the job for it at the next saved step."),
    click.option(
        "--within",
        "within_s",
        type=NumberRange(min=0),
        metavar="SECONDS",
        help="Stop the job for it if no restart came in this time. Default: a day.",
    ),
    click.option("--revert", is_flag=True, help="Go back to what ran before the last update."),
    click.option("--cancel", is_flag=True, help="Take an update back that waits."),
    click.option("--reason", required=True, metavar="TEXT", help="Why. The reason is kept with the update."),
    click.option("--dry-run", is_flag=True, help="Only say what would happen and what it would cost."),
)


@pulsetrain.command()
@job_argument
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]")
@_update_options
@hub_options
@json_option
def update(job: str, program: tuple[str, ...], options: UpdateOptions, hub: HubOptions, as_json: bool) -> int:
    """Let JOB run new code or other flags from its next restart on.

    SCRIPT and ARGS take the place of those that its agents were started with. Without them the same program
    is read anew. If attempts fail with the update at once, what ran before comes back.

    Example: pulsetrain update gpt --reason "smaller learning rate" -- train.py --lr 1e-4
    """
    answer = hub.client().update(
        job,
        options.what,
        options.reason,
        argv=program,
        environment=options.variables(os.environ),
        within_s=0.0 if options.now else options.within_s,
        dry_run=options.dry_run,
    )
    if as_json:
        print_json(answer)
    else:
        click.echo(printable(sentence(answer)))
    return 1 if answer["why_not"] else 0


def sentence(answer: JsonObject) -> str:
    """Return what happens to a job, or would, in one line.

    >>> answer = {"job": "gpt", "what": "cancel", "number": 3, "dry_run": False, "why_not": ""}
    >>> sentence(answer)
    'gpt: update 3 is taken back.'
    """
    job, number, dry = answer["job"], answer["number"], answer["dry_run"]
    if answer["why_not"]:
        return f"{job}: cannot be done: {answer['why_not']}"
    if answer["what"] == "cancel":
        return f"{job}: update {number} {'would be' if dry else 'is'} taken back."
    where = "would come into force" if dry else "comes into force"
    at = f"at the latest {clock(answer['until_ns'])} UTC"
    latest = "or at the next saved step" if answer["now"] else at
    told = f"{job}: update {number} {where} with the next restart, {latest}."
    risk = answer.get("risk", "")  # an older hub says none
    told += f" {risk[0].upper()}{risk[1:]}." if risk else ""
    return f"{told} {price_sentence(answer)}".rstrip() if dry else told
