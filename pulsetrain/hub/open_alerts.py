"""Keeps alerts on machines and links alive while their findings are open, whatever the job does meanwhile.

An alert that nobody reports ends after some minutes. Analyzers report while a job trains, and findings of
machines belong to no attempt. A port that is down stays down while the job waits for a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pulsetrain.analytics.verdict import Finding
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub import check_watch
from pulsetrain.hub.live_watch import Watched
from pulsetrain.hub.reporter import AlertSink
from pulsetrain.recovery.nodes import GONE
from pulsetrain.recovery.transitions import TERMINAL

PERIOD_S = 30.0


class OpenFindings(Protocol):
    """What is open of a job."""

    def of_machines(self, job: str) -> Mapping[str, Sequence[Finding]]:
        """Open findings about machines and links, by source."""
        ...


class OpenAlerts:
    """Renews the alerts of open findings about machines and links.

    Of a job that is over nobody looks at machines any more, so only what checks found goes on.
    """

    def __init__(
        self, jobs: Mapping[str, Watched], found: OpenFindings, alerts: AlertSink, clock: Clock
    ) -> None:
        self._jobs, self._found, self._alerts, self._clock = jobs, found, alerts, clock

    async def turn(self) -> float:
        """Look at every job."""
        failures = FailureCollector()
        for name, job in list(self._jobs.items()):
            with failures.collect(f"job {name}"):
                self.look(name, job)
        failures.raise_any()
        return PERIOD_S

    def look(self, name: str, job: Watched) -> None:
        """Look at one job."""
        snapshot, sources = job.snapshot(), self._found.of_machines(name)
        if snapshot.phase in TERMINAL:
            sources = {s: seen for s, seen in sources.items() if s == check_watch.SOURCE}
        gone = {node.name for node in snapshot.nodes if node.state in GONE}
        known = [
            finding
            for source, seen in sources.items()
            for finding in seen
            if source == check_watch.SOURCE or finding.evidence.get("node") not in gone
        ]
        if known:
            self._alerts.observe(known, self._clock.wall_ns(), job=name)
