"""The store as `PastJobs` asks it: which jobs are on record, how they ended, and what the analyzers say."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from pulsetrain.analytics.analyze import Analyzer, analyze
from pulsetrain.analytics.verdict import Verdict
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.reporter import SHOWN_S
from pulsetrain.records.findings import Finding, recorded
from pulsetrain.stream.queries import past
from pulsetrain.stream.queries.queryable import Queryable

JUDGED = "judged"
_STARTED = "attempt_started"


@dataclass(frozen=True, kw_only=True)
class PastJob:
    """A job on record. `ending` is the kind of its last event and `reason` what that says.

    `ending` is "" for a job that no hub ever ran. `judged_step` is the last step that was looked at when its
    records were judged, -1 for never.
    """

    job: str
    attempt: int
    first_step: int
    last_step: int
    last_ns: int
    ranks: int
    ending: str = ""
    ended_ns: int = 0
    reason: str = ""
    judged_step: int = field(default=-1, compare=False)

    @property
    def is_recording(self) -> bool:
        """Whether no hub ever ran it: its records were imported."""
        return not self.ending


class PastStore:
    """Jobs of a store. `analyzers` are those of running jobs.

    `inserts` counts the inserts into tables. Where there were none, jobs are not read again. It gives None
    where that is not known.
    """

    def __init__(
        self,
        store: Queryable,
        analyzers: dict[str, Analyzer],
        inserts: Callable[..., tuple[int, ...] | None] = lambda *tables: None,
    ) -> None:
        self._store, self._analyzers, self._inserts = store, analyzers, inserts
        self._read: tuple[tuple[int, ...], list[PastJob]] | None = None

    def jobs(self) -> list[PastJob]:
        """The newest jobs on record, those that run included. One thread calls it."""
        inserts = self._inserts("steps", "events")
        if self._read is None or self._read[0] != inserts:
            jobs = self._jobs()
            self._read = (inserts, jobs) if inserts is not None else None
            return jobs
        return self._read[1]

    def _jobs(self) -> list[PastJob]:
        ends: dict[str, list[JsonObject]] = {}
        for row in past.job_ends(self._store).to_pylist():
            ends.setdefault(row["job"], []).append(row)
        return [_past_job(row, ends.get(row["job"], [])) for row in past.stored_jobs(self._store).to_pylist()]

    def findings(self, now_ns: int, running: Collection[str]) -> list[Finding]:
        """What earlier hubs have found lately, and in jobs that are `running`. The newest of each job
        first."""
        rows = past.recorded_findings(self._store, since_ns=now_ns - SHOWN_S * 10**9, running=running)
        return [recorded(row["job"], row) for row in rows.to_pylist()]

    def judge(self, job: PastJob, now_ns: int) -> list[Verdict]:
        """What the analyzers say of the end of a job."""
        return analyze(self._store, job.job, attempt=job.attempt, now_ns=now_ns, analyzers=self._analyzers)


def _past_job(row: JsonObject, ends: list[JsonObject]) -> PastJob:
    """`ends` are the newest first."""
    last = next((end for end in ends if end["kind"] != JUDGED), None)
    judged = next((end for end in ends if end["kind"] == JUDGED), None)
    names = ("job", "attempt", "first_step", "last_step", "last_ns", "ranks")
    return PastJob(
        **{name: row[name] for name in names},
        ending=last["kind"] if last else "",
        ended_ns=last["ts_ns"] if last else 0,
        reason=str(_detail(last).get("reason", "")) if last and last["kind"] != _STARTED else "",
        judged_step=_judged_step(judged, row["attempt"]),
    )


def _judged_step(judged: JsonObject | None, attempt: int) -> int:
    if judged is None or judged["attempt"] != attempt:
        return -1
    return int(_detail(judged).get("last_step", -1))


def _detail(event: JsonObject) -> JsonObject:
    try:
        detail = json.loads(event["detail"])
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}
