"""Which findings are new: a finding that stays is one episode, told once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pulsetrain.records.findings import Finding

Key = tuple[str, str, str, int]


def key(finding: Finding) -> Key:
    """What makes two findings the same trouble."""
    return (finding.kind, finding.subject_type, finding.subject, finding.attempt)


@dataclass(kw_only=True)
class _Episode:
    finding: Finding
    absent: int = 0


class FindingDedup:
    """Findings of one job over repeated looks; an episode ends after `patience` looks without it.

    A finding less sure than `sure` begins one only when the next look finds it again: chance seldom does.
    """

    def __init__(self, patience: int = 3, sure: float = 0.0) -> None:
        self._patience, self._sure = patience, sure
        self._open: dict[Key, _Episode] = {}
        self._doubtful: set[Key] = set()

    @property
    def doubtful(self) -> bool:
        """Whether the last look found something that another look should confirm."""
        return bool(self._doubtful)

    def look(self, findings: Iterable[Finding]) -> list[Finding]:
        """Take one look's findings; returns those that begin an episode."""
        now = {key(f): f for f in findings}
        new = {k: f for k, f in now.items() if k not in self._open}
        fresh = [f for k, f in new.items() if f.confidence >= self._sure or k in self._doubtful]
        self._doubtful = new.keys() - {key(f) for f in fresh}
        for k, episode in list(self._open.items()):
            episode.absent = 0 if k in now else episode.absent + 1
            episode.finding = now.get(k, episode.finding)
            if episode.absent >= self._patience:
                del self._open[k]
        self._open.update({key(f): _Episode(finding=f) for f in fresh})
        return fresh

    def current(self) -> list[Finding]:
        """Findings of open episodes, worst first."""
        order = {"critical": 0, "warning": 1, "info": 2}
        return sorted(
            (e.finding for e in self._open.values()), key=lambda f: (order[f.severity], -f.confidence)
        )

    def clear(self) -> None:
        """Forget everything: the job was relaunched."""
        self._open.clear()
        self._doubtful.clear()
