"""Every SELECT behind the dashboard and the trace export, aggregated in SQL.

Each function takes a store and returns an Arrow table. Times are UTC nanoseconds (columns `*_ns`). Missing
data is no rows. `MAX_CELLS` bounds what a chart shows, whatever the size of the job.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsetrain.stream.queries.queryable import Queryable

MAX_CELLS = 10_000
_CURVE_STEPS = 256
_FROM, _TO = "fromUnixTimestamp64Nano({from_ns:Int64})", "fromUnixTimestamp64Nano({to_ns:Int64})"
_MINUTES = f"AND toStartOfMinute(start) BETWEEN toStartOfMinute({_FROM}) AND toStartOfMinute({_TO})"
"""The condition that the projection `by_step` answers without reading the row of each rank."""
_WHOLE_STEPS = f"HAVING min(start) >= {_FROM} AND max(start) <= {_TO}"


def _during(column: str, to_ns: int) -> str:
    """A condition on the time of a row, from {from_ns} to {to_ns}. None for `to_ns` 0."""
    return f"AND {column} BETWEEN {_FROM} AND {_TO}" if to_ns else ""


def jobs(store: Queryable) -> pa.Table:
    """Jobs with steps on record, newest first.

    Columns: job, attempts, first_step, first_ns and last_ns (when the first and the last step began). Of the
    newest attempt with steps: last_step, ranks. An earlier one may have come further.
    """
    return store.query(
        """
        SELECT job, max(attempt) + 1 AS attempts, min(low) AS first_step,
               argMax(high, attempt) AS last_step, argMax(n_ranks, attempt) AS ranks,
               min(began_ns) AS first_ns, max(newest_ns) AS last_ns
        FROM (
            SELECT job, attempt, min(step) AS low, max(step) AS high, uniq(rank) AS n_ranks,
                   toUnixTimestamp64Nano(min(start)) AS began_ns,
                   toUnixTimestamp64Nano(max(start)) AS newest_ns
            FROM steps GROUP BY job, attempt)
        GROUP BY job ORDER BY last_ns DESC, job LIMIT 200
        """
    )


def last_heard(store: Queryable, job: str) -> pa.Table:
    """When the last step of a job ended, or its last event or line came: last_ns, 0 for nothing.

    What a hub says of a recording later is not of the job.
    """
    return store.query(
        """
        SELECT max(last_ns) AS last_ns FROM (
            SELECT max(toUnixTimestamp64Nano(start) + duration_ns) AS last_ns
            FROM steps WHERE job = {job:String}
            UNION ALL SELECT max(toUnixTimestamp64Nano(ts)) FROM logs WHERE job = {job:String}
            UNION ALL SELECT max(toUnixTimestamp64Nano(ts)) FROM events
                      WHERE job = {job:String} AND kind != 'judged')
        """,
        {"job": job},
    )


def last_attempt(store: Queryable, job: str) -> int:
    """The newest attempt of `job` on record. -1 for a job that the store has never seen."""
    newest = " UNION ALL ".join(
        f"SELECT max(attempt) AS attempt FROM {record} WHERE job = {{job:String}} HAVING count() > 0"
        for record in ("events", "topology", "steps")
    )
    table = store.query(f"SELECT max(attempt) AS attempt, count() AS n FROM ({newest})", {"job": job})
    row = table.to_pylist()[0]
    return int(row["attempt"]) if row["n"] else -1


def knows(store: Queryable, job: str) -> bool:
    """Whether any record of `job` is in the store."""
    any_of = " UNION ALL ".join(
        f"(SELECT 1 AS one FROM {record} WHERE job = {{job:String}} LIMIT 1)"
        for record in ("events", "topology", "steps", "logs")
    )
    return bool(store.query(f"SELECT count() AS n FROM ({any_of})", {"job": job}).to_pylist()[0]["n"])


def curve(store: Queryable, job: str, *, points: int = 400, from_ns: int = 0, to_ns: int = 0) -> pa.Table:
    """Step time, throughput and loss over the whole job, in about `points` rows or fewer, oldest first.

    With `to_ns`: of the steps that began from `from_ns` to `to_ns` on every rank.

    Columns: attempt, step, start_ns, step_ns (median over steps of the slowest rank), worst_ns, tokens_per_s,
    loss (NULL: not logged). Steps that some rank has not finished are left out. Of more steps than
    `_CURVE_STEPS` for each row, about so many are read, chosen by chance, and the newest.

    Ranks of one replica count the same tokens, so each replica counts once: ranks with the same dp and cp.
    """
    minutes, whole = (_MINUTES, _WHOLE_STEPS) if to_ns else ("", "")
    return store.query(
        f"""
        WITH
        (SELECT min(step) FROM steps WHERE job = {{job:String}} {minutes}) AS low,
        (SELECT max(step) FROM steps WHERE job = {{job:String}} {minutes}) AS high,
        (SELECT count() FROM steps WHERE job = {{job:String}} {minutes}) AS rows,
        (SELECT uniq(rank) FROM steps WHERE job = {{job:String}}) AS ranks_in_all,
        greatest(1, intDiv(high - low, {{points:Int64}}) + 1) AS width,
        greatest(1, intDiv(rows, greatest(1, ranks_in_all) * {{points:Int64}} * {_CURVE_STEPS})) AS one_of,
        each AS (
            SELECT attempt, step, count() AS ranks, max(duration_ns) AS wall_ns,
                   sum(tokens) / greatest(1, countIf(tokens > 0)) AS tokens,
                   avg(loss) AS loss, min(start) AS began
            FROM steps
            WHERE job = {{job:String}} {minutes}
              AND (one_of = 1 OR intHash64(step) % one_of = 0 OR step > high - {_CURVE_STEPS})
            GROUP BY attempt, step {whole}),
        replicas AS (
            SELECT attempt, count() AS known, uniqExact((dp, cp)) AS replicas
            FROM (
                SELECT attempt, rank, argMax(topology.dp, ts) AS dp, argMax(topology.cp, ts) AS cp
                FROM topology WHERE job = {{job:String}} GROUP BY attempt, rank)
            GROUP BY attempt),
        whole AS (SELECT *, max(ranks) OVER (PARTITION BY attempt) AS world FROM each)
        SELECT attempt, max(whole.step) AS step, toUnixTimestamp64Nano(min(began)) AS start_ns,
               toInt64(median(wall_ns)) AS step_ns, max(wall_ns) AS worst_ns,
               1e9 * sum(whole.tokens * if(known = world, replicas, world)) / greatest(1, sum(wall_ns))
                 AS tokens_per_s,
               avg(whole.loss) AS loss
        FROM whole LEFT JOIN replicas ON replicas.attempt = whole.attempt WHERE ranks = world
        GROUP BY attempt, intDiv(whole.step - low, width)
        ORDER BY attempt, step
        """,
        {"job": job, "points": points, "from_ns": from_ns, "to_ns": to_ns},
    )


def events(
    store: Queryable,
    job: str,
    kinds: Sequence[str] = (),
    *,
    limit: int = 200,
    from_ns: int = 0,
    to_ns: int = 0,
) -> pa.Table:
    """The newest events of a job, newest first: ts_ns, kind, node, rank, attempt, actor, detail (JSON).

    With `to_ns`: of those from `from_ns` to `to_ns`.
    """
    return store.query(
        f"""
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, kind, node, rank, attempt, actor, detail
        FROM events
        WHERE job = {{job:String}} {_during("ts", to_ns)}
          AND ({{kinds:String}} = '' OR has(splitByChar(',', {{kinds:String}}), kind))
        ORDER BY ts DESC, kind, node, rank, detail LIMIT {{limit:Int64}}
        """,
        {"job": job, "kinds": ",".join(kinds), "limit": limit, "from_ns": from_ns, "to_ns": to_ns},
    )


def findings(store: Queryable, job: str, *, limit: int = 50) -> pa.Table:
    """The newest findings of a job, newest first: one row for each kind, subject and attempt.

    Columns: those of the `findings` record with first_ns and ts_ns (newest) in place of ts, and times (how
    often it was reported).
    """
    return store.query(
        """
        SELECT kind, subject_type, subject, attempt, count() AS times,
               toUnixTimestamp64Nano(min(ts)) AS first_ns, toUnixTimestamp64Nano(max(ts)) AS ts_ns,
               argMax(severity, ts) AS severity, argMax(confidence, ts) AS confidence,
               argMax(summary, ts) AS summary, argMax(evidence, ts) AS evidence
        FROM findings WHERE job = {job:String}
        GROUP BY kind, subject_type, subject, attempt
        ORDER BY ts_ns DESC, kind, subject_type, subject, attempt LIMIT {limit:Int64}
        """,
        {"job": job, "limit": limit},
    )


def topology(store: Queryable, job: str, *, rank: int = -1, attempt: int = -1) -> pa.Table:
    """The node and the mesh coordinates of each rank of an attempt, by default the newest, or of one rank.

    Columns: attempt, rank, local_rank, node, ip, switch, tp, pp, dp, cp, ep.
    """
    return store.query(
        """
        SELECT attempt, rank, any(local_rank) AS local_rank, any(node) AS node, any(ip) AS ip,
               any(switch) AS switch, argMax(tp, ts) AS tp, argMax(pp, ts) AS pp, argMax(dp, ts) AS dp,
               argMax(cp, ts) AS cp, argMax(ep, ts) AS ep
        FROM topology
        WHERE job = {job:String}
          AND attempt = if({attempt:Int32} < 0,
                           (SELECT max(attempt) FROM topology WHERE job = {job:String}), {attempt:Int32})
          AND ({rank:Int32} < 0 OR rank = {rank:Int32})
        GROUP BY attempt, rank ORDER BY rank
        """,
        {"job": job, "rank": rank, "attempt": attempt},
    )


def rank_states(store: Queryable, job: str, *, since_ns: int, rank: int = -1, node: str = "") -> pa.Table:
    """The last heartbeat of each rank since `since_ns`, or of one rank, on one node: rank, node, attempt,
    state, last_step, last_phase, phase_age_ns, ts_ns."""
    chosen = "rank = {rank:Int32}" if rank >= 0 else "rank >= 0"
    there = " AND heartbeats.node = {node:String}" if node else ""
    return store.query(
        f"""
        SELECT rank, argMax(node, ts) AS node, argMax(attempt, ts) AS attempt, argMax(state, ts) AS state,
               argMax(last_step, ts) AS last_step, argMax(last_phase, ts) AS last_phase,
               argMax(phase_age_ns, ts) AS phase_age_ns, toUnixTimestamp64Nano(max(ts)) AS ts_ns
        FROM heartbeats
        WHERE job = {{job:String}} AND {chosen}{there} AND ts >= fromUnixTimestamp64Nano({{since_ns:Int64}})
        GROUP BY rank ORDER BY rank
        """,
        {"job": job, "since_ns": since_ns, "rank": rank, "node": node},
    )


def checkpoints(store: Queryable, job: str, *, steps: int = 40, from_ns: int = 0, to_ns: int = 0) -> pa.Table:
    """The newest `steps` checkpointed steps of a job: attempt, step, stage, tier, ranks, bytes, longest_ns,
    ts_ns. With `to_ns`: of what was reported from `from_ns` to `to_ns`.

    A step of a later attempt is newer than a higher one of an attempt before, from which the job went back.
    """
    during = _during("checkpoints.ts", to_ns)
    return store.query(
        f"""
        SELECT attempt, step, stage, tier, uniq(rank) AS ranks, sum(bytes) AS bytes,
               max(duration_ns) AS longest_ns, toUnixTimestamp64Nano(max(ts)) AS ts_ns
        FROM checkpoints
        WHERE job = {{job:String}} {during}
          AND (attempt, step) IN (
            SELECT attempt, step FROM checkpoints WHERE job = {{job:String}} {during}
            GROUP BY attempt, step ORDER BY attempt DESC, step DESC LIMIT {{steps:Int64}})
        GROUP BY attempt, step, stage, tier
        ORDER BY attempt DESC, step DESC, ts_ns, stage, tier LIMIT 2000
        """,
        {"job": job, "steps": steps, "from_ns": from_ns, "to_ns": to_ns},
    )


def checkpoint_tiers(store: Queryable, job: str) -> pa.Table:
    """The newest step that every rank has in each tier: tier, step, attempt, ranks, copies, bytes, ts_ns.

    Every rank: as many as the step's own attempt has. Checkpoints in memory and at peers count for the newest
    attempt only.
    """
    return store.query(
        """
        WITH sizes AS (
            SELECT attempt AS of_attempt, max(known) AS in_all FROM (
                SELECT attempt, uniq(rank) AS known FROM checkpoints
                WHERE job = {job:String} AND stage = 'copy' GROUP BY attempt, step
                UNION ALL
                SELECT attempt, uniq(rank) AS known FROM topology
                WHERE job = {job:String} GROUP BY attempt
            )
            GROUP BY attempt)
        SELECT tier, max(at_step) AS step, argMax(try, at_step) AS attempt, argMax(who, at_step) AS ranks,
               argMax(many, at_step) AS copies, argMax(size, at_step) AS bytes,
               toUnixTimestamp64Nano(argMax(at, at_step)) AS ts_ns
        FROM (
            SELECT attempt AS try, tier, step AS at_step, uniq(rank) AS who, count() AS many,
                   sum(bytes) AS size, max(ts) AS at
            FROM checkpoints
            WHERE job = {job:String} AND stage IN ('copy', 'replicate', 'commit')
              AND (tier = 'storage'
                   OR attempt = (SELECT max(attempt) FROM checkpoints WHERE job = {job:String}))
            GROUP BY attempt, tier, step
        ) AS steps_held
        JOIN sizes ON sizes.of_attempt = steps_held.try
        WHERE who = in_all
        GROUP BY tier ORDER BY tier
        """,
        {"job": job},
    )


def progress(store: Queryable, job: str) -> pa.Table:
    """The newest step of the newest attempt, and the median time of its last 50: last_step, step_ns."""
    return store.query(
        """
        SELECT max(step) AS last_step, toInt64(quantile(0.5)(duration_ns)) AS step_ns
        FROM steps
        WHERE job = {job:String} AND attempt = (SELECT max(attempt) FROM steps WHERE job = {job:String})
          AND step > (SELECT max(step) FROM steps WHERE job = {job:String}
                      AND attempt = (SELECT max(attempt) FROM steps WHERE job = {job:String})) - 50
        HAVING count() > 0
        """,
        {"job": job},
    )


def gauges(store: Queryable, names: Sequence[str], *, since_ns: int) -> pa.Table:
    """The newest value of the named metrics of every node since `since_ns`: node, device, name, value,
    ts_ns."""
    return store.query(
        """
        SELECT node, device, name, argMax(value, ts) AS value, toUnixTimestamp64Nano(max(ts)) AS ts_ns
        FROM metrics
        WHERE has(splitByChar(',', {names:String}), name) AND ts >= fromUnixTimestamp64Nano({since_ns:Int64})
        GROUP BY node, device, name ORDER BY node, name, device LIMIT {limit:Int64}
        """,
        {"names": ",".join(names), "since_ns": since_ns, "limit": MAX_CELLS},
    )


def spans(
    store: Queryable, job: str, *, ranks: Sequence[int], first: int, last: int, limit: int = 4000
) -> pa.Table:
    """The spans of the given ranks (none: all) in steps `first`..`last`, oldest first.

    Only the longest `limit` are kept. `spans_in_all` counts them all. A span that was reported several times
    while open is one row, with its end where it has ended, else with its greatest age.
    Columns: those of the `spans` record with start_ns in place of start, and spans_in_all.
    """
    chosen = f"rank IN ({', '.join(str(int(rank)) for rank in ranks)})" if ranks else "1"
    return store.query(
        f"""
        SELECT * FROM (
            SELECT attempt, node, rank, step, microbatch, phase, category, lane, group, seq, parent,
                   any(bytes) AS bytes, toUnixTimestamp64Nano(start) AS start_ns,
                   argMax(spans.duration_ns, (NOT spans.open, spans.duration_ns)) AS duration_ns,
                   argMax(spans.blocked_ns, (NOT spans.open, spans.duration_ns)) AS blocked_ns,
                   max(spans.peer) AS peer,
                   min(spans.open) AS open,
                   count() OVER () AS spans_in_all
            FROM spans
            WHERE job = {{job:String}} AND step BETWEEN {{first:Int64}} AND {{last:Int64}}
              AND {chosen}
            GROUP BY attempt, node, rank, step, microbatch, phase, category, lane, group, seq, parent, start
            ORDER BY open DESC, duration_ns DESC, start_ns, rank, lane, phase, seq, microbatch, attempt
            LIMIT {{limit:Int64}})
        ORDER BY start_ns, duration_ns DESC, rank, lane, phase, seq, microbatch, attempt
        """,
        {"job": job, "first": first, "last": last, "limit": limit},
    )


def stored(store: Queryable) -> pa.Table:
    """How much the store holds of each record: record, rows, bytes on disk."""
    return store.query(
        """
        SELECT name AS record, toInt64(coalesce(total_rows, 0)) AS rows,
               toInt64(coalesce(total_bytes, 0)) AS bytes
        FROM system.tables WHERE database = currentDatabase() AND total_rows IS NOT NULL ORDER BY record
        """
    )
