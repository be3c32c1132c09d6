"""The live screen: draws what is known each second, reads keys, and leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from pulsetrain.terminal.frame import frame
from pulsetrain.terminal.keys import END, Keys, keys_of
from pulsetrain.terminal.view import View

REFRESH_S = 1.0
_TICK_S = 0.2  # a new size of the terminal is seen after so long


class Screen:
    """What is on the screen. rich asks it for its lines whenever it draws."""

    def __init__(self, look: Callable[[], View]) -> None:
        self._look = look
        self.view = look()
        self.chosen = ""

    def refresh(self) -> None:
        """Take what is known now."""
        self.view = self._look()

    def press(self, key: str) -> bool:
        """Do what the key says. Returns whether it says to end."""
        if key in ("q", "Q", "\x03", END):
            return True
        step = {"up": -1, "k": -1, "down": 1, "j": 1}.get(key)
        if step is not None and self.view.jobs:
            names = [job.job for job in self.view.jobs]
            at = names.index(self.chosen) if self.chosen in names else 0
            self.chosen = names[(at + step) % len(names)]
        return False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the screen."""
        width, height = options.max_width, options.height or console.height
        yield from frame(self.view, width=width, height=height, chosen=self.chosen, keys=True)


def run(look: Callable[[], View], console: Console, *, keys_fd: int = 0) -> int:
    """Show what `look` says until somebody presses q. Returns 0, or the signal that ended it.

    Ctrl-Z gives the terminal back to the shell, and `fg` goes on.
    """
    screen = Screen(look)
    while True:
        with _signals() as asked, keys_of(keys_fd) as keys, _drawn(screen, console) as live:
            number = _loop(screen, live, keys, console, asked)
        if number != signal.SIGTSTP:
            return number
        os.kill(os.getpid(), signal.SIGSTOP)


def _drawn(screen: Screen, console: Console) -> Live:
    return Live(
        screen,
        console=console,
        screen=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _loop(screen: Screen, live: Live, keys: Keys, console: Console, asked: list[int]) -> int:
    """Draw until a key or a signal ends it. Returns the signal, 0 for a key."""
    while True:
        screen.refresh()
        live.refresh()
        size, until_s = console.size, time.monotonic() + REFRESH_S
        while (left_s := until_s - time.monotonic()) > 0:
            key = keys(min(left_s, _TICK_S))
            if asked:
                return asked[0]
            if screen.press(key):
                return 0
            if key or console.size != size:
                break


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Note the signals that end or suspend the screen. So none of them interrupts a line that is drawn."""
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
