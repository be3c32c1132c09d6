"""The hub's status and alerts, read together. All that a tab says of a job comes from one snapshot.

Two reads a moment apart may differ. Then the strip would call a job healthy beside ranks that are accused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.alerts import open_alerts
from pulsetrain.dashboard.models.attribution import accused, with_alerts
from pulsetrain.dashboard.models.states import job_state
from pulsetrain.dashboard.source import Source


@dataclass(frozen=True, kw_only=True)
class HubSnapshot:
    """The hub's status and alerts of one moment."""

    status: JsonObject
    alerts: Sequence[JsonObject]

    def live_job(self, name: str) -> JsonObject:
        """The live state of a job, {} for one that the hub does not run."""
        return self._job("jobs", name)

    def job(self, name: str) -> JsonObject:
        """The state of a job, also of one that the hub does not run. {} for one that it does not know."""
        return self.live_job(name) or self._job("past_jobs", name)

    def _job(self, kind: str, name: str) -> JsonObject:
        return next((dict(job) for job in self.status.get(kind, []) if job["job"] == name), {})

    def findings(self, job: str) -> list[JsonObject]:
        """What accuses somebody in a job, the worst first: open findings, and alerts about its machines.

        Of a recording those that it was judged by.
        """
        live = self.live_job(job)
        if not live:
            return list(self.job(job).get("findings", []))
        return with_alerts(live.get("findings", []), self.alerts, job)

    def verdict(self, job: str) -> tuple[str, frozenset[tuple[str, str]]]:
        """How a job is, and who is accused with which sign."""
        return job_state(self.job(job)), frozenset((a.name, a.state) for a in accused(self.findings(job)))

    def looks_like(self, other: HubSnapshot, job: str) -> bool:
        """Whether a page about a job that was drawn from the other one, and its menu, may stay."""
        return self.verdict(job) == other.verdict(job) and (
            open_alerts(self.alerts) == open_alerts(other.alerts)
        )


def take_snapshot(hub: Source) -> HubSnapshot:
    """Read both now. Without an answer about alerts there are none.

    Raises `PulsetrainError` if the hub has never told its status.
    """
    status = hub.status()
    try:
        alerts = hub.alerts()
    except PulsetrainError:
        alerts = []
    return HubSnapshot(status=status, alerts=alerts)
