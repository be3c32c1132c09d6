"""What signals do to an agent: the first one ends the run in order, and others may hurry that.

Those that users give a meaning of their own are for the ranks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from types import FrameType

from pulsetrain.core.clock import Clock, SystemClock

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
USERS = (signal.SIGUSR1, signal.SIGUSR2)


class EndSignals:
    """The first signal calls `interrupt`. A second one ends the process now, by `end_now`.

    SIGUSR1 and SIGUSR2 call `forward`, unless they are among `also`, which end the run too.

    Schedulers repeat SIGTERM. So for `patience_s` after the first signal, in which the newest checkpoint is
    persisted, only a further SIGINT or SIGQUIT hurries. SIGHUP says that the terminal is gone. A shell says
    it once more, which never hurries. It is ignored where it was at the start, as under nohup.
    """

    def __init__(
        self,
        interrupt: Callable[[int], None],
        *,
        patience_s: float,
        forward: Callable[[int], object] = lambda _: None,
        also: Collection[int] = (),
        clock: Clock | None = None,
        end_now: Callable[[int], object] = os._exit,
    ) -> None:
        self._interrupt, self._patience_s, self._end_now = interrupt, patience_s, end_now
        self._forward, self._ending = forward, (*ENDING, *also)
        self._clock = clock or SystemClock()
        self._since_s: float | None = None

    def install(self) -> None:
        """Become the handler of the signals that end a program. Only the main thread may do that."""
        for signum in {*self._ending, *USERS}:
            ignored = signal.getsignal(signum) is signal.SIG_IGN
            if not (ignored and signum in (signal.SIGHUP, *USERS)):
                signal.signal(signum, self.handle)

    def handle(self, signum: int, _: FrameType | None = None) -> None:
        """A signal came."""
        if signum not in self._ending:
            self._forward(signum)
            return
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
            self._interrupt(signum)
        elif signum == signal.SIGHUP:
            return
        elif signum in (signal.SIGINT, signal.SIGQUIT) or now_s - self._since_s > self._patience_s:
            self._end_now(128 + signum)


def await_ranks(also: Collection[int] = ()) -> None:
    """Let SIGUSR1 and SIGUSR2 do nothing from now on, until `EndSignals` are installed, unless in `also`.

    There are no ranks yet to pass them on to, and by default they would end the process. What it starts
    meanwhile does not inherit this, as it would if they were ignored.
    """
    for signum in set(USERS) - set(also):
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, lambda *_: None)
