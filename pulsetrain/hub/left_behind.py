"""Whether "nobody is slow" is said of all ranks of a job, or of some only.

Ranks are compared over the newest steps that are stored. One that works by itself and is slow falls behind
until it has none of them, as does one that makes no steps. Then the others are healthy, and the job is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.analytics.analyze import DEFAULT_WINDOW_STEPS
from pulsetrain.analytics.slowness import straggler
from pulsetrain.analytics.slowness.by_design import listed
from pulsetrain.analytics.verdict import Healthy, Inconclusive, Verdict
from pulsetrain.recovery.snapshot import JobSnapshot

LATE_S = 20.0
"""Rows of a node may come so late. What is said changes only where the ranks did for as long."""


class LeftBehind:
    """Remembers of one attempt since when ranks are missing among those that were compared."""

    def __init__(self) -> None:
        self._reason = ""
        self._other_s: float | None = None  # since when ranks say otherwise

    def look(self, job: JobSnapshot, verdicts: Sequence[Verdict], now_s: float) -> list[Verdict]:
        """The verdicts. One that finds nobody slow and is not on all ranks is inconclusive."""
        return [self._judge(job, v, now_s) if isinstance(v, Healthy) else v for v in verdicts]

    def of_steps(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts of other analyzers of steps. They see the same ranks: none finds nothing on all."""
        return [
            Inconclusive(analyzer=v.analyzer, reason=self._reason, numbers=v.numbers)
            if self._reason and isinstance(v, Healthy)
            else v
            for v in verdicts
        ]

    def _judge(self, job: JobSnapshot, verdict: Healthy, now_s: float) -> Verdict:
        compared = verdict.numbers.get("ranks")
        if verdict.analyzer != straggler.NAME or compared is None:
            return verdict
        missing = compared < job.world_size
        if missing == bool(self._reason):
            self._other_s = None
        elif self._other_s is None:
            self._other_s = now_s
        elif now_s - self._other_s >= LATE_S:
            self._reason, self._other_s = "" if self._reason else "missing", None
        if self._reason and missing:
            self._reason = f"only {compared} of {job.world_size} ranks were compared: {_why(job)}"
        return Inconclusive(analyzer=straggler.NAME, reason=self._reason) if self._reason else verdict


def _why(job: JobSnapshot) -> str:
    """What heartbeats say of the ranks that are missing."""
    steps = {status.rank: status.last_step for status in job.statuses()}
    newest = job.last_step
    none = sorted(rank for rank, step in steps.items() if step < 0 <= newest)
    behind = {r: newest - s for r, s in steps.items() if s >= 0 and newest - s >= DEFAULT_WINDOW_STEPS}
    told = [f"{listed(none)} made no step"] if none else []
    if behind:
        verb = "is" if len(behind) == 1 else "are"
        told.append(f"{listed(sorted(behind))} {verb} {min(behind.values()):,} or more steps behind")
    return ", ".join(told) or "nothing that is new is stored of the others"
