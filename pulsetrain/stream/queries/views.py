"""Every SELECT behind the dashboard and the trace export, aggregated in SQL.

Each function takes a store and returns an Arrow table; times come back as UTC nanoseconds (columns `*_ns`),
missing data as no rows. What fills a chart is bounded by `MAX_CELLS` whatever the size of the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

MAX_CELLS = 10_000


class Queryable(Protocol):
    """The one method of a store that a view needs."""

    def query(self, sql: str, params: Mapping[str, Any] | None = None) -> pa.Table: ...


def jobs(store: Queryable) -> pa.Table:
    """Jobs with steps on record, newest first: job, attempts, first_ns, last_ns, first_step, last_step,
    ranks."""
    return store.query(
        """
        SELECT job, max(attempt) + 1 AS attempts, min(step) AS first_step, max(step) AS last_step,
               uniq(rank) AS ranks,
               toUnixTimestamp64Nano(min(start)) AS first_ns, toUnixTimestamp64Nano(max(start)) AS last_ns
        FROM steps GROUP BY job ORDER BY last_ns DESC LIMIT 200
        """
    )


def last_attempt(store: Queryable, job: str) -> int:
    """The newest attempt of `job` on record; -1 for a job that the store has never seen."""
    newest = " UNION ALL ".join(
        f"SELECT max(attempt) AS attempt FROM {record} WHERE job = {{job:String}} HAVING count() > 0"
        for record in ("events", "topology", "steps")
    )
    found = store.query(f"SELECT max(attempt) AS attempt, count() AS n FROM ({newest})", {"job": job})
    row = found.to_pylist()[0]
    return int(row["attempt"]) if row["n"] else -1


def curve(store: Queryable, job: str, *, points: int = 400) -> pa.Table:
    """At most about `points` rows of a job's course, oldest first: attempt, step, start_ns, step_ns (median
    of the slowest rank), worst_ns, tokens_per_s, loss (NULL: nobody logged it). Steps that not every rank
    has finished are left out."""
    return store.query(
        """
        WITH
        each AS (
            SELECT attempt, step, count() AS ranks, max(duration_ns) AS wall_ns, sum(tokens) AS tokens,
                   avg(loss) AS loss, min(start) AS began
            FROM steps WHERE job = {job:String} GROUP BY attempt, step),
        whole AS (
            SELECT *, max(ranks) OVER (PARTITION BY attempt) AS world, min(step) OVER () AS low,
                   greatest(1, intDiv(max(step) OVER () - min(step) OVER (), {points:Int64}) + 1) AS width
            FROM each)
        SELECT attempt, max(whole.step) AS step, toUnixTimestamp64Nano(min(began)) AS start_ns,
               toInt64(median(wall_ns)) AS step_ns, max(wall_ns) AS worst_ns,
               1e9 * sum(whole.tokens) / greatest(1, sum(wall_ns)) AS tokens_per_s,
               avg(whole.loss) AS loss
        FROM whole WHERE ranks = world
        GROUP BY attempt, intDiv(whole.step - low, width)
        ORDER BY attempt, step
        """,
        {"job": job, "points": points},
    )


def events(store: Queryable, job: str, kinds: Sequence[str] = (), *, limit: int = 200) -> pa.Table:
    """The newest events of a job, newest first: ts_ns, kind, node, rank, attempt, actor, detail (JSON)."""
    return store.query(
        """
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, kind, node, rank, attempt, actor, detail
        FROM events
        WHERE job = {job:String} AND ({kinds:String} = '' OR has(splitByChar(',', {kinds:String}), kind))
        ORDER BY ts DESC LIMIT {limit:Int64}
        """,
        {"job": job, "kinds": ",".join(kinds), "limit": limit},
    )


def findings(store: Queryable, job: str, *, limit: int = 50) -> pa.Table:
    """The newest findings of a job, one a subject and kind and attempt, newest first, with `times` seen."""
    return store.query(
        """
        SELECT kind, subject_type, subject, attempt, count() AS times,
               toUnixTimestamp64Nano(min(ts)) AS first_ns, toUnixTimestamp64Nano(max(ts)) AS ts_ns,
               argMax(severity, ts) AS severity, argMax(confidence, ts) AS confidence,
               argMax(summary, ts) AS summary, argMax(evidence, ts) AS evidence
        FROM findings WHERE job = {job:String}
        GROUP BY kind, subject_type, subject, attempt
        ORDER BY ts_ns DESC LIMIT {limit:Int64}
        """,
        {"job": job, "limit": limit},
    )


def topology(store: Queryable, job: str) -> pa.Table:
    """Where each rank of the newest attempt stands: attempt, rank, local_rank, node, ip, switch, tp, pp, dp,
    cp, ep."""
    return store.query(
        """
        SELECT attempt, rank, any(local_rank) AS local_rank, any(node) AS node, any(ip) AS ip,
               any(switch) AS switch, any(tp) AS tp, any(pp) AS pp, any(dp) AS dp,
               any(cp) AS cp, any(ep) AS ep
        FROM topology
        WHERE job = {job:String}
          AND attempt = (SELECT max(attempt) FROM topology WHERE job = {job:String})
        GROUP BY attempt, rank ORDER BY rank
        """,
        {"job": job},
    )


def rank_states(store: Queryable, job: str, *, since_ns: int) -> pa.Table:
    """The last heartbeat of each rank since `since_ns`: rank, node, attempt, state, last_step, last_phase,
    phase_age_ns, ts_ns."""
    return store.query(
        """
        SELECT rank, argMax(node, ts) AS node, argMax(attempt, ts) AS attempt, argMax(state, ts) AS state,
               argMax(last_step, ts) AS last_step, argMax(last_phase, ts) AS last_phase,
               argMax(phase_age_ns, ts) AS phase_age_ns, toUnixTimestamp64Nano(max(ts)) AS ts_ns
        FROM heartbeats
        WHERE job = {job:String} AND rank >= 0 AND ts >= fromUnixTimestamp64Nano({since_ns:Int64})
        GROUP BY rank ORDER BY rank
        """,
        {"job": job, "since_ns": since_ns},
    )


def checkpoints(store: Queryable, job: str, *, steps: int = 40) -> pa.Table:
    """The newest `steps` checkpointed steps of a job: attempt, step, stage, tier, ranks, bytes, longest_ns,
    ts_ns."""
    return store.query(
        """
        SELECT attempt, step, stage, tier, uniq(rank) AS ranks, sum(bytes) AS bytes,
               max(duration_ns) AS longest_ns, toUnixTimestamp64Nano(max(ts)) AS ts_ns
        FROM checkpoints
        WHERE job = {job:String}
          AND step > (SELECT max(step) FROM checkpoints WHERE job = {job:String}) - {steps:Int64}
        GROUP BY attempt, step, stage, tier ORDER BY attempt DESC, step DESC, ts_ns LIMIT 2000
        """,
        {"job": job, "steps": steps},
    )


def checkpoint_tiers(store: Queryable, job: str) -> pa.Table:
    """For each tier the newest step that every rank has there: tier, step, attempt, ranks, copies, bytes,
    ts_ns. Memory and peers count for the newest attempt only."""
    return store.query(
        """
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
        )
        WHERE who = (
            SELECT max(known) FROM (
                SELECT uniq(rank) AS known FROM checkpoints
                WHERE job = {job:String} AND stage = 'copy' GROUP BY attempt, step
            )
        )
        GROUP BY tier ORDER BY tier
        """,
        {"job": job},
    )


def pace(store: Queryable, job: str) -> pa.Table:
    """Where the newest attempt of a job is: last_step, and step_ns, the median of its last 50 steps."""
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
    """The last value of the named metrics of every node since `since_ns`: node, device, name, value,
    ts_ns."""
    return store.query(
        """
        SELECT node, device, name, argMax(value, ts) AS value, toUnixTimestamp64Nano(max(ts)) AS ts_ns
        FROM metrics
        WHERE has(splitByChar(',', {names:String}), name) AND ts >= fromUnixTimestamp64Nano({since_ns:Int64})
        GROUP BY node, device, name ORDER BY node, name LIMIT {limit:Int64}
        """,
        {"names": ",".join(names), "since_ns": since_ns, "limit": MAX_CELLS},
    )


_CELLS = """
    WITH
    places AS (SELECT rank, argMax(pp, attempt) AS pp FROM topology WHERE job = {{job:String}} GROUP BY rank),
    each AS (
        SELECT any(node) AS node, rank, {column} AS col, phase, any(category) AS category,
               sum(duration_ns)
                 / groupBitmap(toUInt32((step - {{first:Int64}}) * 256 + attempt % 256)) AS value
        FROM span_rollup
        WHERE job = {{job:String}} AND {steps}
          AND ({{phase:String}} = '' OR phase = {{phase:String}})
        GROUP BY rank, col, phase),
    cohorts AS (
        SELECT col, phase, any(category) AS category, count() AS cohort,
               if(category = 'communication', quantileExactHigh(value), quantileExactLow(value)) AS usual,
               groupArray((node, rank, value)) AS members
        FROM each LEFT JOIN places USING (rank) GROUP BY pp, col, phase),
    compared AS (
        SELECT col, phase, category, cohort, usual, member.1 AS node, member.2 AS rank, member.3 AS value
        FROM cohorts ARRAY JOIN members AS member
        WHERE usual > 0 AND value > 0),
    cells AS ({cells}),
    rows AS (
        SELECT row, max(abs(odd.1 - odd.2)) AS oddness, count() OVER () AS rows_in_all,
               groupArray((col, phase, category, odd, node)) AS row_cells
        FROM cells GROUP BY row ORDER BY oddness DESC, row LIMIT {{limit:Int64}})
    SELECT toString(row) AS row, cell.1 AS col, cell.2 AS phase, cell.3 AS category,
           cell.4.1 / cell.4.2 AS ratio, toInt64(cell.4.1) AS value_ns, toInt64(cell.4.2) AS usual_ns,
           cell.4.3 AS rank, cell.5 AS node, cell.4.4 AS cohort, rows_in_all
    FROM rows ARRAY JOIN row_cells AS cell
    ORDER BY oddness DESC, row, col LIMIT {{limit:Int64}}
"""
_OF_ROWS = {
    "node": """
        SELECT node AS row, col, phase, any(category) AS category, node,
               argMax((value, usual, rank, cohort), abs(log(value / usual))) AS odd
        FROM compared GROUP BY node, col, phase""",
    "rank": """
        SELECT rank AS row, col, phase, category, node, (value, usual, rank, cohort) AS odd
        FROM compared""",
}
"""The cells of a heatmap's rows; a rank has but one value in each, so that nothing is left to group."""


def heat_by_phase(store: Queryable, job: str, *, by: str, first: int, last: int, sample: int = 0) -> pa.Table:
    """How long each phase took a row (`by` is "node" or "rank") in steps `first`..`last`, as a ratio to its
    cohort. `sample` > 0 looks at no more than so many steps, evenly spaced.

    The cohort is every rank of the same pipeline stage. Of the two middle ranks of an even cohort the median
    is the quicker one, for communication the one that waits longer, so that a slow half does not hide itself.
    A node's cell is its rank furthest from the median.
    Columns: row, phase, category, ratio, value_ns and usual_ns a step, rank, node, cohort (ranks),
    rows_in_all. Rows with the most time off come first; what exceeds `MAX_CELLS` is left out.
    """
    sql = _CELLS.format(column="phase", cells=_OF_ROWS[by], steps=_steps(first, last, sample))
    return store.query(sql, {"job": job, "first": first, "last": last, "phase": "", "limit": MAX_CELLS})


def heat_by_step(
    store: Queryable,
    job: str,
    *,
    by: str,
    phase: str,
    first: int,
    last: int,
    buckets: int = 40,
    sample: int = 0,
) -> pa.Table:
    """As `heat_by_phase` for one phase, with `col` the first step of each of at most `buckets` windows."""
    width = max(1, -(-(last - first + 1) // buckets))
    column = f"toString(step - (step - {{first:Int64}}) % {width:d})"
    sql = _CELLS.format(column=column, cells=_OF_ROWS[by], steps=_steps(first, last, sample))
    return store.query(sql, {"job": job, "first": first, "last": last, "phase": phase, "limit": MAX_CELLS})


def _steps(first: int, last: int, sample: int) -> str:
    """A condition for at most `sample` steps of a window (0: all of it) that the sorting key can use."""
    width = last - first + 1
    if not 0 < sample < width:
        return "step BETWEEN {first:Int64} AND {last:Int64}"
    place = f"intDiv(toInt64(number) * {width:d}, {sample:d})"
    return f"step IN (SELECT {{first:Int64}} + {place} FROM numbers({sample:d}))"


def spans(
    store: Queryable, job: str, *, ranks: Sequence[int], first: int, last: int, limit: int = 4000
) -> pa.Table:
    """The spans of chosen ranks (none: all) in steps `first`..`last`, oldest first; the longest `limit` of
    `spans_in_all`.

    A span reported several times while open is one row: its end where it has ended, else its greatest age.
    Columns: those of the `spans` record with start_ns in place of start.
    """
    return store.query(
        """
        SELECT * FROM (
            SELECT attempt, node, rank, step, microbatch, phase, category, lane, group, seq, parent,
                   any(bytes) AS bytes, toUnixTimestamp64Nano(start) AS start_ns,
                   argMax(spans.duration_ns, (NOT spans.open, spans.duration_ns)) AS duration_ns,
                   min(spans.open) AS open,
                   count() OVER () AS spans_in_all
            FROM spans
            WHERE job = {job:String} AND step BETWEEN {first:Int64} AND {last:Int64}
              AND ({ranks:String} = '' OR has(splitByChar(',', {ranks:String}), toString(rank)))
            GROUP BY attempt, node, rank, step, microbatch, phase, category, lane, group, seq, parent, start
            ORDER BY open DESC, duration_ns DESC LIMIT {limit:Int64})
        ORDER BY start_ns, duration_ns DESC
        """,
        {"job": job, "ranks": ",".join(map(str, ranks)), "first": first, "last": last, "limit": limit},
    )


def stored(store: Queryable) -> pa.Table:
    """What the store holds: record, rows, bytes on disk."""
    return store.query(
        """
        SELECT name AS record, toInt64(coalesce(total_rows, 0)) AS rows,
               toInt64(coalesce(total_bytes, 0)) AS bytes
        FROM system.tables WHERE database = currentDatabase() AND total_rows IS NOT NULL ORDER BY record
        """
    )
