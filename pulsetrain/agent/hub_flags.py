"""The options that say which hub a command talks to. They mean the same for every command."""

from __future__ import annotations

from pathlib import Path

import click

HUB = click.option(
    "--hub",
    metavar="URL[,URL...]",
    help="Address of the hub, or of all of which one leads. Default: PULSETRAIN_HUB, else the hub of --data.",
)
TOKEN = click.option(
    "--token", metavar="TOKEN", help="Token of the hub. Default: PULSETRAIN_TOKEN, else the one in --data."
)
DATA = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the hub's data. Default: PULSETRAIN_DATA, else ~/.local/share/pulsetrain.",
)
