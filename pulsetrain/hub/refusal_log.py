"""What is refused, written to the audit log: once a minute for each token and reason.

So nobody can fill the disk with refusals.
"""

from __future__ import annotations

from collections import Counter

from pulsetrain.core.clock import Clock
from pulsetrain.recovery.journal import Journal

AUDITED_S = 60.0


class RefusalLog:
    """Writes refusals, and how many of their reason there have been."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._journal, self._clock = journal, clock
        self._audited_s: dict[tuple[str, str], float] = {}

    def write(
        self, reason: str, why: str, *, token: str, job: str = "", node: str = "", sender: str = ""
    ) -> None:
        """Count a refusal and write it down. `token`: its name, "" for one without. `sender`: its address."""
        self.counts[reason] += 1
        key, now_s = (reason, token), self._clock.monotonic_s()
        if now_s - self._audited_s.get(key, -AUDITED_S) < AUDITED_S:
            return
        self._audited_s[key] = now_s
        detail = {"reason": reason, "why": why, "token": token, "count": self.counts[reason]}
        if sender:
            detail["sender"] = sender
        self._journal.event("refused", job=job, attempt=-1, detail=detail, node=node, actor="hub")
