"""What a person decides on a hang that is named and not acted on: wait, or restart now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.hang_patience import DECISIONS
from pulsetrain.recovery.snapshot import JobSnapshot

LONGEST_S = 7 * 86400.0


@dataclass(frozen=True, kw_only=True)
class HangDecision:
    """`what` is "wait" or "now". `seconds` is how long to wait. Raises `UsageError` for other values."""

    what: str
    reason: str
    actor: str
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.what not in DECISIONS:
            raise UsageError(f"decision = {self.what!r}: allowed {' or '.join(DECISIONS)}")
        if self.what == "wait" and not 0 < self.seconds <= LONGEST_S:
            raise UsageError(f"seconds = {self.seconds}: allowed above 0, {LONGEST_S:.0f} at most")

    def detail(self) -> dict[str, object]:
        """Return the decision as the detail of its event."""
        return {"decision": self.what, "reason": self.reason, "seconds": self.seconds}


class HangAnswer(TypedDict):
    """The state of a job's hang as the API shows it. `decision` is what was asked for, "" for nothing.

    `pending_hang` is None where no hang is pending. `can_do` says whether the decision changes anything.
    """

    job: str
    decision: str
    dry_run: bool
    can_do: bool
    pending_hang: dict[str, object] | None


def answer(job: JobSnapshot, decision: str = "", *, dry_run: bool = False) -> HangAnswer:
    """Return what is pending, and whether `decision` can be carried out."""
    pending = job.pending_hang
    return {
        "job": job.job,
        "decision": decision,
        "dry_run": dry_run,
        "can_do": decision == "wait" or pending is not None,
        "pending_hang": pending.row() if pending else None,
    }
