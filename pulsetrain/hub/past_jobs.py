"""Jobs that this hub does not run: finished ones, those of an earlier hub, and imported recordings.

A recording is judged once it has stopped to grow, by the analyzers of running jobs. It raises no alert: it is
history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from typing import Protocol, TypedDict

from pulsetrain.analytics.verdict import Verdict, findings, state_of
from pulsetrain.core.clock import Clock
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.finding_dedup import worst_first
from pulsetrain.hub.open_since import began_ns
from pulsetrain.hub.past_store import JUDGED, PastJob
from pulsetrain.hub.summary import Summary, trouble_state
from pulsetrain.records.findings import Finding
from pulsetrain.recovery.journal import Journal

LOOK_S = 5.0
SHARE = 20  # looking may use one twentieth of the time
_STATES = {"job_finished": "finished", "job_ended": "ended", "job_failed": "failed"}


class PastRecords(Protocol):
    """What is asked of the store. The calls block, so they run on a thread."""

    def jobs(self) -> list[PastJob]:
        """The newest jobs on record, those that run included."""
        ...

    def judge(self, job: PastJob, now_ns: int) -> list[Verdict]:
        """What the analyzers say of the end of a job."""
        ...


class History(Protocol):
    """Findings by job, as the reporter keeps them."""

    def add(self, job: str, verdicts: Sequence[Verdict]) -> None:
        """Keep and record what was found in a job that does not run here."""
        ...

    def reported(self, job: str = "") -> list[Finding]:
        """Every finding that was reported of a job, or of all."""
        ...

    def verdicts(self, job: str) -> list[Verdict]:
        """What each detector said last."""
        ...


class PastStatus(TypedDict):
    """A job that does not run here, as the status shows it."""

    job: str
    state: str
    attempt: int
    step: int
    world_size: int
    verdict: Summary
    findings: list[JsonObject]
    detectors: list[JsonObject]


class PastJobs:
    """One turn looks at what is on record and judges at most one recording. `running` are the hub's own."""

    def __init__(
        self,
        running: Container[str],
        records: PastRecords,
        history: History,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._running, self._records, self._history = running, records, history
        self._journal, self._clock = journal, clock
        self._jobs: list[PastJob] = []
        self._judged: dict[tuple[str, int], int] = {}

    async def turn(self) -> float:
        """Look once. The next turn comes the later, the longer this one took."""
        began_s = self._clock.monotonic_s()
        before, self._jobs = self._jobs, await asyncio.to_thread(self._records.jobs)
        shown = {(job.job, job.attempt) for job in self._jobs}
        self._judged = {name: step for name, step in self._judged.items() if name in shown}
        took_s = self._clock.monotonic_s() - began_s
        settled = [job for job in self._jobs if job in before and self._is_unjudged(job)]
        if settled:
            await self._judge(settled[0])
        return max(LOOK_S, SHARE * took_s)

    def rows(self) -> list[PastStatus]:
        """The jobs on record that do not run here, newest first."""
        return [self._row(job) for job in self._jobs if job.job not in self._running]

    def has_ended(self, name: str) -> bool:
        """Whether the end of the newest run of a job is on record."""
        return any(job.job == name and job.ending in _STATES for job in self._jobs)

    def _is_unjudged(self, job: PastJob) -> bool:
        judged = max(job.judged_step, self._judged.get((job.job, job.attempt), -1))
        return job.is_recording and job.job not in self._running and judged < job.last_step

    async def _judge(self, job: PastJob) -> None:
        self._judged[job.job, job.attempt] = job.last_step
        verdicts = await asyncio.to_thread(self._records.judge, job, self._clock.wall_ns())
        self._history.add(job.job, verdicts)
        found = [f"{f.kind} {f.subject_type} {f.subject}" for f in findings(verdicts)]
        detail = {"last_step": job.last_step, "findings": found}
        self._journal.event(JUDGED, job=job.job, attempt=job.attempt, detail=detail, actor="hub")

    def _row(self, job: PastJob) -> PastStatus:
        found = worst_first(f for f in self._history.reported(job.job) if f.attempt == job.attempt)
        return {
            "job": job.job,
            "state": "past",
            "attempt": job.attempt,
            "step": job.last_step,
            "world_size": job.ranks,
            "verdict": summarize_past(job, found, judged=not self._is_unjudged(job)),
            "findings": [{**f.row(), "since_ns": began_ns(f)} for f in found] if job.is_recording else [],
            "detectors": [state_of(verdict) for verdict in self._history.verdicts(job.job)],
        }


def summarize_past(job: PastJob, found: Sequence[Finding], *, judged: bool = True) -> Summary:
    """How a job on record is. `found` is what was found in its newest attempt, the worst first.

    >>> job = PastJob(job="j", attempt=0, first_step=0, last_step=9, last_ns=5, ranks=4)
    >>> summarize_past(job, [])["sentence"]
    'Recorded up to step 9, 4 ranks: no fault seen.'
    """
    if job.ending in _STATES:
        return {"state": _STATES[job.ending], "sentence": _ending(job), "since_ns": job.ended_ns}
    if not job.is_recording:
        steps = (
            f"Its last step on record is {job.last_step}." if job.last_step >= 0 else "No step is on record."
        )
        sentence = f"No agent of this job is connected. {steps}"
        return {"state": "no_data", "sentence": sentence, "since_ns": job.last_ns}
    recorded = f"Recorded up to step {job.last_step}, {job.ranks} ranks"
    worst = next((f for f in found if f.severity != "info"), None)
    if worst is not None:
        sentence = f"{worst.summary} {recorded}."
        since_ns = min(began_ns(worst), job.last_ns)
        return {"state": trouble_state(worst), "sentence": sentence, "since_ns": since_ns}
    verdict = "no fault seen" if judged else "not judged yet"
    return {"state": "recorded", "sentence": f"{recorded}: {verdict}.", "since_ns": job.last_ns}


def _ending(job: PastJob) -> str:
    steps = f"after step {job.last_step}" if job.last_step >= 0 else "no step on record"
    if job.ending == "job_finished":
        return f"Finished {steps}." if job.last_step >= 0 else f"Finished, {steps}."
    what = job.reason.removeprefix("job ") or _STATES[job.ending]
    return f"{what[:1].upper()}{what[1:]}, {steps}."
