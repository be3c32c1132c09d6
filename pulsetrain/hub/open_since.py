"""Since when each open finding has been open, also where an earlier hub saw it first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pulsetrain.core.clock import Clock
from pulsetrain.hub.finding_dedup import Key, key
from pulsetrain.records.findings import Finding

RECALL_S = 120.0
"""For so long after its start a hub takes a finding that an earlier hub recorded for one that goes on."""


def began_ns(finding: Finding) -> int:
    """When the trouble of a finding began: a hang is named after a silence, and its evidence says how long.

    >>> common = {"job": "j", "attempt": 0, "kind": "hang", "subject_type": "rank", "subject": "3"}
    >>> common |= {"severity": "critical", "confidence": 0.9, "summary": "s"}
    >>> began_ns(Finding(ts_ns=10, evidence={"stall_ns": 4}, **common))
    6
    """
    stall_ns = finding.evidence.get("stall_ns", 0)
    return finding.ts_ns - (stall_ns if isinstance(stall_ns, int) else 0)


class OpenSince:
    """Remembers the beginning of every finding that is open, by job and source."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._started_s = clock, clock.monotonic_s()
        self._recorded: dict[tuple[str, Key], Finding] = {}
        self._since: dict[tuple[str, str], dict[Key, int]] = {}

    def recall(self, past: Iterable[Finding]) -> None:
        """Take what earlier hubs recorded: this one begins now. What rose from information to more began as
        information."""
        self._started_s = self._clock.monotonic_s()
        for finding in sorted(past, key=lambda f: f.ts_ns):
            name = (finding.job, key(finding))
            known = self._recorded.get(name)
            if known is None or known.severity != "info" or finding.severity == "info":
                self._recorded[name] = finding

    def goes_on(self, job: str, finding: Finding) -> bool:
        """Whether an earlier hub recorded this finding, and this one has just started."""
        young = self._clock.monotonic_s() - self._started_s < RECALL_S
        return young and (job, key(finding)) in self._recorded

    def note(self, job: str, source: str, still_open: Sequence[Finding]) -> None:
        """Take all findings that a source sees now. What it sees no longer is forgotten."""
        before = self._since.get((job, source), {})
        self._since[job, source] = {
            key(f): before[key(f)] if key(f) in before else self._begin_ns(job, f) for f in still_open
        }

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._since = {name: since for name, since in self._since.items() if name[0] != job}

    def of(self, job: str, finding: Finding) -> int:
        """Since when a finding has been open, UTC nanoseconds."""
        name = key(finding)
        known = [since[name] for (of, _), since in self._since.items() if of == job and name in since]
        return min(known) if known else self._begin_ns(job, finding)

    def _begin_ns(self, job: str, finding: Finding) -> int:
        return began_ns(self._recorded[job, key(finding)] if self.goes_on(job, finding) else finding)
