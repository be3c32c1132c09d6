"""Entry point: what a failed command prints, and its exit status."""

from __future__ import annotations

import sys

import click

from pulsetrain.cli.root import pulsetrain
from pulsetrain.core.errors import PulsetrainError, UsageError


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
