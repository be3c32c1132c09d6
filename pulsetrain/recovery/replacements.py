"""Which replacements a job has asked the cluster's scheduler for. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from pulsetrain.recovery.memory import ReplacementMemory

HOUR_S = 3600.0


@dataclass(kw_only=True)
class Replacements:
    """Replacements that one job has asked for, by the time of the request (monotonic).

    `pending_s` has those that have not joined yet, `hour_s` those of the last hour. Nothing is asked for
    before `not_before_s`. `told_in` is the attempt in which a refusal was written down.
    """

    pending_s: deque[float] = field(default_factory=deque)
    hour_s: deque[float] = field(default_factory=deque)
    not_before_s: float = -math.inf
    told_in: int = -1

    def kept(self, now_s: float, now_ns: int) -> ReplacementMemory:
        """What a new hub must know. `now_s` and `now_ns` are the same moment."""
        pending_ns, hour_ns = (
            [now_ns - int((now_s - time_s) * 1e9) for time_s in times_s]
            for times_s in (self.pending_s, self.hour_s)
        )
        return ReplacementMemory(pending_ns=pending_ns, hour_ns=hour_ns)

    @classmethod
    def recalled(cls, memory: ReplacementMemory, now_s: float, now_ns: int) -> Replacements:
        """The same in a new hub."""
        pending_s, hour_s = (
            deque(now_s - max(0, now_ns - time_ns) / 1e9 for time_ns in times_ns)
            for times_ns in (memory.pending_ns, memory.hour_ns)
        )
        return cls(pending_s=pending_s, hour_s=hour_s)

    def expire(self, now_s: float, patience_s: float) -> None:
        """Forget what is older."""
        for times_s, age_s in ((self.pending_s, patience_s), (self.hour_s, HOUR_S)):
            while times_s and now_s - times_s[0] > age_s:
                times_s.popleft()

    def asked(self, now_s: float) -> None:
        """One more was asked for."""
        self.pending_s.append(now_s)
        self.hour_s.append(now_s)

    def failed(self, retry_s: float) -> None:
        """The newest request could not be made. None is before the time `retry_s`."""
        self.not_before_s = retry_s
        for times_s in (self.pending_s, self.hour_s):
            if times_s:
                times_s.pop()

    def joined(self) -> bool:
        """A node has joined. It counts as the one that was asked for first. Returns whether one was."""
        asked = bool(self.pending_s)
        if asked:
            self.pending_s.popleft()
        return asked
