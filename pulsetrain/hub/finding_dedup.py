"""Which findings are new: a finding that stays is reported once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pulsetrain.records.findings import Finding, Severity

Key = tuple[str, str, str, int]


def key(finding: Finding) -> Key:
    """What makes two findings the same trouble."""
    return (finding.kind, finding.subject_type, finding.subject, finding.attempt)


ORDER: Mapping[Severity, int] = MappingProxyType({"critical": 0, "warning": 1, "info": 2})


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by severity, then by confidence."""
    return sorted(findings, key=lambda f: (ORDER[f.severity], -f.confidence))


@dataclass(kw_only=True)
class _Open:
    """A finding that was reported, at which severity, and for how many looks in a row it has been absent."""

    finding: Finding
    reported: Severity
    absent: int = 0


class FindingDedup:
    """Findings of one job over repeated looks. An open finding ends after `patience` looks without it.

    A finding less confident than `sure` is reported only when the next look sees it again: chance seldom
    repeats itself. One that becomes worse than information is reported again in the same way.
    """

    def __init__(self, patience: int = 3, sure: float = 0.0) -> None:
        self._patience, self._sure = patience, sure
        self._open: dict[Key, _Open] = {}
        self._doubtful: set[Key] = set()

    @property
    def doubtful(self) -> bool:
        """Whether the last look saw something that another look should confirm."""
        return bool(self._doubtful)

    def look(self, findings: Iterable[Finding]) -> list[Finding]:
        """Take one look's findings. Returns those that begin now."""
        now = {key(f): f for f in findings}
        unknown = {k: f for k, f in now.items() if k not in self._open or self._rose(k, f)}
        new = [f for k, f in unknown.items() if f.confidence >= self._sure or k in self._doubtful]
        self._doubtful = unknown.keys() - {key(f) for f in new}
        for k, item in list(self._open.items()):
            item.absent = 0 if k in now else item.absent + 1
            item.finding = now.get(k, item.finding)
            if item.absent >= self._patience:
                del self._open[k]
        self._open.update({key(f): _Open(finding=f, reported=f.severity) for f in new})
        return new

    def _rose(self, name: Key, finding: Finding) -> bool:
        """Whether what was reported as information is more than that now."""
        return self._open[name].reported == "info" and finding.severity != "info"

    def current(self) -> list[Finding]:
        """Open findings, worst first."""
        return worst_first(item.finding for item in self._open.values())
