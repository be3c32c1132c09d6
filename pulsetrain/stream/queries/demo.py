"""SELECTs of the demo: new events and findings, step times, loss."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.stream.queries.queryable import Queryable


def events_since(store: Queryable, job: str, since_ns: int) -> pa.Table:
    """Events of a job from `since_ns` on, oldest first: ts_ns, kind, node, rank, attempt, actor, detail."""
    return store.query(
        """
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, kind, node, rank, attempt, actor, detail
        FROM events
        WHERE job = {job:String} AND ts >= fromUnixTimestamp64Nano({since_ns:Int64})
        ORDER BY ts
        """,
        {"job": job, "since_ns": since_ns},
    )


def findings_since(store: Queryable, job: str, since_ns: int) -> pa.Table:
    """Findings of a job from `since_ns` on, oldest first.

    Columns: ts_ns, attempt, kind, subject_type, subject, severity, confidence, summary.
    """
    return store.query(
        """
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, attempt, kind, subject_type, subject, severity,
               confidence, summary
        FROM findings
        WHERE job = {job:String} AND ts >= fromUnixTimestamp64Nano({since_ns:Int64})
        ORDER BY ts
        """,
        {"job": job, "since_ns": since_ns},
    )


def median_step_ns(store: Queryable, job: str, *, first: int, last: int) -> int:
    """Median time of the slowest rank in steps `first`..`last` of the first attempt, in nanoseconds.
    0 without steps."""
    table = store.query(
        """
        SELECT toInt64(ifNotFinite(median(slowest), 0)) AS median_ns FROM (
            SELECT max(duration_ns) AS slowest FROM steps
            WHERE job = {job:String} AND attempt = 0 AND step BETWEEN {first:Int64} AND {last:Int64}
            GROUP BY step)
        """,
        {"job": job, "first": first, "last": last},
    )
    return int(table.to_pylist()[0]["median_ns"])


def last_step(store: Queryable, job: str, attempt: int) -> int:
    """The newest step of an attempt on record for any rank. -1: none."""
    table = store.query(
        """
        SELECT if(count() = 0, -1, max(step)) AS step FROM steps
        WHERE job = {job:String} AND attempt = {attempt:Int32}
        """,
        {"job": job, "attempt": attempt},
    )
    return int(table.to_pylist()[0]["step"])


def loss(store: Queryable, job: str, step: int) -> float | None:
    """The newest loss logged at `step` or in the ten steps before it. None: not logged."""
    table = store.query(
        """
        SELECT argMax(loss, (step, start)) AS newest FROM steps
        WHERE job = {job:String} AND loss IS NOT NULL AND step BETWEEN {step:Int64} - 10 AND {step:Int64}
        """,
        {"job": job, "step": step},
    )
    value = table.to_pylist()[0]["newest"]
    return None if value is None else float(value)
