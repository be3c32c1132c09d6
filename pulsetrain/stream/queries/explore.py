"""SELECTs of the pages that explore: logs, counters, events, and one rank or node beside its cohort.

Times are ranges of UTC nanoseconds, both ends included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pulsetrain.stream.queries.queryable import Queryable

_DURING = "ts BETWEEN fromUnixTimestamp64Nano({from_ns:Int64}) AND fromUnixTimestamp64Nano({to_ns:Int64})"
_NODES = "(SELECT DISTINCT node FROM topology WHERE job = {job:String})"
"""of all attempts: what a node said before it was replaced is what people look for"""
_THEIR_NODES = _NODES[:-1] + " AND has({ranks:Array(Int32)}, rank))"


@dataclass(frozen=True, kw_only=True)
class LogFilter:
    """Which lines. Empty `ranks`, `severities`, `node` and `source` mean all. `text` is inside a line.

    With `ranks` come the lines of the kernels of their nodes.
    """

    from_ns: int = 0
    to_ns: int = 0
    ranks: tuple[int, ...] = ()
    node: str = ""
    source: str = ""
    severities: tuple[str, ...] = ()
    text: str = ""
    limit: int = 300


def log_lines(store: Queryable, job: str, wanted: LogFilter) -> pa.Table:
    """The newest lines of a job and of the kernels of its nodes, newest first.

    Columns: ts_ns, node, rank, attempt, source, severity, message, rule, lines_in_all.
    """
    of_ranks = f"AND (has({{ranks:Array(Int32)}}, rank) OR (job = '' AND node IN {_THEIR_NODES}))"
    return store.query(
        f"""
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, node, rank, attempt, source, severity, message, rule,
               count() OVER () AS lines_in_all
        FROM logs
        WHERE {_DURING} AND (job = {{job:String}} OR (job = '' AND node IN {_NODES}))
          {of_ranks if wanted.ranks else ""}
          AND ({{node:String}} = '' OR node = {{node:String}})
          AND ({{source:String}} = '' OR source = {{source:String}})
          AND (empty({{severities:Array(String)}}) OR has({{severities:Array(String)}}, severity))
          AND ({{text:String}} = '' OR positionCaseInsensitiveUTF8(message, {{text:String}}) > 0)
        ORDER BY ts DESC, node, rank, source, message LIMIT {{limit:Int64}}
        """,
        {
            "job": job, "from_ns": wanted.from_ns, "to_ns": wanted.to_ns, "ranks": list(wanted.ranks),
            "node": wanted.node, "source": wanted.source, "severities": list(wanted.severities),
            "text": wanted.text, "limit": wanted.limit,
        },
    )  # fmt: skip


def _on(nodes: Sequence[str], ranks: Sequence[int]) -> str:
    """A condition on `node`: of the job, and one of these, or of these ranks. Both empty: all of the job."""
    named = "has({nodes:Array(String)}, node)" if nodes else ""
    theirs = f"node IN {_THEIR_NODES}" if ranks else ""
    either = " OR ".join(condition for condition in (named, theirs) if condition)
    return f"node IN {_NODES}" + (f" AND ({either})" if either else "")


_FULL_NODES, _FULL_NS = 256, 3_600_000_000_000


def _counted_from(nodes: Sequence[str], ranks: Sequence[int], *, whole: bool) -> str:
    """Since when counters of so many nodes are counted and compared, in nanoseconds, as an expression.

    That is all of the time for an hour of 256 nodes, and at its end so much less as there are more nodes: an
    hour of 12,288 nodes with eight ports has 280 million samples, and nobody waits for them. `whole`: all.
    """
    if whole:
        return "{from_ns:Int64}"
    chosen = f"WHERE {_on(nodes, ranks)}" if nodes or ranks else "WHERE job = {job:String}"
    many = f"(SELECT greatest({_FULL_NODES}, toInt64(uniqExact(node))) FROM topology {chosen})"
    return f"greatest({{from_ns:Int64}}, {{to_ns:Int64}} - intDiv({_FULL_NODES * _FULL_NS}, {many}))"


def metric_names(
    store: Queryable,
    job: str,
    *,
    from_ns: int,
    to_ns: int,
    nodes: Sequence[str] = (),
    ranks: Sequence[int] = (),
    whole: bool = False,
) -> pa.Table:
    """Counters and gauges of a job's nodes: name, nodes, devices, samples, counted_ns.

    With `nodes` or `ranks`: of these nodes, and of the nodes of these ranks. `counted_ns` is since when they
    are counted: of very many nodes at the end of the time alone, unless `whole`.
    """
    counted_ns = _counted_from(nodes, ranks, whole=whole)
    return store.query(
        f"""
        WITH {counted_ns} AS counted_from_ns
        SELECT name, uniq(node) AS nodes, uniq(node, device) AS devices, count() AS samples,
               any(counted_from_ns) AS counted_ns
        FROM metrics
        WHERE ts BETWEEN fromUnixTimestamp64Nano(counted_from_ns) AND fromUnixTimestamp64Nano({{to_ns:Int64}})
          AND {_on(nodes, ranks)}
        GROUP BY name ORDER BY name
        """,
        {"job": job, "from_ns": from_ns, "to_ns": to_ns, "nodes": list(nodes), "ranks": list(ranks)},
    )


def metric_series(
    store: Queryable,
    job: str,
    *,
    name: str,
    from_ns: int,
    to_ns: int,
    nodes: Sequence[str] = (),
    ranks: Sequence[int] = (),
    whole: bool = False,
    points: int = 240,
    series: int = 12,
) -> pa.Table:
    """One counter over time: at most `series` lines of at most `points` points, those that moved most first.

    Columns: node, device, ts_ns, value (the last of its bin), series_in_all. `nodes` and `ranks` as for
    `metric_names`. They are compared over the time in which `metric_names` counts, and drawn over all of it.
    """
    samples = f"metrics WHERE {_DURING} AND name = {{name:String}} AND {_on(nodes, ranks)}"
    return store.query(
        f"""
        WITH {_counted_from(nodes, ranks, whole=whole)} AS counted_from_ns,
        ranked AS (
            SELECT node, device, max(value) - min(value) AS moved, count() OVER () AS series_in_all
            FROM {samples} AND ts >= fromUnixTimestamp64Nano(counted_from_ns)
            GROUP BY node, device ORDER BY moved DESC, node, device LIMIT {{series:Int64}}),
        binned AS (
            SELECT node, device, toInt64(intDiv(toUnixTimestamp64Nano(ts) - {{from_ns:Int64}},
                       greatest(1, intDiv({{to_ns:Int64}} - {{from_ns:Int64}}, {{points:Int64}})))) AS bin,
                   toUnixTimestamp64Nano(max(ts)) AS ts_ns, argMax(value, ts) AS value
            FROM {samples} AND (node, device) IN (SELECT node, device FROM ranked)
            GROUP BY node, device, bin)
        SELECT node, device, ts_ns, value, series_in_all
        FROM binned JOIN ranked USING (node, device) ORDER BY moved DESC, node, device, ts_ns
        """,
        {
            "job": job, "name": name, "from_ns": from_ns, "to_ns": to_ns, "nodes": list(nodes),
            "ranks": list(ranks), "points": points, "series": series,
        },
    )  # fmt: skip


def step_starts(store: Queryable, job: str, steps: Sequence[int]) -> pa.Table:
    """When these steps first began on any rank: attempt, step, ts_ns, in order of attempt and step.

    It reads these steps alone: the table is sorted by them.
    """
    return store.query(
        """
        SELECT attempt, step, toUnixTimestamp64Nano(min(start)) AS ts_ns
        FROM steps WHERE job = {job:String} AND step IN {steps:Array(Int64)}
        GROUP BY attempt, step ORDER BY attempt, step
        """,
        {"job": job, "steps": list(steps)},
    )


def steps_during(store: Queryable, job: str, *, from_ns: int, to_ns: int) -> pa.Table:
    """The steps that began on any rank in a time: first_step, last_step. No row for none.

    `newest_step` is the last one of the newest attempt among them. Whole minutes and single steps are read,
    as the projection `by_step` has them, not the row of each rank.
    """
    return store.query(
        """
        WITH fromUnixTimestamp64Nano({from_ns:Int64}) AS began,
             fromUnixTimestamp64Nano({to_ns:Int64}) AS ended,
             toStartOfMinute(began) AS first_minute, toStartOfMinute(ended) AS last_minute
        SELECT min(low) AS first_step, max(high) AS last_step, max((attempt, high)).2 AS newest_step
        FROM (
            SELECT attempt, min(step) AS low, max(step) AS high FROM steps
            WHERE job = {job:String}
              AND toStartOfMinute(start) > first_minute AND toStartOfMinute(start) < last_minute
            GROUP BY attempt
            UNION ALL
            SELECT attempt, step AS low, step AS high FROM steps
            WHERE job = {job:String} AND toStartOfMinute(start) IN (first_minute, last_minute)
            GROUP BY attempt, step HAVING min(start) <= ended AND max(start) >= began)
        HAVING count() > 0
        """,
        {"job": job, "from_ns": from_ns, "to_ns": to_ns},
    )


def node_counters(store: Queryable, node: str, *, from_ns: int, to_ns: int) -> pa.Table:
    """The newest value of every counter of a node: name, device, value, ts_ns."""
    return store.query(
        f"""
        SELECT name, device, argMax(value, ts) AS value, toUnixTimestamp64Nano(max(ts)) AS ts_ns
        FROM metrics WHERE {_DURING} AND node = {{node:String}}
        GROUP BY name, device ORDER BY name, device LIMIT 500
        """,
        {"node": node, "from_ns": from_ns, "to_ns": to_ns},
    )


def event_lines(
    store: Queryable, job: str, *, from_ns: int, to_ns: int, kind: str = "", text: str = "", limit: int = 300
) -> pa.Table:
    """What somebody did or what changed, newest first.

    Columns: ts_ns, kind, node, rank, attempt, actor, detail (JSON), events_in_all.
    """
    return store.query(
        f"""
        SELECT toUnixTimestamp64Nano(ts) AS ts_ns, kind, node, rank, attempt, actor, detail,
               count() OVER () AS events_in_all
        FROM events
        WHERE {_DURING} AND job = {{job:String}} AND ({{kind:String}} = '' OR kind = {{kind:String}})
          AND ({{text:String}} = '' OR positionCaseInsensitiveUTF8(
                   concat(kind, ' ', node, ' ', actor, ' ', detail), {{text:String}}) > 0)
        ORDER BY ts DESC, kind, node, rank, detail LIMIT {{limit:Int64}}
        """,
        {"job": job, "from_ns": from_ns, "to_ns": to_ns, "kind": kind, "text": text, "limit": limit},
    )


def event_kinds(store: Queryable, job: str, *, from_ns: int, to_ns: int) -> pa.Table:
    """Kinds of events of a job: kind, times."""
    return store.query(
        f"""
        SELECT kind, count() AS times FROM events WHERE {_DURING} AND job = {{job:String}}
        GROUP BY kind ORDER BY kind
        """,
        {"job": job, "from_ns": from_ns, "to_ns": to_ns},
    )


def work_beside_cohort(
    store: Queryable, job: str, *, ranks: Sequence[int], first: int, last: int, most_steps: int = 100
) -> pa.Table:
    """The working time of ranks in each step, beside the other ranks of their stage.

    It is without the time that they stood still for communication. At most `most_steps` evenly spaced steps.
    Columns: attempt, step, rank, work_ns, usual_ns (median of the stage), low_ns and high_ns (its 10th and
    90th percentile), cohort (ranks).
    """
    return store.query(
        """
        WITH
        places AS (
            SELECT rank, argMax(pp, (attempt, ts)) AS pp
            FROM topology WHERE job = {job:String} GROUP BY rank),
        others AS (  -- the ranks of the same stages: all, where the stage of a chosen rank is not known
            SELECT rank FROM places
            WHERE pp IN (SELECT pp FROM places WHERE has({ranks:Array(Int32)}, rank))),
        work AS (
            SELECT attempt, step, rank,
                   sumIf(duration_ns, category = 'compute' AND parent = '') AS took,
                   sumIf(blocked_ns, category = 'compute' AND parent = '') AS blocked,
                   sumIf(blocked_known, category = 'compute' AND parent = '')
                     = sumIf(spans, category = 'compute' AND parent = '') AS known,
                   sumIf(duration_ns, category = 'communication' AND parent != '') AS inside,
                   took - if(known, blocked, inside) AS work_ns
            FROM span_rollup
            WHERE job = {job:String} AND step IN (
                SELECT {first:Int64} + intDiv(toInt64(number) * ({last:Int64} - {first:Int64} + 1), {n:Int64})
                FROM numbers({n:UInt64}))
              AND ({n_ranks:UInt64} > (SELECT count() FROM places WHERE has({ranks:Array(Int32)}, rank))
                   OR rank IN others)
            GROUP BY attempt, step, rank HAVING work_ns > 0),
        of_stage AS (
            SELECT attempt, step, ifNull(pp, 0) AS stage, quantileExactLow(work_ns) AS usual_ns,
                   quantileExactLow(0.1)(work_ns) AS low_ns, quantileExactHigh(0.9)(work_ns) AS high_ns,
                   count() AS cohort, groupArrayIf((rank, work_ns), has({ranks:Array(Int32)}, rank)) AS chosen
            FROM work LEFT JOIN places USING (rank) GROUP BY attempt, step, stage)
        SELECT attempt, step, one.1 AS rank, one.2 AS work_ns, usual_ns, low_ns, high_ns, cohort
        FROM of_stage ARRAY JOIN chosen AS one ORDER BY rank, attempt, step
        """,
        {
            "job": job, "ranks": list(ranks), "first": first, "last": last, "n_ranks": len(set(ranks)),
            "n": max(1, min(most_steps, last - first + 1)),
        },
    )  # fmt: skip


def node_checkpoints(store: Queryable, job: str, ranks: Sequence[int]) -> pa.Table:
    """What ranks of a node have checkpointed in the newest 200 steps with any, by tier and stage.

    A step of a later attempt is newer than a higher one of an attempt before.

    Columns: tier, stage, ranks, newest (step that all of these ranks have), size (bytes of it, all ranks),
    took_ns (the longest of it), ts_ns.
    """
    return store.query(
        """
        WITH last AS (
            SELECT stage, tier, rank, max((attempt, step)) AS newest_step,
                   argMax(bytes, (attempt, step, ts)) AS size,
                   argMax(duration_ns, (attempt, step, ts)) AS took_ns, max(ts) AS at
            FROM checkpoints
            WHERE job = {job:String} AND has({ranks:Array(Int32)}, rank)
              AND (attempt, step) IN (
                SELECT attempt, step FROM checkpoints WHERE job = {job:String}
                GROUP BY attempt, step ORDER BY attempt DESC, step DESC LIMIT 200)
            GROUP BY stage, tier, rank)
        SELECT tier, stage, count() AS ranks, min(newest_step).2 AS newest, sum(last.size) AS size,
               max(last.took_ns) AS took_ns,
               toUnixTimestamp64Nano(max(at)) AS ts_ns
        FROM last GROUP BY tier, stage ORDER BY tier, stage
        """,
        {"job": job, "ranks": list(ranks)},
    )


def node_gpus(store: Queryable, node: str) -> pa.Table:
    """The newest list of GPUs that a node's agent sent: detail (JSON, `{"gpus": [...]}`). Or no row."""
    return store.query(
        """
        SELECT argMax(detail, ts) AS detail FROM events WHERE events.kind = 'gpus' AND node = {node:String}
        HAVING count() > 0
        """,
        {"node": node},
    )


def rank_checkpoints(store: Queryable, job: str, rank: int) -> pa.Table:
    """The newest checkpointed step of a rank's newest attempt by stage and tier: stage, tier, newest,
    in_attempt, size, took_ns, ts_ns."""
    return store.query(
        """
        SELECT stage, tier, max((attempt, step)).2 AS newest, max(attempt) AS in_attempt,
               argMax(bytes, (attempt, step, ts)) AS size,
               argMax(duration_ns, (attempt, step, ts)) AS took_ns,
               toUnixTimestamp64Nano(max(ts)) AS ts_ns
        FROM checkpoints WHERE job = {job:String} AND rank = {rank:Int32}
        GROUP BY stage, tier ORDER BY tier, stage
        """,
        {"job": job, "rank": rank},
    )
