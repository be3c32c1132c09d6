"""What counts towards giving a job up. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from pulsetrain.recovery.memory import RestartMemory

UNEXPLAINED_S = 86400.0  # after so long a fault that names nobody is no second one


@dataclass(kw_only=True)
class Restarts:
    """What counts towards giving up.

    `idle` attempts in a row did no useful work and failed by themselves. `idle_lost` counts for each node
    those that ended because it was lost. `unrestorable` holds (rank, step) of checkpoints that turned
    out to be whole nowhere, until an attempt trains again. `unexplained` counts faults in a row that name
    nobody and whose checks found nobody, each within a day of the one before, and `unexplained_s` is when the
    last one was. `by_node` has the times at which a fault of a node has stopped the job, `failed_from` how
    often an attempt failed soon after that step. `errors` has the nodes whose ranks ended with an error,
    `killed_for_memory` the ranks that the kernel killed because memory was short, by node. A new hub knows
    neither.
    """

    used: int = 0
    idle: int = 0
    idle_lost: Counter[str] = field(default_factory=Counter)
    unexplained: int = 0
    unexplained_s: float = -math.inf
    by_node: dict[str, list[float]] = field(default_factory=dict)
    failed_from: Counter[int] = field(default_factory=Counter)
    unrestorable: set[tuple[int, int]] = field(default_factory=set)
    errors: dict[str, frozenset[str]] = field(default_factory=dict)
    killed_for_memory: dict[str, frozenset[int]] = field(default_factory=dict)

    def forget_idle(self) -> None:
        """An attempt did a step, or the next one is unlike those that did none."""
        self.idle = 0
        self.idle_lost.clear()

    def count_unexplained(self, now_s: float) -> None:
        """A fault that names nobody."""
        if now_s - self.unexplained_s > UNEXPLAINED_S:
            self.unexplained = 0
        self.unexplained, self.unexplained_s = self.unexplained + 1, now_s

    def kept(self, now_s: float, now_ns: int) -> RestartMemory:
        """What a new hub must know. `now_s` and `now_ns` are the same moment."""
        return RestartMemory(
            used=self.used,
            idle=self.idle,
            idle_lost=dict(self.idle_lost),
            unexplained=self.unexplained,
            unexplained_ns=max(0, now_ns - int(min(now_s - self.unexplained_s, now_ns / 1e9) * 1e9)),
            by_node_ns={
                node: [now_ns - int((now_s - time_s) * 1e9) for time_s in times_s]
                for node, times_s in self.by_node.items()
            },
            failed_from=sorted([step, times] for step, times in self.failed_from.items()),
            unrestorable=sorted([rank, step] for rank, step in self.unrestorable),
        )

    @classmethod
    def recalled(cls, memory: RestartMemory, now_s: float, now_ns: int) -> Restarts:
        """The same in a new hub."""
        return cls(
            used=memory.used,
            idle=memory.idle,
            idle_lost=Counter(memory.idle_lost),
            unexplained=memory.unexplained,
            unexplained_s=now_s - max(0, now_ns - memory.unexplained_ns) / 1e9,
            by_node={
                node: [now_s - max(0, now_ns - time_ns) / 1e9 for time_ns in times_ns]
                for node, times_ns in memory.by_node_ns.items()
            },
            failed_from=Counter({step: times for step, times in memory.failed_from}),
            unrestorable={(rank, step) for rank, step in memory.unrestorable},
        )
