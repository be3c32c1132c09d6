"""Entry point: what a failed command prints, and its exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback

import click

from pulsetrain.cli.completion import VARIABLE
from pulsetrain.cli.extras import MissingExtraError
from pulsetrain.cli.root import pulsetrain
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.terminal.printable import printable

TRACEBACK = "PULSETRAIN_TRACEBACK"


def main() -> None:
    """Run the command line. A failed command prints one line on standard error.

    The exit status is 2 for bad usage or a missing extra, 1 for other failures, 130 after Ctrl-C. With
    `TRACEBACK` in the environment the traceback comes first where the machine was at fault.
    """
    open_closed_streams()
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
    except OSError as error:  # what no command foresees: a disk that is full, a folder of somebody else
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        _fail(f"{os_error(error)} ({TRACEBACK}=1 shows where)", 1)


def os_error(error: OSError) -> str:
    """What the machine refused, with the paths that it concerns.

    >>> os_error(PermissionError(13, "Permission denied", "/etc/x"))
    '/etc/x: Permission denied'
    """
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, str | bytes)]
    return f"{' to '.join(paths)}: {error.strerror}" if paths else str(error) or type(error).__name__


def open_closed_streams() -> None:
    """Put nothing in the place of standard streams that are closed, as after `2>&-`.

    The next file that is opened would take their numbers, and what is said would go into it.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None and not _is_open(fd):
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _complete() -> None:
    """Answer a shell that asks how a line may go on. It never sees an error: that would tear the line."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            pulsetrain.main(prog_name="pulsetrain", complete_var=VARIABLE)
        except Exception:  # noqa: BLE001 - the edge to the shell, and there is nowhere to say it
            sys.exit(1)


def _fail(message: str, status: int) -> None:
    with contextlib.suppress(OSError):  # who reads it may be gone: the status says it too
        click.echo(f"pulsetrain: {printable(message)}", err=True)
    sys.exit(status)
