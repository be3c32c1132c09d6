"""How far long work has come, on standard error."""

from __future__ import annotations

import builtins
import contextlib
import doctest
import io
import threading

import pytest

from pulsetrain.core import progress as module
from pulsetrain.core.progress import LINE_S, after, amount, has_bar, progress, unseen


class Terminal(io.StringIO):
    """A terminal that keeps what is drawn on it."""

    def __init__(self):
        super().__init__()
        self.drawn = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        self.drawn.set()
        return super().write(text)


class Clock:
    """Seconds that a test moves."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def at_once(monkeypatch):
    """Work is long from its beginning."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "SHORT_S", 0.0)
    monkeypatch.setattr(module, "_LEAST_S", 0.0)


def test_where_there_is_no_terminal_a_line_comes_now_and_then(clock):
    stream = io.StringIO()
    with progress("Importing", total=1000, stream=stream, clock=clock) as report:
        for done in range(0, 500, 10):
            report(done)
            clock.now_s += LINE_S / 20
    lines = stream.getvalue().splitlines()
    assert lines == [
        "pulsetrain: Importing: 200 of 1,000 rows, 40 s left",
        "pulsetrain: Importing: 400 of 1,000 rows, 30 s left",
    ]


def test_short_work_says_nothing(clock):
    stream = io.StringIO()
    with progress("Importing", total=10, stream=stream, clock=clock) as report:
        report(5)
        report(10)
    assert stream.getvalue() == ""


def test_a_total_that_is_known_late_counts(clock):
    stream = io.StringIO()
    with progress("Exporting", unit="bytes", stream=stream, clock=clock) as report:
        clock.now_s = LINE_S
        report(1 << 20, 4 << 20)
        clock.now_s = 2 * LINE_S
        report(2 << 20)
    assert stream.getvalue().splitlines() == [
        "pulsetrain: Exporting: 1.0 of 4.0 MiB, 30 s left",
        "pulsetrain: Exporting: 2.0 of 4.0 MiB, 20 s left",
    ]


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end(at_once):
    stream = Terminal()
    with progress("Importing", total=1000, stream=stream) as report:
        report(600)
        assert stream.drawn.wait(timeout=30)
    text = stream.getvalue()
    assert "Importing" in text
    assert "600 of 1,000 rows" in text
    assert text.rindex("\x1b[2K") > text.rindex("Importing")  # the line is cleared
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_the_bar_is_gone_after_an_error_too(at_once):
    stream = Terminal()
    with contextlib.suppress(ZeroDivisionError), progress("Importing", stream=stream):
        assert stream.drawn.wait(timeout=30)
        raise ZeroDivisionError
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_short_work_draws_nothing_in_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress("Importing", total=10, stream=stream) as report:
        report(10)
    assert stream.getvalue() == ""


def test_without_rich_a_terminal_gets_lines(monkeypatch, clock):
    monkeypatch.setenv("TERM", "xterm")
    real = builtins.__import__

    def without_rich(name, *rest):
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError(name="rich")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    stream = Terminal()
    with progress("Importing", stream=stream, clock=clock) as report:
        clock.now_s = LINE_S
        report(7)
    assert stream.getvalue() == "pulsetrain: Importing: 7 rows\n"


@pytest.mark.parametrize(("term", "drawn"), [("xterm", True), ("dumb", False), ("", False)])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch, term, drawn):
    monkeypatch.setenv("TERM", term)
    assert has_bar(Terminal()) == drawn
    assert not has_bar(io.StringIO())


def test_parts_of_the_work_add_up():
    seen = []
    part = after(lambda done, total=None: seen.append((done, total)), 100)
    part(5)
    part(6, 200)
    assert seen == [(105, None), (106, 200)]
    unseen(1)


def test_amounts_have_one_unit():
    assert amount(5, None, "messages") == "5 messages"
    assert amount(0, 3 << 40, "bytes") == "0.0 of 3.0 TiB"
    assert amount(10, 20, "bytes") == "10 of 20 bytes"


def test_the_examples_are_true():
    assert doctest.testmod(module).failed == 0
