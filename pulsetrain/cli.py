"""The command line: one function for each command, which parses, calls and prints.

Heavy imports (torch, chDB, Streamlit) happen inside the commands that need them, so that each starts fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pulsetrain import __version__
from pulsetrain.stream.errors import PulsetrainError, UsageError

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


def main() -> None:
    """Entry point. Bad usage is one line on standard error and status 2; other failures status 1."""
    try:
        sys.exit(pulsetrain.main(standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except UsageError as error:
        _fail(str(error), 2)
    except PulsetrainError as error:
        _fail(str(error), 1)


def _fail(message: str, status: int) -> None:
    click.echo(f"pulsetrain: {' '.join(message.split())}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
