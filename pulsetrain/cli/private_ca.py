"""A private CA for a cluster: what hubs show, and what agents and commands check."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulsetrain.cli.numbers import NumberRange
from pulsetrain.cli.options import json_option
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.client import data_folder

if TYPE_CHECKING:
    from pulsetrain.hub.private_ca import Issued, PrivateCa

_MOST_DAYS = 36_500
_FOLDER = click.Path(path_type=Path, file_okay=False)
_CA = click.option(
    "--ca", metavar="DIR", type=_FOLDER, help="Folder of the CA. Default: ca in the data folder."
)


@pulsetrain.group()
def ca() -> None:
    """Make a private CA, and certificates for hubs, so that agents and commands reach them over TLS.

    Example: pulsetrain ca issue head --host head.cluster --host 10.0.0.5
    """


@ca.command()
@click.argument("folder", metavar="[DIR]", type=_FOLDER, required=False)
@click.option("--days", type=NumberRange(min=0, max=_MOST_DAYS), default=3650, help="When it ends.")
@json_option
def create(folder: Path | None, days: float, as_json: bool) -> None:
    """Make a CA in DIR, by default in the folder ca of the data folder.

    Example: pulsetrain ca create /etc/pulsetrain/ca
    """
    now = datetime.now(UTC)
    made = _opened(folder).create(now=now, days=_checked(days))
    if as_json:
        print_json(_facts(made, now))
    else:
        click.echo(f"{made.certificate}  {_ends(made, now)}")
        click.echo("Copy this file to every node, and set PULSETRAIN_CA to its path there.")


@ca.command()
@click.argument("name")
@click.option(
    "--host", "hosts", multiple=True, required=True, help="Name or address of the server. Repeat it."
)
@click.option("--days", type=NumberRange(min=0, max=_MOST_DAYS), default=365, help="When it ends.")
@_CA
@json_option
def issue(name: str, hosts: tuple[str, ...], days: float, ca: Path | None, as_json: bool) -> None:
    """Make the certificate NAME for a server, or make it anew. A running hub takes it over by itself.

    Example: pulsetrain ca issue head --host head.cluster --host 10.0.0.5
    """
    now = datetime.now(UTC)
    made = _opened(ca).issue(name, hosts, now=now, days=_checked(days))
    if as_json:
        print_json(_facts(made, now))
    else:
        click.echo(f"{made.certificate}  {_ends(made, now)}, for {', '.join(made.hosts)}")


@ca.command("list")
@_CA
@json_option
def list_(ca: Path | None, as_json: bool) -> None:
    """List the certificates of a CA, and how many days each is still good.

    Example: pulsetrain ca list
    """
    now = datetime.now(UTC)
    issued = _opened(ca).issued()
    if as_json:
        print_json({"certificates": [_facts(each, now) for each in issued]})
        return
    for each in issued:
        click.echo(
            f"{each.name:24} {_ends(each, now)}{', for ' if each.hosts else ''}{', '.join(each.hosts)}"
        )


def _opened(folder: Path | None) -> PrivateCa:
    from pulsetrain.hub.private_ca import PrivateCa  # late: only here it is needed

    return PrivateCa((folder or data_folder() / "ca").expanduser().absolute())


def _checked(days: float) -> float:
    if days == 0:
        raise UsageError(f"--days {days:g}: allowed: above 0 to {_MOST_DAYS}")
    return days


def _facts(issued: Issued, now: datetime) -> dict[str, object]:
    return {
        "name": issued.name,
        "certificate": str(issued.certificate),
        "key": str(issued.certificate.with_suffix(".key")),
        "hosts": list(issued.hosts),
        "expires": issued.expires.isoformat(),
        "expires_days": round(issued.days_left(now), 2),
    }


def _ends(issued: Issued, now: datetime) -> str:
    days = issued.days_left(now)
    when = f"{issued.expires:%Y-%m-%d}"
    return f"expires in {days:.0f} days ({when})" if days > 0 else f"expired {-days:.0f} days ago ({when})"
