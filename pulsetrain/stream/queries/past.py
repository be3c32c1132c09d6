"""SELECTs about jobs that this hub does not run: how they ended, what was found, where they ran."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from pulsetrain.stream.queries.queryable import OneThread, Queryable


def recorded_findings(
    store: Queryable,
    *,
    since_ns: int = 0,
    running: Collection[str] = (),
    most_of_job: int = 1000,
    most: int = 20_000,
) -> pa.Table:
    """Findings on record, the newest of each job first: columns of `findings`, `ts_ns` for `ts`.

    Those since a time (UTC), and all of `running` jobs and of recordings that were judged, which come first.
    At most `most_of_job` of each job.
    """
    return store.query(
        """
        WITH has({running:Array(String)}, job)
             OR job IN (SELECT job FROM events WHERE events.kind = 'judged') AS wanted
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, job, attempt, kind, subject_type, subject, severity,
               confidence, summary, evidence
        FROM findings
        WHERE wanted OR ts >= fromUnixTimestamp64Nano({since:Int64})
        ORDER BY wanted DESC, ts DESC, job, kind, subject_type, subject, attempt, summary
        LIMIT {most_of_job:Int64} BY job
        LIMIT {most:Int64}
        """,
        {"since": since_ns, "running": sorted(running), "most_of_job": most_of_job, "most": most},
    )


def stored_jobs(store: Queryable, *, limit: int = 50) -> pa.Table:
    """Jobs on record, newest first.

    Columns: job, attempt (the newest with steps), first_step and last_step (of it), last_ns (when its last
    step began), ranks. Of a job without any step: the newest attempt that was started, -1 for its steps, when
    that was, and the ranks that have a place.
    """
    one = OneThread(store)
    jobs, others = one.query(_WITH_STEPS), one.query(_STARTED)
    if not jobs.num_rows or not others.num_rows:
        jobs = jobs if jobs.num_rows else others
        return jobs.sort_by(_NEWEST_FIRST).slice(0, limit) if jobs.num_rows else jobs
    is_known = pc.is_in(others.column("job"), value_set=jobs.column("job"))
    jobs = pa.concat_tables([jobs, others.filter(pc.invert(is_known)).cast(jobs.schema)])
    return jobs.sort_by(_NEWEST_FIRST).slice(0, limit)


_NEWEST_FIRST: list[tuple[str, Literal["ascending", "descending"]]] = [
    ("last_ns", "descending"),
    ("job", "ascending"),
]
_WITH_STEPS = """
    SELECT job, attempt, min(step) AS first_step, max(step) AS last_step,
           toUnixTimestamp64Nano(max(start)) AS last_ns, uniq(rank) AS ranks
    FROM steps GROUP BY job, attempt ORDER BY job, attempt DESC LIMIT 1 BY job
"""
"""One pass over the largest table, on one thread: the hub asks it while jobs run."""

_STARTED = """
    SELECT job, started.attempt AS attempt, toInt64(-1) AS first_step, toInt64(-1) AS last_step,
           started.last_ns AS last_ns, placed.ranks AS ranks
    FROM (
        SELECT job, max(attempt) AS attempt, toUnixTimestamp64Nano(max(ts)) AS last_ns
        FROM events WHERE kind = 'attempt_started' GROUP BY job) AS started
    LEFT JOIN (SELECT job, uniq(rank) AS ranks FROM topology GROUP BY job) AS placed USING (job)
"""


def job_ends(store: Queryable) -> pa.Table:
    """The last start, end or judgement of each job: job, ts_ns, kind, attempt, detail (JSON)."""
    return store.query(
        """
        SELECT job, kind, toUnixTimestamp64Nano(max(ts)) AS ts_ns, argMax(attempt, ts) AS attempt,
               argMax(detail, ts) AS detail
        FROM events
        WHERE kind IN ('attempt_started', 'job_finished', 'job_ended', 'job_failed', 'judged')
        GROUP BY job, kind ORDER BY job, ts_ns DESC, kind
        """
    )


def job_nodes(store: Queryable, job: str) -> pa.Table:
    """The nodes of the newest attempt of a job: node, address, ranks (list). The node of rank 0 first."""
    return store.query(
        """
        SELECT node, any(ip) AS address, arraySort(groupUniqArray(rank)) AS ranks
        FROM topology
        WHERE job = {job:String}
          AND attempt = (SELECT max(attempt) FROM topology WHERE job = {job:String})
        GROUP BY node ORDER BY min(rank)
        """,
        {"job": job},
    )


def gone_nodes(store: Queryable, job: str) -> pa.Table:
    """Nodes of a job that were evicted or lost, the last first: node, kind, ts_ns, detail (JSON)."""
    return store.query(
        """
        SELECT node, argMax(events.kind, ts) AS kind, toUnixTimestamp64Nano(max(ts)) AS ts_ns,
               argMax(events.detail, ts) AS detail
        FROM events WHERE job = {job:String} AND events.kind IN ('evict', 'node_lost') AND node != ''
        GROUP BY node ORDER BY ts_ns DESC, node
        """,
        {"job": job},
    )
