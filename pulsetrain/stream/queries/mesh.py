"""SELECTs behind the topology: blocks of the mesh, the ranks of a part of it, and the peers of one rank."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsetrain.stream.queries.queryable import Queryable

MOST_BLOCKS = 64  # along the data-parallel axis
MOST_RANKS = 512
MOST_PEERS = 64  # of a rank along one axis

_BEAT = """rank, argMax(heartbeats.attempt, ts) AS beat_attempt, argMax(state, ts) AS beat_state,
               argMax(heartbeats.last_step, ts) AS last_step, argMax(heartbeats.last_phase, ts) AS last_phase,
               argMax(heartbeats.phase_age_ns, ts) AS phase_age_ns, toUnixTimestamp64Nano(max(ts)) AS ts_ns"""
_OF_RANKS = "job = {job:String} AND rank >= 0"
_RANKS = f"""
    places AS (
        SELECT rank, max(topology.attempt) AS attempt, argMax(topology.local_rank, ts) AS local_rank,
               argMax(topology.node, ts) AS node, argMax(topology.ip, ts) AS ip,
               argMax(topology.switch, ts) AS switch, argMax(topology.tp, ts) AS tp,
               argMax(topology.pp, ts) AS pp, argMax(topology.dp, ts) AS dp, argMax(topology.cp, ts) AS cp,
               argMax(topology.ep, ts) AS ep
        FROM topology
        WHERE job = {{job:String}}
          AND topology.attempt = (SELECT max(attempt) FROM topology WHERE job = {{job:String}})
        GROUP BY rank),
    beats AS (  -- of nearly all ranks the last seconds tell, so few of the older rows are read
        SELECT {_BEAT} FROM heartbeats
        WHERE {_OF_RANKS} AND ts >= fromUnixTimestamp64Nano({{fresh_ns:Int64}})
        GROUP BY rank
        UNION ALL
        SELECT {_BEAT} FROM heartbeats
        WHERE {_OF_RANKS} AND ts >= fromUnixTimestamp64Nano({{since_ns:Int64}})
          AND ts < fromUnixTimestamp64Nano({{fresh_ns:Int64}})
          AND rank NOT IN (SELECT rank FROM heartbeats
                           WHERE {_OF_RANKS} AND ts >= fromUnixTimestamp64Nano({{fresh_ns:Int64}}))
        GROUP BY rank),
    ranks AS (
        SELECT places.*, beat_attempt, beat_state, last_step, last_phase, phase_age_ns, ts_ns,
               multiIf(ts_ns < {{fresh_ns:Int64}} OR beat_attempt < attempt, 'no_data',
                       beat_state = 'stopped', 'stopped', beat_state IN ('zombie', 'gone'), 'gone', 'running')
                 AS state
        FROM places LEFT JOIN beats USING (rank))
"""


def mesh_blocks(
    store: Queryable, job: str, *, since_ns: int, fresh_ns: int, columns: int = MOST_BLOCKS
) -> pa.Table:
    """The mesh by pipeline stage and block of data-parallel replicas, at most `columns` of them.

    Heartbeats before `since_ns` are not read, and those before `fresh_ns` count as silence. Columns: pp,
    block, first_dp, last_dp, ranks, first_rank, no_data, stopped, gone (ranks in that state).
    """
    return store.query(
        f"""
        WITH {_RANKS}
        SELECT pp, intDiv(dp * least({{columns:Int64}}, replicas), replicas) AS block, min(dp) AS first_dp,
               max(dp) AS last_dp, count() AS ranks, min(rank) AS first_rank,
               countIf(state = 'no_data') AS no_data, countIf(state = 'stopped') AS stopped,
               countIf(state = 'gone') AS gone
        FROM (SELECT rank, pp, dp, state, max(dp) OVER () + 1 AS replicas
              FROM ranks WHERE pp >= 0 AND dp >= 0)
        GROUP BY pp, block ORDER BY pp, block
        """,
        {"job": job, "since_ns": since_ns, "fresh_ns": fresh_ns, "columns": columns},
    )


def mesh_ranks(
    store: Queryable,
    job: str,
    *,
    since_ns: int,
    fresh_ns: int,
    stage: int = -1,
    dps: tuple[int, int] | None = None,
    named: Sequence[int] = (),
    nodes: Sequence[str] = (),
    find: str = "",
    limit: int = MOST_RANKS,
) -> pa.Table:
    """Ranks of a part of the mesh, those that are named or not running first.

    `stage` and `dps` choose a part. `find` is a rank's number, or a piece of a node, address or switch.
    `named` ranks and ranks of `nodes` come first. Columns: those of `topology`, state (no_data, stopped, gone
    or running), last_step, last_phase, phase_age_ns, ts_ns (of the last heartbeat, 0 for none), ranks_in_all.
    """
    low, high = dps or (-1, -1)
    return store.query(
        f"""
        WITH {_RANKS}
        SELECT *, count() OVER () AS ranks_in_all FROM ranks
        WHERE ({{stage:Int64}} < 0 OR pp = {{stage:Int64}})
          AND ({{low:Int64}} < 0 OR dp BETWEEN {{low:Int64}} AND {{high:Int64}})
          AND ({{find:String}} = '' OR toString(rank) = {{find:String}} OR
               (NOT match({{find:String}}, '^[0-9]+$')
                AND position(lower(concat(node, ' ', ip, ' ', switch)), {{find:String}}) > 0))
        ORDER BY has({{named:Array(Int32)}}, rank) OR has({{nodes:Array(String)}}, node) DESC,
                 state IN ('stopped', 'gone') DESC, rank
        LIMIT {{limit:Int64}}
        """,
        {
            "job": job, "since_ns": since_ns, "fresh_ns": fresh_ns, "stage": stage, "low": low, "high": high,
            "named": list(named), "nodes": list(nodes), "find": find, "limit": limit,
        },
    )  # fmt: skip


def mesh_peers(
    store: Queryable, job: str, *, rank: int, at: tuple[int, int, int, int, int], limit: int = MOST_PEERS
) -> pa.Table:
    """Ranks of the newest attempt that differ from a rank in one coordinate, the nearest first.

    `at` are its own coordinates: tp, pp, dp, cp, ep. The expert-parallel one counts only where ranks differ
    in it alone. Elsewhere it follows from the others. Columns: axis (of the difference), rank, node, tp, pp,
    dp, cp, ep, peers_in_all (along that axis, of which `limit` are returned).
    """
    tp, pp, dp, cp, ep = at
    same = ("(tp = {tp:Int32})", "(pp = {pp:Int32})", "(dp = {dp:Int32})", "(cp = {cp:Int32})")
    matching = " + ".join(same)
    away = "multiIf(axis = 'tp', tp - {tp:Int32}, axis = 'pp', pp - {pp:Int32}, axis = 'dp', dp - {dp:Int32},"
    return store.query(
        f"""
        WITH
        places AS (
            SELECT rank, argMax(topology.node, ts) AS node, argMax(topology.tp, ts) AS tp,
                   argMax(topology.pp, ts) AS pp, argMax(topology.dp, ts) AS dp,
                   argMax(topology.cp, ts) AS cp, argMax(topology.ep, ts) AS ep
            FROM topology
            WHERE job = {{job:String}}
              AND topology.attempt = (SELECT max(attempt) FROM topology WHERE job = {{job:String}})
            GROUP BY rank),
        near AS (
            SELECT *, {matching} AS matching, countIf(matching = 4) OVER () AS here FROM places),
        peers AS (
            SELECT *, multiIf(matching = 4, 'ep', NOT {same[0]}, 'tp', NOT {same[1]}, 'pp', NOT {same[2]},
                              'dp', 'cp') AS axis
            FROM near
            WHERE rank != {{rank:Int32}} AND if(ep = {{ep:Int32}}, matching = 3,
                                                matching = 4 OR (matching = 3 AND here = 1)))
        SELECT axis, rank, node, tp, pp, dp, cp, ep, count() OVER (PARTITION BY axis) AS peers_in_all
        FROM peers
        ORDER BY axis, abs({away} axis = 'cp', cp - {{cp:Int32}}, ep - {{ep:Int32}})), rank
        LIMIT {{limit:Int64}} BY axis
        """,
        {"job": job, "rank": rank, "tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "limit": limit},
    )
