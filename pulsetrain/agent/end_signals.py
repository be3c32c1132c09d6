"""What signals do to an agent: the first one ends the run in order, and others may hurry that."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from pulsetrain.core.clock import Clock, SystemClock


class EndSignals:
    """The first signal calls `interrupt`. A second one ends the process now: the kernel ends what we started.

    Schedulers repeat SIGTERM. So for `patience_s` after the first signal, in which the newest checkpoint is
    persisted, a further SIGTERM hurries nobody. SIGHUP says that the terminal is gone. A shell says it once
    more, which never hurries. It is ignored where it was at the start, as under nohup.
    """

    def __init__(
        self,
        interrupt: Callable[[int], None],
        *,
        patience_s: float,
        clock: Clock | None = None,
        end_now: Callable[[int], object] = os._exit,
    ) -> None:
        self._interrupt, self._patience_s, self._end_now = interrupt, patience_s, end_now
        self._clock = clock or SystemClock()
        self._since_s: float | None = None

    def install(self) -> None:
        """Become the handler of the signals that end a program. Only the main thread may do that."""
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self.handle)

    def handle(self, signum: int, _: FrameType | None = None) -> None:
        """A signal came."""
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
            self._interrupt(signum)
        elif signum == signal.SIGHUP:
            return
        elif signum != signal.SIGTERM or now_s - self._since_s > self._patience_s:
            self._end_now(128 + signum)
