"""Keys of a terminal."""

from __future__ import annotations

import os
import pty
import termios

import pytest

from pulsetrain.terminal.keys import END, key_name, keys_of


@pytest.fixture
def terminal():
    """The two ends of a terminal: what a person types into, and what a program reads."""
    person, program = pty.openpty()
    yield person, program
    os.close(person)
    os.close(program)


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (b"q", "q"), (b"\x1b[A", "up"), (b"\x1bOB", "down"), (b"\t", "down"), (b"\x1b[Z", "up"),
        (b"\x1b", ""), (b"\x1b[15~", ""), ("ü".encode(), ""), (b"", END),
    ],
)  # fmt: skip
def test_keys_have_names(sent, name):
    assert key_name(sent) == name


def test_a_key_is_read_at_once_and_the_terminal_is_as_before(terminal):
    person, program = terminal
    before = termios.tcgetattr(program)
    with keys_of(program) as keys:
        assert termios.tcgetattr(program) != before
        os.write(person, b"\x1b[A")
        assert keys(5.0) == "up"
        assert keys(0.0) == ""
    assert termios.tcgetattr(program) == before


def test_the_terminal_is_as_before_also_after_an_error(terminal):
    before = termios.tcgetattr(terminal[1])
    with pytest.raises(ZeroDivisionError), keys_of(terminal[1]):
        raise ZeroDivisionError
    assert termios.tcgetattr(terminal[1]) == before


def test_where_there_is_no_terminal_nobody_presses_a_key():
    reading, writing = os.pipe()
    try:
        os.write(writing, b"q")
        with keys_of(reading) as keys:
            assert keys(0.0) == ""
    finally:
        os.close(reading)
        os.close(writing)
