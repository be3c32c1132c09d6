"""The live screen in a real terminal: a child process whose terminal is ours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import pytest

from pulsetrain.terminal.keys import END
from pulsetrain.terminal.live import Screen
from pulsetrain.terminal.view import Answers, view
from tests.repository import ROOT
from tests.terminal.answers import job, status

LIMIT_S = 60
ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"
HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"
PROGRAM = """
import sys
from rich.console import Console
from pulsetrain.terminal import live
from pulsetrain.terminal.view import Answers, view
from tests.terminal.answers import job, status
print("before")
jobs = [job("job-a"), job("job-b")]
ended_by = live.run(lambda: view(Answers(status=status(*jobs)), here_ns=0), Console())
print(f"ended by {ended_by}")
"""


def screen(*jobs):
    return Screen(lambda: view(Answers(status=status(*jobs)), here_ns=0))


@pytest.mark.parametrize("key", ["q", "Q", "\x03", END])
def test_keys_that_end_it(key):
    assert screen(job()).press(key)


def test_keys_choose_another_job_round_and_round():
    shown = screen(job("a"), job("b"), job("c"))
    chosen = []
    for key in ("down", "j", "down", "up", "k", "x", ""):
        assert not shown.press(key)
        chosen.append(shown.chosen)
    assert chosen == ["b", "c", "a", "c", "b", "b", "b"]


def test_a_hub_without_jobs_has_nothing_to_choose():
    shown = screen()
    assert not shown.press("down")
    assert shown.chosen == ""


class Terminal:
    """A person at a terminal in which the program runs."""

    def __init__(self, width=80, height=24):
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.environ.update({"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""})
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
        self.resize(width, height)
        self.seen = b""
        self.before = termios.tcgetattr(self._fd)

    def resize(self, width, height):
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys):
        os.write(self._fd, keys)

    def until(self, words, *, after=0):
        """Read until the words have come."""
        end_s = time.monotonic() + LIMIT_S
        while words not in self.seen[after:] and time.monotonic() < end_s:
            ready, _, _ = select.select([self._fd], [], [], 1.0)
            with contextlib.suppress(OSError):  # the child has ended
                self.seen += os.read(self._fd, 65536) if ready else b""
        assert words in self.seen[after:], self.seen[-2000:]

    @property
    def settings(self):
        return termios.tcgetattr(self._fd)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def terminal():
    """The program, when it has drawn its first screen."""
    opened = Terminal()
    try:
        opened.until(b"q quit")
        yield opened
    finally:
        opened.close()


@pytest.mark.integration
@pytest.mark.parametrize(("end", "number"), [(b"q", 0), (b"\x03", signal.SIGINT), (None, signal.SIGTERM)])
def test_the_terminal_is_left_as_it_was(terminal, end, number):
    assert ALTERNATE in terminal.seen
    assert terminal.settings != terminal.before
    if end is None:
        os.kill(terminal.pid, signal.SIGTERM)
    else:
        terminal.press(end)
    terminal.until(b"ended by %d" % number)
    assert terminal.seen.rindex(BACK) > terminal.seen.rindex(ALTERNATE)
    assert terminal.seen.rindex(SHOWN) > terminal.seen.rindex(HIDDEN)
    assert terminal.settings == terminal.before


@pytest.mark.integration
def test_arrows_and_a_new_size_are_seen_at_once(terminal):
    assert b"> " in terminal.seen
    drawn = len(terminal.seen)
    terminal.press(b"\x1b[B")
    terminal.until(b"job-b is healthy", after=drawn)
    drawn = len(terminal.seen)
    terminal.resize(140, 30)
    terminal.until(b"slowest nodes", after=drawn)


@pytest.mark.integration
def test_ctrl_z_gives_the_terminal_back_and_fg_goes_on(terminal):
    terminal.press(b"\x1a")
    terminal.until(BACK)
    _, state = os.waitpid(terminal.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(state)
    assert terminal.settings == terminal.before
    drawn = len(terminal.seen)
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.until(ALTERNATE, after=drawn)
    terminal.press(b"q")
    terminal.until(b"ended by 0", after=drawn)
