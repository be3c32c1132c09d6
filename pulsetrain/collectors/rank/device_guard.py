"""Gives a device away where its rank stands still: it waits for something that no hook knows.

The hooks know how torch waits for peers. A script may wait by means of its own, such as a file that another
rank writes. A rank that did so with the device would wait for ever for one that needs the same device. So a
thread looks whether the process uses its processor. Where it has not done so for a second, the next rank
gets the device. The rank that stood still has none until its next wait ends, and may compute beside another
one until then. Such turns are counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident

from pulsetrain.collectors.layout import W_DEVICE
from pulsetrain.collectors.rank.device_turns import DeviceTurns

LOOK_S = 0.1
STILL_S = 1.0
STILL_SHARE = 0.05  # of a processor


@dataclass
class Standstill:
    """Tells from the process's own processor time whether it stands still. Pure.

    >>> still = Standstill()
    >>> [still.look(now_s=s, used_s=0.0, turn=7) for s in (0.0, 0.5, 1.1)]
    [False, False, True]
    """

    since_s: float = 0.0
    used_s: float = 0.0
    turn: int = -1

    def look(self, *, now_s: float, used_s: float, turn: int) -> bool:
        """Whether the process has used next to nothing for `STILL_S` in this turn."""
        still_s = now_s - self.since_s
        if turn != self.turn or used_s - self.used_s > STILL_SHARE * max(still_s, STILL_S):
            self.since_s, self.used_s, self.turn = now_s, used_s, turn
            return False
        return still_s >= STILL_S


def _of_thread(ident: int) -> Callable[[], float]:
    """Return what tells how long a thread has used a processor. Other threads may be busy meanwhile."""
    clock = time.pthread_getcpuclockid(ident)
    return lambda: time.clock_gettime(clock)


class DeviceGuard:
    """Watches one rank's turns from a thread of its own, while it shares a device.

    Create it on the rank's main thread.
    """

    def __init__(
        self,
        turns: DeviceTurns,
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] | None = None,
    ) -> None:
        self._turns, self._clock, self._used = turns, clock, used or _of_thread(get_ident())
        self._still = Standstill()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Begin to watch, if it does not watch already."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="device guard", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._turns.words[W_DEVICE]:
            time.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Give the device away where its rank stands still with it."""
        turn = self._turns.turn
        if self._turns.held >= 0 and self._still.look(now_s=self._clock(), used_s=self._used(), turn=turn):
            self._turns.give(lent=True)
