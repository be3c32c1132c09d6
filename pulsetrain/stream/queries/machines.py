"""SELECTs behind the analyzers of machines: what the nodes of an attempt measured and logged while it ran."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.stream.queries.analysis import Queryable

_NODES = "(SELECT DISTINCT node FROM steps WHERE job = {job:String} AND attempt = {attempt:Int32})"
_WHEN = "ts BETWEEN fromUnixTimestamp64Nano({from_ns:Int64}) AND fromUnixTimestamp64Nano({to_ns:Int64})"


def extent(store: Queryable, job: str, attempt: int, since: int, until: int) -> tuple[int, int]:
    """When the first of these steps began and the last one ended, UTC nanoseconds; (0, 0) without any."""
    row = store.query(
        """
        SELECT toUnixTimestamp64Nano(min(start)) AS begin_ns,
               max(toUnixTimestamp64Nano(start) + duration_ns) AS end_ns, count() AS n
        FROM steps
        WHERE job = {job:String} AND attempt = {attempt:Int32}
          AND step BETWEEN {since:Int64} AND {until:Int64}
        """,
        {"job": job, "attempt": attempt, "since": since, "until": until},
    ).to_pylist()[0]
    return (int(row["begin_ns"]), int(row["end_ns"])) if row["n"] else (0, 0)


def step_starts(store: Queryable, job: str, attempt: int, since: int, until: int) -> list[int]:
    """When each step first began on any rank, UTC nanoseconds, in order."""
    table = store.query(
        """
        SELECT toUnixTimestamp64Nano(min(start)) AS begin_ns FROM steps
        WHERE job = {job:String} AND attempt = {attempt:Int32}
          AND step BETWEEN {since:Int64} AND {until:Int64}
        GROUP BY step ORDER BY begin_ns
        """,
        {"job": job, "attempt": attempt, "since": since, "until": until},
    )
    return [int(v) for v in table["begin_ns"].to_pylist()]


def metrics(store: Queryable, job: str, attempt: int, prefix: str, *, from_ns: int, to_ns: int) -> pa.Table:
    """Samples of the attempt's nodes whose name begins with `prefix`: node, device, name, ts, value."""
    return store.query(
        f"""
        SELECT node, device, name, ts, value FROM metrics
        WHERE startsWith(name, {{prefix:String}}) AND {_WHEN} AND node IN {_NODES}
        """,
        {"job": job, "attempt": attempt, "prefix": prefix, "from_ns": from_ns, "to_ns": to_ns},
    )


def kernel_log(store: Queryable, job: str, attempt: int, *, from_ns: int, to_ns: int) -> pa.Table:
    """Kernel lines of the attempt's nodes: node, ts_ns, message; the newest 50,000, oldest first."""
    return store.query(
        f"""
        SELECT node, toUnixTimestamp64Nano(ts) AS ts_ns, message FROM
          (SELECT node, ts, message FROM logs
           WHERE source = 'kmsg' AND {_WHEN} AND node IN {_NODES} ORDER BY ts DESC LIMIT 50000)
        ORDER BY ts_ns
        """,
        {"job": job, "attempt": attempt, "from_ns": from_ns, "to_ns": to_ns},
    )


def rank_logs(
    store: Queryable, job: str, attempt: int, *, complaints: bool, from_ns: int, to_ns: int, limit: int
) -> pa.Table:
    """Lines of the attempt's ranks: ts, node, rank, severity, message; the newest `limit`.

    `complaints`: only warnings and worse.
    """
    chosen = "AND severity IN ('warning', 'error', 'critical')" if complaints else ""
    return store.query(
        f"""
        SELECT ts, node, rank, severity, message FROM logs
        WHERE job = {{job:String}} AND attempt = {{attempt:Int32}} AND source IN ('stdout', 'stderr')
          AND {_WHEN} {chosen}
        ORDER BY ts DESC LIMIT {{limit:Int64}}
        """,
        {"job": job, "attempt": attempt, "from_ns": from_ns, "to_ns": to_ns, "limit": limit},
    )
