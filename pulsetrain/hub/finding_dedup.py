"""Which findings are new: a finding that stays is reported once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pulsetrain.analytics.verdict import not_known_now
from pulsetrain.records.findings import Finding, Severity

HELD_S = 1800.0
"""For so long at most a finding stays of which it is not known whether it goes on."""

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
    """A finding that was reported, at which severity, and for how many looks it has been absent since."""

    finding: Finding
    reported: Severity
    began_s: float
    seen_s: float
    absent: int = 0
    unknown: str = ""
    """Why it is not known whether it goes on."""

    def may_go_on(self, now_s: float) -> bool:
        """Whether it was seen for as long as it is not known now, so that chance seldom lasts for longer."""
        return now_s - self.seen_s <= min(HELD_S, self.seen_s - self.began_s)


class FindingDedup:
    """Findings of one job over repeated looks. An open finding ends after `patience` looks without it.

    A finding less confident than `sure` is reported only when the next look sees it again: chance seldom
    repeats itself. One that becomes worse than information is reported again in the same way. One of which it
    is not known whether it goes on stays for as long as it was seen before, for `HELD_S` at most.
    """

    def __init__(self, patience: int = 3, sure: float = 0.0) -> None:
        self._patience, self._sure = patience, sure
        self._open: dict[Key, _Open] = {}
        self._doubtful: set[Key] = set()

    @property
    def doubtful(self) -> bool:
        """Whether the last look saw something that another look should confirm."""
        return bool(self._doubtful)

    def look(
        self,
        findings: Iterable[Finding],
        *,
        now_s: float = 0.0,
        why_unknown: Callable[[Finding], str] = lambda _: "",
    ) -> list[Finding]:
        """Take one look's findings. Returns those that begin now.

        `why_unknown` says of an open finding that is absent why it is not known whether it goes on. "": it is
        known that it does not.
        """
        now = {key(f): f for f in findings}
        unknown = {k: f for k, f in now.items() if k not in self._open or self._rose(k, f)}
        new = [f for k, f in unknown.items() if f.confidence >= self._sure or k in self._doubtful]
        self._doubtful = unknown.keys() - {key(f) for f in new}
        for k, item in list(self._open.items()):
            reason = "" if k in now else why_unknown(item.finding)
            if k in now:
                item.finding, item.seen_s, item.absent, item.unknown = now[k], now_s, 0, ""
            elif reason and item.may_go_on(now_s):
                item.unknown = reason
            else:
                item.absent += 1
            if item.absent >= self._patience:
                del self._open[k]
        for finding in new:
            before = self._open.get(key(finding))
            began_s = before.began_s if before else now_s
            self._open[key(finding)] = _Open(
                finding=finding, reported=finding.severity, began_s=began_s, seen_s=now_s
            )
        return new

    def _rose(self, name: Key, finding: Finding) -> bool:
        """Whether what was reported as information is more than that now."""
        return self._open[name].reported == "info" and finding.severity != "info"

    def current(self) -> list[Finding]:
        """Open findings, worst first."""
        return worst_first(
            not_known_now(item.finding, item.unknown) if item.unknown else item.finding
            for item in self._open.values()
        )
