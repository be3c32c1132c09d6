"""Findings that were open when an earlier hub ended. Before it has looked a hub must not say "healthy"."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from pulsetrain.core.clock import Clock
from pulsetrain.hub.finding_dedup import ORDER, Key, key, worst_first
from pulsetrain.hub.summary import TROUBLES, trouble_state
from pulsetrain.records.findings import Finding

LOOKS_S = 15.0
"""After the first report about a job all detectors have looked at it within so many seconds."""

Asked = Callable[[Finding], bool]


class CarriedOver:
    """What earlier hubs saw last of each job. It counts until this hub has had time to look for itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, dict[Key, Finding]] = {}
        self._until_s: dict[str, float] = {}

    def take(self, past: Iterable[Finding], was_open: Asked) -> None:
        """`past` are findings on record. `was_open` says of which the alert is still active."""
        for finding in sorted(past, key=lambda f: f.ts_ns):
            if was_open(finding):
                self._open.setdefault(finding.job, {})[key(finding)] = finding

    def looked(self, job: str) -> None:
        """A detector of this hub reports on a job."""
        if job in self._open:
            self._until_s.setdefault(job, self._clock.monotonic_s() + LOOKS_S)

    def beside(self, job: str, attempt: int, seen: Collection[Finding]) -> list[Finding]:
        """`seen` with those of an attempt that no detector has reported yet, the worst first."""
        if job in self._open and self._clock.monotonic_s() >= self._until_s.get(job, float("inf")):
            del self._open[job]
        known = set(map(key, seen))
        others = [f for k, f in self._open.get(job, {}).items() if f.attempt == attempt and k not in known]
        return sorted(
            worst_first([*seen, *others]),
            key=lambda f: (ORDER[f.severity], TROUBLES.index(trouble_state(f))),
        )
