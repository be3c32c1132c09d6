"""SELECTs behind the analyzers of machines: what the nodes of an attempt measured and logged while it ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pulsetrain.stream.queries.queryable import IN_RANGE, AttemptSteps, Queryable

_OF_ATTEMPT = "job = {job:String} AND attempt = {attempt:Int32}"
_NODES = f"""(
    SELECT DISTINCT node FROM topology WHERE {_OF_ATTEMPT}
    UNION DISTINCT
    SELECT DISTINCT node FROM steps
    WHERE {_OF_ATTEMPT} AND (SELECT count() FROM topology WHERE {_OF_ATTEMPT}) = 0)"""
"""Steps are read only where the topology has no rank of the attempt. They are by thousands as many."""
_DURING = "ts BETWEEN fromUnixTimestamp64Nano({from_ns:Int64}) AND fromUnixTimestamp64Nano({to_ns:Int64})"


@dataclass(frozen=True, kw_only=True)
class AttemptTime:
    """One attempt of a job, from `from_ns` to `to_ns` (UTC nanoseconds)."""

    job: str
    attempt: int
    from_ns: int
    to_ns: int

    @property
    def params(self) -> dict[str, object]:
        """Values for the placeholders of the queries below."""
        return {"job": self.job, "attempt": self.attempt, "from_ns": self.from_ns, "to_ns": self.to_ns}


def extent(store: Queryable, steps: AttemptSteps) -> tuple[int, int]:
    """When the first of these steps began and the last one ended, UTC nanoseconds. (0, 0) without any."""
    row = store.query(
        f"""
        SELECT toUnixTimestamp64Nano(min(start)) AS begin_ns,
               max(toUnixTimestamp64Nano(start) + duration_ns) AS end_ns, count() AS n
        FROM steps WHERE {IN_RANGE}
        """,
        steps.params,
    ).to_pylist()[0]
    return (int(row["begin_ns"]), int(row["end_ns"])) if row["n"] else (0, 0)


def topology_began(store: Queryable, job: str, attempt: int) -> int | None:
    """When the first rank told where it stands, UTC nanoseconds. None: none did."""
    rows = store.query(
        f"SELECT toUnixTimestamp64Nano(min(ts)) AS began_ns, count() AS n FROM topology WHERE {_OF_ATTEMPT}",
        {"job": job, "attempt": attempt},
    ).to_pylist()
    return next((int(row["began_ns"]) for row in rows if row.get("n")), None)


def step_starts(store: Queryable, steps: AttemptSteps) -> list[int]:
    """When each step first began on any rank, UTC nanoseconds, in order."""
    table = store.query(
        f"""
        SELECT toUnixTimestamp64Nano(min(start)) AS begin_ns FROM steps WHERE {IN_RANGE}
        GROUP BY step ORDER BY begin_ns
        """,
        steps.params,
    )
    return [row["begin_ns"] for row in table.to_pylist()]


def metrics(store: Queryable, during: AttemptTime, prefix: str) -> pa.Table:
    """Samples of the attempt's nodes whose name begins with `prefix`: node, device, name, ts, value."""
    return store.query(
        f"""
        SELECT node, device, name, ts, value FROM metrics
        WHERE startsWith(name, {{prefix:String}}) AND {_DURING} AND node IN {_NODES}
        """,
        {**during.params, "prefix": prefix},
    )


def metrics_named(store: Queryable, during: AttemptTime, names: Sequence[str]) -> pa.Table:
    """Samples of the attempt's nodes of these names: node, device, name, ts, value. At least one name."""
    placeholders = {f"name{i}": name for i, name in enumerate(names)}
    named = ", ".join(f"{{{key}:String}}" for key in placeholders)
    return store.query(
        f"""
        SELECT node, device, name, ts, value FROM metrics
        WHERE name IN ({named}) AND {_DURING} AND node IN {_NODES}
        """,
        {**during.params, **placeholders},
    )


def nodes_with_metric(store: Queryable, during: AttemptTime, name: str) -> int:
    """On how many of the attempt's nodes a metric was above 0."""
    table = store.query(
        f"""
        SELECT uniqExact(node) AS nodes FROM metrics
        WHERE name = {{name:String}} AND value > 0 AND {_DURING} AND node IN {_NODES}
        """,
        {**during.params, "name": name},
    )
    return sum(int(row["nodes"]) for row in table.to_pylist())


def changing_metrics(
    store: Queryable, during: AttemptTime, prefixes: Sequence[str], *, most_rows: int = 2_000_000
) -> pa.Table:
    """As `metrics`, with as few rows as tell the same: node, device, name, ts, value. In any order.

    A series whose value never changed has its first and its last sample. Where the others have more than
    `most_rows` together, each has the last sample of equal pieces of the time.
    """
    named = " OR ".join(f"startsWith(name, {{prefix{i}:String}})" for i in range(len(prefixes)))
    chosen = f"({named}) AND {_DURING} AND node IN {_NODES}"
    chosen_m = chosen.replace("ts BETWEEN", "m.ts BETWEEN")
    params = {**during.params, **{f"prefix{i}": prefix for i, prefix in enumerate(prefixes)}}
    changed = f"FROM metrics WHERE {chosen} GROUP BY node, device, name HAVING min(value) != max(value)"
    (size,) = store.query(
        f"SELECT sum(n) AS n, count() AS series FROM (SELECT count() AS n {changed})", params
    ).to_pylist()
    pieces = max(1, most_rows // max(1, size["series"]))
    piece_ns = 1 if (size["n"] or 0) <= most_rows else (during.to_ns - during.from_ns) // pieces + 1
    return store.query(
        f"""
        SELECT node, device, name, max(m.ts) AS ts, argMax(m.value, m.ts) AS value FROM metrics AS m
        WHERE {chosen_m}
          AND (node, device, name) IN (SELECT node, device, name {changed})
        GROUP BY node, device, name, intDiv(toUnixTimestamp64Nano(m.ts), {{piece_ns:Int64}})
        UNION ALL
        SELECT node, device, name, arrayJoin([first, last]) AS ts, only AS value FROM (
          SELECT node, device, name, min(m.ts) AS first, max(m.ts) AS last, any(m.value) AS only
          FROM metrics AS m WHERE {chosen_m}
          GROUP BY node, device, name HAVING min(m.value) = max(m.value))
        """,
        {**params, "piece_ns": piece_ns},
    )


def ports_up_before(store: Queryable, during: AttemptTime) -> dict[str, int]:
    """When each port of the attempt's nodes was up last before this time, since the job's first step.

    By NODE/DEVICE, UTC nanoseconds. Of a job without steps, since its first rank told where it stands.
    """
    table = store.query(
        f"""
        SELECT node, device, toUnixTimestamp64Nano(max(ts)) AS up_ns FROM metrics
        WHERE ((name = 'rdma_port_state' AND value = 4) OR (name = 'nic_port_state' AND value = 1))
          AND ts < fromUnixTimestamp64Nano({{from_ns:Int64}})
          AND ts >= (
            SELECT if(count() > 0, min(start), (SELECT min(ts) FROM topology WHERE job = {{job:String}}))
            FROM steps WHERE job = {{job:String}})
          AND node IN {_NODES}
        GROUP BY node, device
        """,
        during.params,
    )
    return {f"{row['node']}/{row['device']}": int(row["up_ns"]) for row in table.to_pylist()}


def gpu_inventories(store: Queryable, of: AttemptSteps | AttemptTime) -> pa.Table:
    """The newest list of GPUs of each of the attempt's nodes, as its agent sent it: node, detail (JSON)."""
    return store.query(
        f"""
        SELECT node, argMax(detail, ts) AS detail FROM events
        WHERE kind = 'gpus' AND node IN {_NODES} GROUP BY node
        """,
        of.params,
    )


def gpus_were_idle(store: Queryable, during: AttemptTime) -> bool:
    """Whether samples say that no GPU of the attempt's nodes did anything. Not without any sample."""
    rows = store.query(
        f"""
        SELECT count() AS n, max(value) AS most FROM metrics
        WHERE name = 'gpu_utilization_ratio' AND {_DURING} AND node IN {_NODES}
        """,
        during.params,
    ).to_pylist()
    return any(row["n"] and row["most"] == 0 for row in rows)


def uses_gpus(store: Queryable, steps: AttemptSteps) -> bool:
    """Whether a rank timed work on a GPU in the last two of these steps."""
    table = store.query(
        f"SELECT 1 AS one FROM spans WHERE {IN_RANGE} AND startsWith(lane, 'cuda:') LIMIT 1",
        steps.params | {"first": steps.last - 1},
    )
    return table.num_rows > 0


def kernel_log(store: Queryable, during: AttemptTime) -> pa.Table:
    """The newest 50,000 kernel lines of the attempt's nodes, oldest first: node, ts_ns, message."""
    return store.query(
        f"""
        SELECT node, toUnixTimestamp64Nano(ts) AS ts_ns, message FROM
          (SELECT node, ts, message FROM logs
           WHERE source = 'kmsg' AND {_DURING} AND node IN {_NODES} ORDER BY ts DESC LIMIT 50000)
        ORDER BY ts_ns
        """,
        during.params,
    )


def rank_logs(store: Queryable, during: AttemptTime, *, warnings_only: bool, limit: int) -> pa.Table:
    """The newest `limit` lines of the attempt's ranks: ts, node, rank, severity, message.

    `warnings_only`: lines of severity warning, error or critical.
    """
    severe = "AND severity IN ('warning', 'error', 'critical')" if warnings_only else ""
    return store.query(
        f"""
        SELECT ts, node, rank, severity, message FROM logs
        WHERE job = {{job:String}} AND attempt = {{attempt:Int32}} AND source IN ('stdout', 'stderr')
          AND {_DURING} {severe}
        ORDER BY ts DESC LIMIT {{limit:Int64}}
        """,
        {**during.params, "limit": limit},
    )


def rule_matches(store: Queryable, during: AttemptTime) -> pa.Table:
    """The newest 5,000 events of log rules on the attempt's ranks and nodes, oldest first: ts_ns, node, rank,
    detail (JSON)."""
    return store.query(
        f"""
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, node, rank, detail FROM
          (SELECT ts, node, rank, detail FROM events
           WHERE kind = 'log_rule' AND {_DURING} AND (
             (job = {{job:String}} AND attempt = {{attempt:Int32}}) OR (job = '' AND node IN {_NODES}))
           ORDER BY ts DESC LIMIT 5000)
        ORDER BY ts_ns, node, rank, detail
        """,
        during.params,
    )


def first_errors(store: Queryable, job: str) -> pa.Table:
    """Errors and exits of a job's ranks, oldest first: ts_ns, attempt, node, rank, kind, detail (JSON).

    `kind` is first_error or rank_exit.
    """
    return store.query(
        """
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, attempt, node, rank, kind, detail FROM events
        WHERE job = {job:String} AND kind IN ('first_error', 'rank_exit')
        ORDER BY ts_ns, rank, kind, detail LIMIT 200000
        """,
        {"job": job},
    )
