"""Moments at which all nodes of a job send what they have recorded.

The hub stores by one insert what comes at the same time, and each insert costs about the same. And a step is
known as soon as the slowest of its nodes has sent it. So nodes that send together cost less and wait less.
Their wall clocks must agree to about 0.1 s, as NTP keeps them. Clocks that differ cost nothing else.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

SPREAD_NODE_S = 0.002  # how long a hub takes to accept what one node sends
SHORTEST_S = 0.2  # sending more often than this is not put off


@dataclass(frozen=True, kw_only=True)
class SharedTicks:
    """Ticks every `period_s` of the wall clock, and every half, third and quarter of it and so on.

    `offset_s` is this node's place behind each tick.
    """

    period_s: float
    offset_s: float = 0.0
    now_s: Callable[[], float] = time.time

    @classmethod
    def of_node(cls, node: str, nnodes: int, period_s: float) -> SharedTicks:
        """The ticks of one of `nnodes` nodes. Many nodes are spread, so that the hub is never flooded.

        >>> SharedTicks.of_node("a", 1, 1.5).offset_s < 0.002
        True
        """
        place = zlib.crc32(node.encode()) / 2**32
        return cls(period_s=period_s, offset_s=place * min(period_s, nnodes * SPREAD_NODE_S))

    def wait_s(self, wanted_s: float) -> float:
        """Return the seconds until the next tick, where ticks are at least `wanted_s` apart.

        Nodes that want about the same get the same ticks, and all get those of the whole period.

        >>> ticks = SharedTicks(period_s=1.0, now_s=lambda: 100.3)
        >>> round(ticks.wait_s(1.0), 3), round(ticks.wait_s(0.45), 3), ticks.wait_s(0.1)
        (0.7, 0.7, 0.1)
        """
        if wanted_s < SHORTEST_S:
            return wanted_s
        period_s = self.period_s / max(1, math.floor(self.period_s / wanted_s))
        now_s = self.now_s() - self.offset_s
        return round(now_s / period_s + 1) * period_s - now_s
