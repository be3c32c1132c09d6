"""The store as the analysis asks it: analyzers, newest step, findings of earlier hubs."""

from __future__ import annotations

from pulsetrain.analytics.analyze import MACHINE_ANALYZERS, analyze, for_device
from pulsetrain.analytics.slowness.device_peaks import Peak
from pulsetrain.analytics.verdict import Verdict
from pulsetrain.records.findings import Finding, recorded
from pulsetrain.stream.queries import views
from pulsetrain.stream.queries.queryable import Queryable
from pulsetrain.stream.queries.storage import stored_step

MOST_FINDINGS = 1000


class StoreRecords:
    """`StoredRecords` over a store. `device` is what all ranks run on, None where that is unknown."""

    def __init__(self, store: Queryable, device: Peak | None = None) -> None:
        analyzers = for_device(device)
        self._store = store
        self._of_machines = {n: a for n, a in analyzers.items() if n in MACHINE_ANALYZERS}
        self._of_steps = {n: a for n, a in analyzers.items() if n not in MACHINE_ANALYZERS}

    def verdicts(self, job: str, attempt: int, now_ns: int, *, machines: bool) -> list[Verdict]:
        """What the analyzers of machines, or those of steps and ranks, say."""
        analyzers = self._of_machines if machines else self._of_steps
        return analyze(self._store, job, attempt=attempt, now_ns=now_ns, analyzers=analyzers)

    def newest_step(self, job: str, attempt: int) -> int:
        """The newest step that is stored of any rank, -1 for none."""
        return stored_step(self._store, job, attempt)

    def past_findings(self, job: str) -> list[Finding]:
        """What earlier hubs have found in this job, newest first."""
        table = views.findings(self._store, job, limit=MOST_FINDINGS)
        return [recorded(job, row) for row in table.to_pylist()]
