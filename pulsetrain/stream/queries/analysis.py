"""Every SELECT behind the analyzers. Each function takes a store and returns an Arrow table.

Spans come from the rollup (closed spans summed by step, rank, phase and the phase they ran inside), so that a
step of a rank is a handful of rows however many operations it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa


class Queryable(Protocol):
    """What answers a SELECT."""

    def query(self, sql: str, params: Mapping[str, Any] | None = None) -> pa.Table:
        """The result of `sql`; ``{name:Type}`` takes its value from `params`."""
        ...


def extent(store: Queryable, job: str) -> pa.Table:
    """What is on record of a job, newest attempt first: attempt, first_step, last_step, ranks."""
    return store.query(
        """
        SELECT attempt, min(step) AS first_step, max(step) AS last_step, uniq(rank) AS ranks
        FROM steps WHERE job = {job:String} GROUP BY attempt ORDER BY attempt DESC
        """,
        {"job": job},
    )


def topology(store: Queryable, job: str, attempt: int) -> pa.Table:
    """Where each rank of an attempt stands: rank, node, tp, pp, dp, cp, ep; sorted by rank."""
    return store.query(
        """
        SELECT rank, any(node) AS node, any(tp) AS tp, any(pp) AS pp, any(dp) AS dp, any(cp) AS cp,
               any(ep) AS ep
        FROM topology WHERE job = {job:String} AND attempt = {attempt:Int32}
        GROUP BY rank ORDER BY rank
        """,
        {"job": job, "attempt": attempt},
    )


def steps(store: Queryable, job: str, attempt: int, since: int, until: int) -> pa.Table:
    """Steps `since`..`until` of an attempt, one row a step and rank: step, rank, node, start_ns, duration_ns,
    tokens, flops, loss, grad_norm (NULL: not logged)."""
    return store.query(
        """
        SELECT step, rank, any(node) AS node, toUnixTimestamp64Nano(min(start)) AS start_ns,
               max(duration_ns) AS duration_ns, max(tokens) AS tokens, any(flops) AS flops,
               any(loss) AS loss, any(grad_norm) AS grad_norm
        FROM steps
        WHERE job = {job:String} AND attempt = {attempt:Int32}
          AND step BETWEEN {since:Int64} AND {until:Int64}
        GROUP BY step, rank
        """,
        {"job": job, "attempt": attempt, "since": since, "until": until},
    )


def phase_names(store: Queryable, job: str, attempt: int, since: int, until: int) -> pa.Table:
    """Phases of an attempt with what they are: phase, category."""
    return store.query(
        """
        SELECT DISTINCT phase, category FROM span_rollup
        WHERE job = {job:String} AND attempt = {attempt:Int32}
          AND step BETWEEN {since:Int64} AND {until:Int64}
        """,
        {"job": job, "attempt": attempt, "since": since, "until": until},
    )


def step_parts(
    store: Queryable,
    job: str,
    attempt: int,
    since: int,
    until: int,
    *,
    compute: Sequence[str],
    communication: Sequence[str],
) -> pa.Table:
    """Where the time of each step of each rank went, in ns: step, rank, compute (net of the communication
    inside it), wait (all communication), forward, backward, optimizer (each net of communication), data,
    checkpoint, gc, gc_longest, aside (evaluation and phases of the user's own, net of nothing).

    `compute` and `communication` name the phases of those categories; nested phases count once.
    """
    return store.query(
        """
        SELECT step, rank,
          sumIf(duration_ns, category = 'compute' AND NOT has({compute:Array(String)}, parent))
            - sumIf(duration_ns, category = 'communication' AND has({compute:Array(String)}, parent))
            AS compute,
          sumIf(duration_ns, category = 'communication' AND NOT has({communication:Array(String)}, parent))
            AS wait,
          sumIf(duration_ns, phase = 'forward' AND parent != 'forward')
            - sumIf(duration_ns, category = 'communication' AND parent = 'forward') AS forward,
          sumIf(duration_ns, phase = 'backward' AND parent != 'backward')
            - sumIf(duration_ns, category = 'communication' AND parent = 'backward') AS backward,
          sumIf(duration_ns, phase = 'optimizer' AND parent != 'optimizer')
            - sumIf(duration_ns, category = 'communication' AND parent = 'optimizer') AS optimizer,
          sumIf(duration_ns, category = 'data') AS data,
          sumIf(duration_ns, category = 'checkpoint') AS checkpoint,
          sumIf(duration_ns, phase = 'gc') AS gc,
          maxIf(longest_ns, phase = 'gc') AS gc_longest,
          sumIf(duration_ns, category = 'other' AND phase != 'gc' AND parent = '') AS aside
        FROM span_rollup
        WHERE job = {job:String} AND attempt = {attempt:Int32}
          AND step BETWEEN {since:Int64} AND {until:Int64}
        GROUP BY step, rank
        """,
        {
            "job": job,
            "attempt": attempt,
            "since": since,
            "until": until,
            "compute": list(compute),
            "communication": list(communication),
        },
    )
