"""Keeps training from running ahead of the replicas in peers' memory, where the agent asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from pulsetrain.checkpoint.memory.arena import Arena
from pulsetrain.checkpoint.save_result import SaveResult

LAG_TIMEOUT_S = 2.0
POLL_S = 0.0002


class PeerLag:
    """Waits for peers that are more than `checkpoint.lag_steps` behind.

    It waits `LAG_TIMEOUT_S` at most. After it waited in vain, it waits no more until peers have caught up.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._arena, self._clock, self._sleep = arena, clock, sleep
        self.gave_up = False
        """The last wait was in vain."""

    def wait(self, last: SaveResult) -> None:
        """Return when peers hold the last save but `lag_steps` - 1. A save that failed is not waited for."""
        lag, deadline = self._arena.lag_steps, 0.0
        while lag and last and self._arena.replicated_step < last.step - lag + 1:
            if not deadline:
                deadline = self._clock() + (0.0 if self.gave_up else LAG_TIMEOUT_S)
            elif self._clock() > deadline:
                self.gave_up = True
                return
            self._sleep(POLL_S)
            lag = self._arena.lag_steps
        self.gave_up = False
