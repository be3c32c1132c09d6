"""What a failed command prints, and its exit status."""

import socket
import subprocess
import sys

import click
import pytest

from pulsetrain import __version__
from pulsetrain.cli import main
from pulsetrain.cli.extras import MissingExtraError
from pulsetrain.cli.root import pulsetrain
from pulsetrain.core.errors import Unavailable, UsageError


@pytest.fixture
def failing(monkeypatch):
    """Add a command that ends as told."""

    def add(ending):
        @click.command()
        def failing():
            if isinstance(ending, BaseException):
                raise ending
            return ending

        monkeypatch.setitem(pulsetrain.commands, "failing", failing)
        monkeypatch.setattr(sys, "argv", ["pulsetrain", "failing"])

    return add


@pytest.mark.parametrize(
    ("ending", "status", "line"),
    [
        (UsageError("no such\n  step"), 2, "pulsetrain: no such step\n"),
        (click.UsageError("odd flag"), 2, "pulsetrain: odd flag\n"),
        (MissingExtraError("pulsetrain serve", "hub"), 2, 'pip install "pulsetrain[hub]"\n'),
        (Unavailable("hub is away"), 1, "pulsetrain: hub is away\n"),
        (
            OSError(28, "No space left", "/d/x"),
            1,
            "pulsetrain: /d/x: No space left (PULSETRAIN_TRACEBACK=1 shows where)\n",
        ),
        (
            OSError(18, "Odd", "/a", None, "/b"),
            1,
            "pulsetrain: /a to /b: Odd (PULSETRAIN_TRACEBACK=1 shows where)\n",
        ),
        (
            socket.gaierror(-2, "Name unknown"),
            1,
            "[Errno -2] Name unknown (PULSETRAIN_TRACEBACK=1 shows where)\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (None, 0, ""),
        (1, 1, ""),
    ],
)
def test_a_command_ends_with_one_line_and_its_status(failing, capsys, ending, status, line):
    failing(ending)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status
    assert capsys.readouterr().err.endswith(line)


def test_what_the_machine_refused_is_one_line_and_with_a_variable_a_traceback(failing, capsys, monkeypatch):
    for variable, lines in (("", 1), ("1", 3)):
        monkeypatch.setenv("PULSETRAIN_TRACEBACK", variable)
        failing(OSError(28, "No space left", "/d/x"))
        with pytest.raises(SystemExit):
            main()
        assert min(len(capsys.readouterr().err.splitlines()), 3) == lines


def test_no_command_prints_the_help_and_is_bad_usage(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pulsetrain"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "Usage: " in capsys.readouterr().out


@pytest.mark.integration
@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_command_works_where_standard_streams_are_closed(closed):
    command = f"exec {sys.executable} -m pulsetrain.cli --version {closed}"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert __version__ in done.stdout
