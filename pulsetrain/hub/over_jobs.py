"""Forgets jobs that have been over for a while. The store has them then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub import check_watch
from pulsetrain.records.findings import Finding

PERIOD_S = 60.0
KEPT_S = 3600.0
UNRECORDED_KEPT_S = 86_400.0
"""for a job that is not on record, as one that did no step"""


class OverJobsOf(Protocol):
    """The jobs of a hub."""

    def over_s(self) -> Mapping[str, float]:
        """For how many seconds each job that is over has been so."""
        ...

    def forget(self, job: str) -> None:
        """Keep a job that is over no longer."""
        ...


class Found(Protocol):
    """What is open of a job."""

    def of_machines(self, job: str) -> Mapping[str, Sequence[Finding]]:
        """Open findings about machines and links, by source."""
        ...


class OverJobs:
    """Drops a job once it has been over for an hour and its end is on record, and tells who remembers it.

    One whose nodes failed a check stays: its alerts are renewed as long as it is here.
    """

    def __init__(
        self,
        jobs: OverJobsOf,
        is_on_record: Callable[[str], bool],
        found: Found,
        forgetters: Sequence[Callable[[str], None]],
    ) -> None:
        self._jobs, self._is_on_record = jobs, is_on_record
        self._found, self._forgetters = found, forgetters

    async def turn(self) -> float:
        """Look at every job that is over."""
        failures = FailureCollector()
        for job, over_s in self._jobs.over_s().items():
            if over_s < KEPT_S or self._found.of_machines(job).get(check_watch.SOURCE):
                continue
            if over_s >= UNRECORDED_KEPT_S or self._is_on_record(job):
                for forget in (self._jobs.forget, *self._forgetters):
                    with failures.collect(f"job {job}"):
                        forget(job)
        failures.raise_any()
        return PERIOD_S
