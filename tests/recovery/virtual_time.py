"""Asyncio without waiting: tests of what takes minutes run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer when nothing else is to be done."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if timers and not self._ready:
            self.now_s = max(self.now_s, min(timers))
        super()._run_once()


def run(main: Callable[[Callable[[], float]], Coroutine[None, None, T]]) -> T:
    """What `main` returns, which gets a clock in seconds."""
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(main(runner.get_loop().time))
