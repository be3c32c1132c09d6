"""Entry point: what a failed command prints, and its exit status."""

from __future__ import annotations

import sys

import click

from pulsetrain.cli.extras import MissingExtraError
from pulsetrain.cli.root import pulsetrain
from pulsetrain.core.errors import PulsetrainError, UsageError


def main() -> None:
    """Run the command line. A failed command prints one line on standard error.

    The exit status is 2 for bad usage or a missing extra, 1 for other failures, 130 after Ctrl-C.
    """
    try:
        sys.exit(pulsetrain.main(prog_name="pulsetrain", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except MissingExtraError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
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
