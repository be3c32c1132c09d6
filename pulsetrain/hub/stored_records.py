"""The store as the analysis asks it: analyzers, newest step, findings of earlier hubs."""

from __future__ import annotations

from dataclasses import dataclass, field

from pulsetrain.analytics.analyze import (
    DEFAULT_WINDOW_STEPS,
    MACHINE_ANALYZERS,
    Recent,
    analyze,
    analyze_recent,
    for_device,
)
from pulsetrain.analytics.machines.job_hardware import JobHardware
from pulsetrain.analytics.slowness.device_peaks import Peak
from pulsetrain.analytics.slowness.recent_timings import RecentTimings
from pulsetrain.analytics.slowness.recent_transfers import RecentTransfers
from pulsetrain.analytics.slowness.slowest import Slowest, slowest
from pulsetrain.analytics.verdict import Inconclusive, Verdict
from pulsetrain.stream.queries.queryable import Queryable
from pulsetrain.stream.queries.storage import stored_step

FORGET_NS = 120_000_000_000  # a job that was not asked about for so long has ended


@dataclass
class _Held:
    """What is kept of one attempt between looks."""

    timings: RecentTimings
    transfers: RecentTransfers = field(default_factory=RecentTransfers)
    hardware: JobHardware = field(default_factory=JobHardware)
    reloads: int = 0
    looked_ns: int = 0
    slowest: Slowest | None = None


class StoreRecords:
    """`StoredRecords` over a store. `device` is what all ranks run on, None where that is unknown."""

    def __init__(self, store: Queryable, device: Peak | None = None) -> None:
        analyzers = for_device(device)
        self._store = store
        self._held: dict[str, _Held] = {}
        self._of_machines = {n: a for n, a in analyzers.items() if n in MACHINE_ANALYZERS}
        self._of_steps = {n: a for n, a in analyzers.items() if n not in MACHINE_ANALYZERS}

    def verdicts(self, job: str, attempt: int, now_ns: int, *, machines: bool) -> list[Verdict] | None:
        """What the analyzers of machines, or those of steps and ranks, say. None: nothing new was stored."""
        if machines:
            return analyze(self._store, job, attempt=attempt, now_ns=now_ns, analyzers=self._of_machines)
        self._forget(now_ns)
        held = self._held.get(job)
        if held is None or held.timings.attempt != attempt:
            recent = RecentTimings(job, attempt, window=DEFAULT_WINDOW_STEPS)
            held = self._held[job] = _Held(timings=recent)
        held.looked_ns = now_ns
        return self._look(held, now_ns)

    def newest_step(self, job: str, attempt: int) -> int:
        """The newest step that is stored of any rank, -1 for none. After `verdicts` it is known."""
        held = self._held.get(job)
        if held is not None and held.timings.attempt == attempt:
            return held.timings.last_step
        return stored_step(self._store, job, attempt)

    def slowest(self, job: str, attempt: int) -> Slowest | None:
        """The slowest ranks and nodes as of the last look. None where nothing is known of the attempt."""
        held = self._held.get(job)
        return held.slowest if held is not None and held.timings.attempt == attempt else None

    def _look(self, held: _Held, now_ns: int) -> list[Verdict] | None:
        timings = held.timings.look(self._store, now_ns)
        if timings is None:
            return [Inconclusive(analyzer="analyze", reason="no step on record yet", blind=True)]
        if not held.timings.changed:
            return None
        if held.reloads != held.timings.reloads:
            held.hardware = JobHardware.read(self._store, held.timings.newest)
            held.reloads, held.transfers = held.timings.reloads, RecentTransfers()
        held.transfers.settled_before = held.timings.unsettled
        held.slowest = slowest(timings)
        recent = Recent(timings=timings, transfers=held.transfers, hardware=held.hardware)
        return analyze_recent(self._store, recent, self._of_steps)

    def _forget(self, now_ns: int) -> None:
        """Free what is held of jobs that have ended."""
        for job, held in list(self._held.items()):
            if now_ns - held.looked_ns > FORGET_NS:
                del self._held[job]
