"""What a timeline needs beside spans: when nodes left their collectives, to compare their clocks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsetrain.stream.queries.queryable import Queryable

MOST_ENDS = 20_000


def collective_ends(store: Queryable, job: str, *, ranks: Sequence[int], first: int, last: int) -> pa.Table:
    """When nodes first saw the end of the collectives that two or more of them shared, newest first.

    Only collectives of the given ranks in steps `first`..`last` count, and the newest 20,000 rows are kept.
    Columns: attempt, step, group, seq, node, end_ns (UTC, on the clock of the node).
    """
    chosen = ", ".join(str(int(rank)) for rank in ranks) or "-1"
    return store.query(
        f"""
        SELECT attempt, step, `group`, seq, node, end_ns FROM (
            SELECT attempt, step, `group`, seq, node,
                   min(toUnixTimestamp64Nano(s.start) + s.duration_ns) AS end_ns,
                   count() OVER (PARTITION BY attempt, step, `group`, seq) AS nodes
            FROM spans AS s
            WHERE job = {{job:String}} AND step BETWEEN {{first:Int64}} AND {{last:Int64}}
              AND rank IN ({chosen}) AND category = 'communication' AND NOT s.open AND `group` != ''
              AND seq >= 0 AND peer < 0 AND phase NOT IN ('send', 'recv')
            GROUP BY attempt, step, `group`, seq, node)
        WHERE nodes > 1
        ORDER BY attempt DESC, step DESC, `group`, seq DESC, node LIMIT {{limit:Int64}}
        """,
        {"job": job, "first": first, "last": last, "limit": MOST_ENDS},
    )
