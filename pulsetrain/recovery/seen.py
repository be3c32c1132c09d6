"""What a person saw before deciding. Where it has changed since, nothing is done."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.snapshot import JobSnapshot


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The attempt of the job, the state of a node, and the rank and begin of a hang. None: not looked at."""

    attempt: int | None = None
    state: str | None = None
    rank: int | None = None
    since_ns: int | None = None

    def check(self, job: JobSnapshot, node: str = "") -> None:
        """Raise `UsageError` where `job`, its `node` or its pending hang is not as it was seen."""
        state = next((str(each.state) for each in job.nodes if each.name == node), "gone")
        hang = job.pending_hang
        compared = (
            ("attempt", self.attempt, job.attempt),
            (f"state of node {node!r}", self.state, state),
            ("rank that hangs", self.rank, hang.rank if hang else None),
            ("begin of the hang", self.since_ns, hang.since_ns if hang else None),
        )
        for what, seen, now in compared:
            if seen is not None and seen != now:
                told = "none" if now is None else now
                raise UsageError(
                    f"job {job.job!r} has changed, look again: {what} was {seen} and is {told} now"
                )
