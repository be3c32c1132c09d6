"""The log of all that was done to jobs, and whether it is as it was written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pulsetrain.agent.hub_flags import DATA
from pulsetrain.cli.options import json_option
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.core.errors import UsageError


@pulsetrain.group()
def audit() -> None:
    """Check the log of everything that was done to jobs.

    Example: pulsetrain audit verify --json
    """


@audit.command()
@click.option("--head", default="", metavar="HASH", help="A hash that you noted: the log must hold it.")
@DATA
@json_option
def verify(head: str, data: Path | None, as_json: bool) -> int:
    """Check that no record of the hub's audit log was changed, removed or inserted.

    The exit status is 1 if one was. A last line that is half written is only told.

    Example: pulsetrain audit verify --head 5f1c0e...
    """
    from pulsetrain.hub import audit_log
    from pulsetrain.protocol.client import data_folder

    path = (data or data_folder()).expanduser() / audit_log.NAME
    try:
        answer = audit_log.verify_file(path, head)
    except OSError as error:
        raise UsageError(f"no audit log {path}: {error.strerror}") from error
    problems = [asdict(problem) for problem in answer.problems]
    if as_json:
        facts = {"file": str(path), "records": answer.records, "head": answer.head.hash}
        torn = answer.torn_line or None
        print_json({**facts, "ok": not problems, "problems": problems, "torn_line": torn})
    else:
        for problem in answer.problems:
            click.echo(f"{path}:{problem.line}: {problem.what}")
        if answer.torn_line:
            click.echo(f"{path}:{answer.torn_line}: half written: a hub writes it now, or ended meanwhile")
        state = f"{len(problems)} problem(s)" if problems else "all as they were written"
        click.echo(f"{answer.records} records, {state}. The last hash is {answer.head.hash}.")
    return 1 if problems else 0
