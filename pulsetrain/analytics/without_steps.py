"""An attempt that has no step: who is slow by rounds of collectives, and when its machines are looked at."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.analytics.machines.job_hardware import JobHardware
from pulsetrain.analytics.slowness import stepless
from pulsetrain.analytics.verdict import Inconclusive, Verdict
from pulsetrain.stream.queries import analysis, machines
from pulsetrain.stream.queries.machines import AttemptTime
from pulsetrain.stream.queries.queryable import Queryable

S = 1_000_000_000
LOOKED_NS = 120 * S  # of samples and lines of a running job, and a minute before
MARGIN_NS = 60 * S  # samples of GPUs are this much older than operations at most, and clocks this far apart
NO_STEP = Inconclusive(analyzer="analyze", reason="no step on record yet", blind=True)


def rounds(
    newest: stepless.Newest, store: Queryable, job: str, attempt: int, *, now_ns: int
) -> list[Verdict]:
    """What `stepless.analyze` says, with the models of the ranks' GPUs."""
    seconds = [second for _, second in newest.seconds]
    during = AttemptTime(
        job=job,
        attempt=attempt,
        from_ns=min(seconds) * S - MARGIN_NS,
        to_ns=max(seconds) * S + MARGIN_NS,
    )
    hardware = JobHardware.read_at(store, during)
    return stepless.analyze(newest, store, job, attempt, now_ns=now_ns, hardware=hardware)


@dataclass(frozen=True, kw_only=True)
class WithoutSteps:
    """An attempt that has no step. `newest` are its operations, None where they were not asked for."""

    store: Queryable
    job: str
    attempt: int
    now_ns: int
    newest: stepless.Newest | None = None

    @classmethod
    def read(
        cls, store: Queryable, job: str, attempt: int | None, now_ns: int, *, operations: bool
    ) -> WithoutSteps:
        """What is stored. `attempt` defaults to the newest with any span. `operations`: read these too."""
        attempt = analysis.attempt_of_operations(store, job) if attempt is None else attempt
        newest = stepless.newest(store, job, attempt) if operations else None
        return cls(store=store, job=job, attempt=attempt, now_ns=now_ns, newest=newest)

    def rounds(self) -> list[Verdict]:
        """Who is slow by rounds, and that analyzers of steps are blind. Nothing without operations."""
        if self.newest is None:
            return []
        return [NO_STEP, *rounds(self.newest, self.store, self.job, self.attempt, now_ns=self.now_ns)]

    def during(self, *, scan: bool) -> AttemptTime | None:
        """The time of its newest operations, all of its time with `scan`. None: nothing of it is stored.

        Without operations it lasts until now.
        """
        began = machines.topology_began(self.store, self.job, self.attempt)
        if began is None and self.newest is None:
            return None
        ended = self.now_ns if self.newest is None else max(s for _, s in self.newest.seconds) * S
        newest = min(ended, self.now_ns) - LOOKED_NS
        begin = newest if began is None else began if scan else max(began, newest)
        return AttemptTime(
            job=self.job,
            attempt=self.attempt,
            from_ns=begin - MARGIN_NS,
            to_ns=ended + MARGIN_NS if scan else max(self.now_ns, ended),
        )
