"""Whether a device has more of it if one replica computes an update for all, or if each computes its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

UNCOUNTED = 3  # first updates: tensors move, and pages are written for the first time
COUNTED = 8


@dataclass
class Weighing:
    """What updates of one optimizer took that were handed over.

    >>> weighing = Weighing()
    >>> [weighing.add(left_out_ns=8, spent_ns=9) for _ in range(UNCOUNTED + COUNTED)][-2:]
    [False, True]
    """

    seen: int = 0
    left_out_ns: list[int] = field(default_factory=list)
    spent_ns: list[int] = field(default_factory=list)

    def add(self, *, left_out_ns: int, spent_ns: int) -> bool:
        """Add an update: the time of those left out, and of all that was done for that. True: not worth it.

        It is judged by medians of `COUNTED` updates, again and again.
        """
        self.seen += 1
        if self.seen <= UNCOUNTED:
            return False
        if len(self.spent_ns) == COUNTED:
            self.left_out_ns, self.spent_ns = [], []
        self.left_out_ns.append(left_out_ns)
        self.spent_ns.append(spent_ns)
        return len(self.spent_ns) == COUNTED and self.saved_ns < 0

    @property
    def saved_ns(self) -> int:
        """What an update saves in the middle. Negative: it takes that much longer."""
        return int(median(self.left_out_ns) - median(self.spent_ns))
