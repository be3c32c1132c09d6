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

    `pending_s` has those that have not joined yet, `hour_s` those of the last hour. `open_s` has those, by
    number, of which the scheduler has not said what became of them. They are asked for again under their
    number. `in_flight` are being asked for now. Nothing is asked for before `not_before_s`. `told_in` is the
    attempt in which a refusal was written down.
    """

    pending_s: deque[float] = field(default_factory=deque)
    hour_s: deque[float] = field(default_factory=deque)
    open_s: dict[int, float] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    newest: int = 0
    not_before_s: float = -math.inf
    told_in: int = -1

    def kept(self, now_s: float, now_ns: int) -> ReplacementMemory:
        """What a new hub must know. `now_s` and `now_ns` are the same moment."""
        pending_ns, hour_ns, open_ns = (
            [now_ns - int((now_s - time_s) * 1e9) for time_s in times_s]
            for times_s in (self.pending_s, self.hour_s, self.open_s.values())
        )
        opened = list(zip(self.open_s, open_ns, strict=True))
        return ReplacementMemory(pending_ns=pending_ns, hour_ns=hour_ns, open_ns=opened)

    @classmethod
    def recalled(cls, memory: ReplacementMemory, now_s: float, now_ns: int) -> Replacements:
        """The same in a new hub."""
        numbers = [number for number, _ in memory.open_ns]
        open_ns = [time_ns for _, time_ns in memory.open_ns]
        pending_s, hour_s, open_s = (
            deque(now_s - max(0, now_ns - time_ns) / 1e9 for time_ns in times_ns)
            for times_ns in (memory.pending_ns, memory.hour_ns, open_ns)
        )
        opened = dict(zip(numbers, open_s, strict=True))
        return cls(pending_s=pending_s, hour_s=hour_s, open_s=opened, newest=max(numbers, default=0))

    def expire(self, now_s: float, patience_s: float) -> None:
        """Forget what is older."""
        for times_s, age_s in ((self.pending_s, patience_s), (self.hour_s, HOUR_S)):
            while times_s and now_s - times_s[0] > age_s:
                times_s.popleft()
        for number, time_s in list(self.open_s.items()):
            if now_s - time_s > patience_s and number not in self.in_flight:
                del self.open_s[number]

    def asked(self, now_s: float, now_ns: int) -> int:
        """One more is asked for. Returns its number, which no other one of the job has, in any hub."""
        self.newest = max(self.newest + 1, now_ns // 1_000_000_000)
        self.pending_s.append(now_s)
        self.hour_s.append(now_s)
        self.open_s[self.newest] = now_s
        self.in_flight.add(self.newest)
        return self.newest

    def again(self, now_s: float, missing: int) -> list[int]:
        """Numbers of requests that are to be asked for again now, where the job lacks `missing` nodes."""
        waits = [number for number in self.open_s if number not in self.in_flight]
        count = missing - max(0, len(self.pending_s) - len(waits))
        numbers = waits[: max(0, count)] if now_s >= self.not_before_s else []
        self.in_flight.update(numbers)
        return numbers

    def done(self, number: int) -> None:
        """The scheduler has taken a request. Its node joins when there is one."""
        self.in_flight.discard(number)
        self.open_s.pop(number, None)

    def unanswered(self, number: int, retry_s: float) -> None:
        """It is not known what became of a request. None is before the time `retry_s`."""
        self.in_flight.discard(number)
        self.not_before_s = retry_s

    def failed(self, number: int, retry_s: float) -> None:
        """A request was refused, and does not count. None is before the time `retry_s`."""
        self.in_flight.discard(number)
        self.not_before_s = retry_s
        asked_s = self.open_s.pop(number, None)
        for times_s in (self.pending_s, self.hour_s):
            if asked_s is not None and asked_s in times_s:
                times_s.remove(asked_s)

    def joined(self) -> bool:
        """A node has joined. It counts as the one that was asked for first. Returns whether one was."""
        asked = bool(self.pending_s)
        if asked:
            self.pending_s.popleft()
        return asked
