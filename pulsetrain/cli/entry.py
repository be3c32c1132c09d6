"""Entry point: what a failed command prints, and its exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import click

from pulsetrain.cli.completion import VARIABLE
from pulsetrain.cli.extras import MissingExtraError
from pulsetrain.cli.root import pulsetrain
from pulsetrain.core.errors import PulsetrainError, UsageError


def main() -> None:
    """Run the command line. A failed command prints one line on standard error.

    The exit status is 2 for bad usage or a missing extra, 1 for other failures, 130 after Ctrl-C.
    """
    if VARIABLE in os.environ:
        _complete()
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


def _complete() -> None:
    """Answer a shell that asks how a line may go on. It never sees an error: that would tear the line."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            pulsetrain.main(prog_name="pulsetrain", complete_var=VARIABLE)
        except Exception:  # noqa: BLE001 - the edge to the shell, and there is nowhere to say it
            sys.exit(1)


def _fail(message: str, status: int) -> None:
    click.echo(f"pulsetrain: {' '.join(message.split())}", err=True)
    sys.exit(status)
