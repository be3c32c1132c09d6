"""When a hub takes its time, so that watching a healthy job costs little, and when it is prompt.

The law has three parts. While every job is steady, each kind of work uses at most its own small share of the
time, up to a longest wait. Whatever may be trouble, and whoever looks, makes the hub prompt at once. And only
who keeps saying that all is steady keeps it calm: where that ends, the hub is prompt again by itself.

An agent sends its next rows when the last ones are answered. So the hub stores rows at once and is late with
the answer. Rows then come seldom and many at a time, and whoever is in a hurry gets them as soon as the
answers are let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from pulsetrain.core.clock import Clock

STEADY_S = 5.0
"""For so long it counts that all is steady."""
LOOKED_S = 15.0
"""Somebody who has asked something will ask again."""
MESSAGE_S = 3.0
"""An agent that says more than its heartbeat has news."""
ANSWER_SHARE = 0.01
"""How much of the time inserts use while all is steady."""
LONGEST_REST_S = 6.0
"""No answer waits longer, whatever inserts cost."""


def calm_wait_s(cost_s: float, share: float, shortest_s: float, longest_s: float) -> float:
    """Seconds from one piece of work to the next, of which it uses `share`, within bounds.

    >>> [calm_wait_s(cost_s, 0.01, 1.0, 8.0) for cost_s in (0.001, 0.04, 0.5)]
    [1.0, 4.0, 8.0]
    """
    return min(max(cost_s / share, shortest_s), longest_s)


class WatchPace:
    """Whether the hub is calm, and how long answers to agents rest then. It belongs to one event loop.

    `spent_s` says for how many seconds rows have been inserted since the start.
    """

    def __init__(self, clock: Clock, spent_s: Callable[[], float] = lambda: 0.0) -> None:
        self._clock, self._spent_s = clock, spent_s
        self._steady_until_s = self._prompt_until_s = self._rest_until_s = -math.inf
        self._counted_s = 0.0
        self._released = asyncio.Event()

    @property
    def calm(self) -> bool:
        """Whether all is steady and nobody waits."""
        now_s = self._clock.monotonic_s()
        return self._prompt_until_s <= now_s < self._steady_until_s

    def steady(self, seconds: float = STEADY_S) -> None:
        """Nothing needs attention now. It holds for a short while."""
        self._steady_until_s = self._clock.monotonic_s() + seconds

    def unsteady(self) -> None:
        """Something may need attention. It holds until the next `steady`."""
        self._steady_until_s = -math.inf
        self._release()

    def prompt(self, seconds: float) -> None:
        """Be prompt for so long, whatever else is said."""
        self._prompt_until_s = max(self._prompt_until_s, self._clock.monotonic_s() + seconds)
        self._release()

    def looked(self) -> None:
        """Somebody has asked for stored rows."""
        self.prompt(LOOKED_S)

    def message(self) -> None:
        """An agent has news."""
        self.prompt(MESSAGE_S)

    def rest_s(self) -> float:
        """For how long an answer should wait that is ready now. All that are ready meanwhile end together."""
        if not self.calm:
            return 0.0
        now_s = self._clock.monotonic_s()
        if now_s >= self._rest_until_s:
            spent_s = self._spent_s()
            cost_s, self._counted_s = spent_s - self._counted_s, spent_s
            self._rest_until_s = now_s + calm_wait_s(cost_s, ANSWER_SHARE, 0.0, LONGEST_REST_S)
        return self._rest_until_s - now_s

    async def rest(self) -> None:
        """Let an answer wait."""
        rest_s = self.rest_s()
        if rest_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), rest_s)

    def _release(self) -> None:
        """Let every answer go that waits."""
        released, self._released = self._released, asyncio.Event()
        released.set()
        self._rest_until_s = -math.inf
