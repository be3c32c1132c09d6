"""Tokens besides the hub's own: for people who only look, for agents, for operators."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from pulsetrain.agent.hub_flags import DATA
from pulsetrain.cli.numbers import NumberRange
from pulsetrain.cli.options import json_option
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.hub.token_file import Grant, Role, TokenFile
from pulsetrain.protocol.client import data_folder

_OF_A_HUB = ("hub.json", "token", "tokens.json")
_DAY_NS = 86_400 * 10**9


@pulsetrain.group()
def token() -> None:
    """Make, list and revoke tokens that may do less than the hub's own. A running hub knows them at once.

    Example: pulsetrain token create grafana --role viewer --days 365
    """


@token.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    required=True,
    help="What it may do: read, connect nodes and send records, or everything.",
)
@click.option("--job", default="", metavar="JOB", help="For an agent's token: nodes of this job alone.")
@click.option("--node", default="", metavar="NODE", help="For an agent's token: this node alone.")
@click.option(
    "--days",
    type=NumberRange(min=0, max=36_500),
    help="When it ends. 0: never, as for agents by default. Others end after 90 days.",
)
@DATA
@json_option
def create(
    name: str, role: str, job: str, node: str, days: float | None, data: Path | None, as_json: bool
) -> None:
    """Make a token and print it. It cannot be read again.

    Example: pulsetrain token create llama-nodes --role agent --job llama --days 30
    """
    if days is None:
        days = 0.0 if role == Role.AGENT else 90.0
    now_ns = time.time_ns()
    expires_ns = now_ns + int(days * _DAY_NS) if days else 0
    _note_folder((data or data_folder()).expanduser())
    made = _file(data).create(name, Role(role), job=job, node=node, now_ns=now_ns, expires_ns=expires_ns)
    if as_json:
        facts = {"name": name, "role": role, "job": job, "node": node, "expires_ns": expires_ns}
        print_json({**facts, "token": made})
    else:
        click.echo(made)


@token.command("list")
@DATA
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """List tokens by name, without the tokens themselves.

    Example: pulsetrain token list
    """
    now_ns, grants = time.time_ns(), _file(data).grants()
    if as_json:
        print_json({"tokens": [_facts(grant, now_ns) for grant in grants]})
        return
    for grant in grants:
        of = f" of job {grant.job}" if grant.job else ""
        of += f" for node {grant.node}" if grant.node else ""
        click.echo(f"{grant.name:24} {grant.role}{of}, {_ends(grant, now_ns)}")
    if not grants:
        click.echo("no tokens besides the hub's own")


@token.command()
@click.argument("name")
@DATA
@json_option
def revoke(name: str, data: Path | None, as_json: bool) -> None:
    """Take a token back. A running hub refuses it from then on.

    Example: pulsetrain token revoke grafana
    """
    _file(data).revoke(name)
    if as_json:
        print_json({"revoked": name})
    else:
        click.echo(f"revoked {name}")


def _note_folder(folder: Path) -> None:
    """Say where no hub has kept anything yet: one that runs with another folder does not know the token."""
    if not any((folder / name).exists() for name in _OF_A_HUB):
        click.echo(
            f"note: no hub has run with the folder {folder} yet. A hub with another one does not know this "
            "token: give its folder (--data or PULSETRAIN_DATA)",
            err=True,
        )


def _file(data: Path | None) -> TokenFile:
    return TokenFile((data or data_folder()).expanduser())


def _facts(grant: Grant, now_ns: int) -> dict[str, object]:
    return {
        "name": grant.name, "role": grant.role, "job": grant.job, "node": grant.node,
        "created_ns": grant.created_ns,
        "expires_ns": grant.expires_ns, "expired": grant.has_expired(now_ns),
    }  # fmt: skip


def _ends(grant: Grant, now_ns: int) -> str:
    if not grant.expires_ns:
        return "never expires"
    when = datetime.fromtimestamp(grant.expires_ns / 1e9, UTC)
    return f"{'expired' if grant.has_expired(now_ns) else 'expires'} {when:%Y-%m-%d %H:%M} UTC"
