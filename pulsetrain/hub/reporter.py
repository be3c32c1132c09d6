"""Carries findings to those who act on them: the job, the store, the alerts and the list of incidents."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pulsetrain.analytics.slowness.open_slowdowns import KEPT
from pulsetrain.analytics.verdict import Finding, Verdict
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub.carried_over import CarriedOver
from pulsetrain.hub.finding_dedup import Key, key
from pulsetrain.hub.open_since import OpenSince

MOST_REPORTED = 1000
SHOWN_S = 7 * 86_400
"""For so long incidents of jobs that are over are shown."""
MACHINE_SOURCES = ("hardware", "checks")
NO_ATTEMPT = -1
"""of findings that metrics and logs of a machine give"""


class Observer(Protocol):
    """A job that decides what follows from findings."""

    def observe(self, new: Iterable[Finding], still_open: Iterable[Finding]) -> None:
        """Take the findings that begin now, and all that are open."""
        ...


class FindingWriter(Protocol):
    """Writes findings to the store. Must not block."""

    def finding(self, finding: Finding) -> None:
        """Write one."""
        ...


class AlertSink(Protocol):
    """The alerts, as far as verdicts go in."""

    def observe(self, verdicts: Iterable[Verdict], now_ns: int, *, job: str = "") -> None:
        """Take in verdicts. `job` is for those that name none."""
        ...


class Reporter:
    """Remembers for each job what was reported, what is still open, and what each detector says."""

    def __init__(
        self, jobs: Mapping[str, Observer], writer: FindingWriter, alerts: AlertSink, clock: Clock
    ) -> None:
        self._jobs, self._writer, self._alerts, self._clock = jobs, writer, alerts, clock
        self._since, self._carried_over = OpenSince(clock), CarriedOver(clock)
        self._reported: dict[str, deque[Finding]] = {}
        self._forgotten_s: dict[str, float] = {}
        self._open: dict[str, dict[str, list[Finding]]] = {}
        self._detectors: dict[str, list[Verdict]] = {}

    def report(self, job: str, source: str, new: Sequence[Finding], still_open: Sequence[Finding]) -> None:
        """`new` findings of a job begin now. `still_open` are all that `source` sees, `new` included.

        The job decides first: that must not wait for the store or the alerts. It hears at each look what is
        still open, because a hang that may be a pause is acted on late. What an earlier hub recorded and
        goes on is new to the job, and neither recorded again nor another incident.
        """
        self._open.setdefault(job, {})[source] = list(still_open)
        self._forgotten_s.pop(job, None)
        self._carried_over.looked(job)
        begun = [f for f in new if not self._since.goes_on(job, f)]
        self._since.note(job, source, still_open)
        told_more = self._with_levels(job, [f for f in still_open if f not in new])
        self._of(job).extend(begun)
        failures = FailureCollector()
        with failures.collect("the job's decision"):
            self._jobs[job].observe(new, [f for seen in self._open[job].values() for f in seen])
        for finding in [*begun, *told_more]:
            with failures.collect("the record of a finding"):
                self._writer.finding(finding)
        if new:
            with failures.collect("the alerts"):
                self._alerts.observe(new, self._clock.wall_ns(), job=job)
        failures.raise_any()

    def detectors(self, job: str, attempt: int, verdicts: Sequence[Verdict]) -> None:
        """What every detector of a job says now. Keeps its alerts alive, those of open findings too."""
        self._detectors[job] = list(verdicts)
        others = [v for v in verdicts if not isinstance(v, Finding)]
        self._alerts.observe([*others, *self.open(job, attempt)], self._clock.wall_ns(), job=job)

    def recall(self, past: Sequence[Finding], was_open: Callable[[Finding], bool] = lambda _: False) -> None:
        """Findings of earlier hubs, the newest of each job first: their incidents outlive a restart.

        Those that were open then count as open until this hub has looked for itself.
        """
        past = _last_told(past)
        self._since.recall(past)
        self._carried_over.take(past, was_open)
        for finding in past:
            self._of(finding.job).appendleft(finding)

    def open(self, job: str, attempt: int) -> list[Finding]:
        """Findings of an attempt that are still there, the worst first, from whatever source.

        After a restart of the hub those that were open before are among them, until it has looked.
        """
        sources = self._open.get(job, {})
        seen = [f for source in sorted(sources) for f in sources[source] if f.attempt == attempt]
        return self._carried_over.beside(job, attempt, seen)

    def of_machines(self, job: str) -> dict[str, list[Finding]]:
        """Open findings about machines and links by source, those included that belong to no attempt."""
        sources = self._open.get(job, {})
        return {
            source: [f for f in seen if source in MACHINE_SOURCES or f.attempt == NO_ATTEMPT]
            for source, seen in sources.items()
        }

    def since_ns(self, job: str, finding: Finding) -> int:
        """Since when a finding has been open, UTC nanoseconds. A restart of the hub does not change it."""
        return self._since.of(job, finding)

    def all_open(self) -> list[Finding]:
        """Every finding of any job and attempt that is still there."""
        return [f for sources in self._open.values() for seen in sources.values() for f in seen]

    def verdicts(self, job: str) -> list[Verdict]:
        """What each detector of the store said last."""
        return self._detectors.get(job, [])

    def add(self, job: str, verdicts: Sequence[Verdict]) -> None:
        """Keep and record what was found in a job that does not run here. It raises no alert."""
        self._detectors[job] = list(verdicts)
        known = set(map(key, self.reported(job)))
        new = [v for v in verdicts if isinstance(v, Finding) and key(v) not in known]
        self._of(job).extend(new)
        for finding in new:
            self._writer.finding(finding)

    def reported(self, job: str = "") -> list[Finding]:
        """Every finding that was reported of a job, or of all, oldest first in each job."""
        chosen = [self._of(job)] if job else self._reported.values()
        return [finding for findings in chosen for finding in findings]

    def forget(self, job: str) -> None:
        """A job is not kept any longer. What was reported of it stays for a week: its incidents are shown."""
        self._open.pop(job, None)
        self._detectors.pop(job, None)
        self._since.forget(job)
        now_s = self._clock.monotonic_s()
        self._forgotten_s[job] = now_s
        for name, at_s in list(self._forgotten_s.items()):
            if now_s - at_s > SHOWN_S:
                del self._forgotten_s[name]
                self._reported.pop(name, None)

    def _with_levels(self, job: str, still_open: Sequence[Finding]) -> list[Finding]:
        """Slowdowns that were recorded before it was known what ends them, and now it is.

        They take the place of what was reported, and are recorded once more with its time: without the level
        a later hub could not tell that they go on.
        """
        told_more = []
        for now in (f for f in still_open if KEPT in f.evidence):
            of_job = self._of(job)
            at = next((i for i in reversed(range(len(of_job))) if key(of_job[i]) == key(now)), None)
            if at is not None and KEPT not in of_job[at].evidence:
                of_job[at] = replace(now, ts_ns=of_job[at].ts_ns, severity=of_job[at].severity)
                told_more.append(of_job[at])
        return told_more

    def _of(self, job: str) -> deque[Finding]:
        return self._reported.setdefault(job, deque(maxlen=MOST_REPORTED))


def _last_told(past: Iterable[Finding]) -> list[Finding]:
    """Findings on record, each once: of one that was recorded again with the level before it, that row."""
    rows: dict[tuple[str, Key, int], Finding] = {}
    for finding in past:
        name = (finding.job, key(finding), finding.ts_ns)
        if name not in rows or KEPT in finding.evidence:
            rows[name] = finding
    return list(rows.values())
