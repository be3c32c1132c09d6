"""The root command, and what its commands share: options and printing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pulsetrain import __version__

JSON_FLAG = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text for people.")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, no_args_is_help=True
)
@click.version_option(__version__, prog_name="pulsetrain")
def pulsetrain() -> None:
    """Watch a training job, name the fault, heal it."""


def print_json(value: Any) -> None:
    """`value` as one JSON document on standard output."""
    click.echo(json.dumps(value, default=str))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], empty: str) -> None:
    """`rows` as aligned columns for people; `empty` is the sentence for no rows."""
    if not rows:
        click.echo(empty)
        return
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(c) for c in column) for column in zip(columns, *cells, strict=True)]
    for line in (list(columns), *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


HUB_FLAGS = (
    click.option(
        "--hub", metavar="URL", help="The hub; default: PULSETRAIN_HUB, else the one in the data folder."
    ),
    click.option(
        "--token", metavar="TOKEN", help="Its token; default: PULSETRAIN_TOKEN, else the data folder's."
    ),
)


def hub_flags(command: Any) -> Any:
    """The options of every command that talks to a hub."""
    for flag in reversed(HUB_FLAGS):
        command = flag(command)
    return command


def client_of(hub: str | None, token: str | None) -> Any:
    from pulsetrain.protocol.client import HubClient, find_hub

    return HubClient(find_hub(hub, token))


def path_of(text: str | None) -> Path | None:
    return Path(text) if text else None


def progress(rows: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{rows:,} rows", nl=False, err=True)
