"""Decides when a named hang may stop the job: at once if it is certain, else late or never.

A hang is named after seconds. To stop a job that only pauses (rank 0 saves, a long evaluation, a debugger)
would cost it more than any hang. So the job is stopped at once only for a hang that cannot end by itself. Any
other hang must outlast the patience, and twice the longest pause that this job has survived. A job that has
nothing to resume from is never stopped for it, because a restart would lose everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsetrain.recovery.faults import Observation, rank_of

PAUSE_FACTOR = 2  # a hang must last so many times as long as the longest pause that ended by itself


@dataclass(frozen=True, kw_only=True)
class PendingHang:
    """A hang that is named and not acted on. `act_at_ns` is None if the job will not be stopped for it."""

    rank: int
    since_ns: int
    act_at_ns: int | None
    why: str

    def row(self) -> dict[str, object]:
        """Return it as the API shows it."""
        return {"rank": self.rank, "since_ns": self.since_ns, "act_at_ns": self.act_at_ns, "why": self.why}


def is_certain(hang: Observation) -> bool:
    """Return whether the analyzer says that the hang cannot end by itself."""
    return bool(hang.evidence.get("certain"))


class HangPatience:
    """What one job knows of its hangs and pauses. The caller gives the time."""

    def __init__(self, patience_s: float) -> None:
        self.pending: PendingHang | None = None
        self.longest_pause_ns = 0
        self._patience_ns = int(patience_s * 1e9)
        self._acted = False

    def look(self, hangs: Sequence[Observation], now_ns: int, *, can_resume: bool) -> Observation | None:
        """Take the hangs that are open now. Returns the one to act on, once, or None."""
        if not hangs:
            self._end(now_ns)
            return None
        if self._acted:
            return None
        worst = max(hangs, key=lambda hang: (is_certain(hang), hang.confidence))
        since_ns = self.pending.since_ns if self.pending else now_ns
        self.pending = self._pending(worst, since_ns, can_resume=can_resume)
        act_at_ns = self.pending.act_at_ns
        if act_at_ns is None or now_ns < act_at_ns:
            return None
        self._acted, self.pending = True, None
        return worst

    def forget(self) -> None:
        """The job is being stopped: what was open says nothing about the next attempt."""
        self.pending, self._acted = None, False

    def _pending(self, hang: Observation, since_ns: int, *, can_resume: bool) -> PendingHang:
        rank = rank_of(hang)
        if is_certain(hang):
            return PendingHang(
                rank=rank, since_ns=since_ns, act_at_ns=since_ns, why="It cannot end by itself."
            )
        if not can_resume:
            why = "The job is not restarted: it has no checkpoint to resume from, and it may only pause."
            return PendingHang(rank=rank, since_ns=since_ns, act_at_ns=None, why=why)
        wait_ns = max(self._patience_ns, PAUSE_FACTOR * self.longest_pause_ns)
        why = f"The job may only pause. It is restarted if it does not move within {wait_ns / 1e9:.0f} s."
        return PendingHang(rank=rank, since_ns=since_ns, act_at_ns=since_ns + wait_ns, why=why)

    def _end(self, now_ns: int) -> None:
        if self.pending is not None:
            self.longest_pause_ns = max(self.longest_pause_ns, now_ns - self.pending.since_ns)
        self.forget()
