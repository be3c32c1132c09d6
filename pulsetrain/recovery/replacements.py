"""Which replacements a job has asked the cluster's scheduler for. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

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

    def joined(self) -> None:
        """A node has joined. It counts as the one that was asked for first."""
        if self.pending_s:
            self.pending_s.popleft()
