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


def attempt_extent(store: Queryable, job: str, attempt: int) -> pa.Table:
    """What `extent` says of one attempt, without `ranks`: at most one row. Reads the ends of the order key,
    however long the job has been running."""
    return store.query(
        """
        SELECT {attempt:Int32} AS attempt,
               (SELECT step FROM steps WHERE job = {job:String} AND attempt = {attempt:Int32}
                ORDER BY step LIMIT 1) AS first_step,
               (SELECT step FROM steps WHERE job = {job:String} AND attempt = {attempt:Int32}
                ORDER BY step DESC LIMIT 1) AS last_step
        """,
        {"job": job, "attempt": attempt},
    ).drop_null()


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


def rank_nodes(store: Queryable, job: str, attempt: int, since: int, until: int) -> pa.Table:
    """Ranks that have steps in a range, and where they ran: rank, node."""
    return store.query(
        """
        SELECT rank, any(node) AS node FROM steps
        WHERE job = {job:String} AND attempt = {attempt:Int32}
          AND step BETWEEN {since:Int64} AND {until:Int64}
        GROUP BY rank ORDER BY rank
        """,
        {"job": job, "attempt": attempt, "since": since, "until": until},
    )


def steps(store: Queryable, job: str, attempt: int, since: int, until: int) -> pa.Table:
    """Steps `since`..`until` of an attempt, one row a step and rank: step, rank, duration_ns, tokens, flops,
    loss, grad_norm (NULL: not logged)."""
    return store.query(
        """
        SELECT step, rank, max(duration_ns) AS duration_ns, max(tokens) AS tokens, any(flops) AS flops,
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
    checkpoint, gc, gc_longest, cpu_wait (runnable without a processor, in what computes), aside (evaluation
    and phases of the user's own, net of nothing).

    `compute` and `communication` name the phases of those categories; nested phases count once.
    """
    return store.query(
        """
        SELECT step, rank,
          sum(took * (computes * (NOT in_compute) - communicates * in_compute)) AS compute,
          sum(took * communicates * (parent NOT IN {communication:Array(String)})) AS wait,
          sum(took * ((phase = 'forward') - communicates) * own_forward) AS forward,
          sum(took * ((phase = 'backward') - communicates) * own_backward) AS backward,
          sum(took * ((phase = 'optimizer') - communicates) * own_optimizer) AS optimizer,
          sum(took * (category = 'data')) AS data,
          sum(took * (category = 'checkpoint')) AS checkpoint,
          sum(took * (phase = 'gc')) AS gc,
          max(longest_ns * (phase = 'gc')) AS gc_longest,
          sum(took * (phase = 'cpu_wait')) AS cpu_wait,
          sum(took * (category = 'other') * (phase NOT IN ('gc', 'cpu_wait')) * (parent = '')) AS aside
        FROM (
          SELECT step, rank, phase, category, parent, longest_ns, duration_ns AS took,
                 category = 'compute' AS computes, category = 'communication' AS communicates,
                 parent IN {compute:Array(String)} AS in_compute,
                 (phase = 'forward' AND parent != 'forward') OR (communicates AND parent = 'forward')
                   AS own_forward,
                 (phase = 'backward' AND parent != 'backward') OR (communicates AND parent = 'backward')
                   AS own_backward,
                 (phase = 'optimizer' AND parent != 'optimizer') OR (communicates AND parent = 'optimizer')
                   AS own_optimizer
          FROM span_rollup
          WHERE job = {job:String} AND attempt = {attempt:Int32}
            AND step BETWEEN {since:Int64} AND {until:Int64})
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


def group_transfers(store: Queryable, job: str, attempt: int, since: int, until: int) -> pa.Table:
    """How long the collectives of each process group took to transfer, one row a step, group and phase: step,
    group, phase, transfer_ns (sum over operations of the shortest time that a member spent in it, which the
    last to come spends on the transfer alone), bytes (sum), members (ranks that took part)."""
    return store.query(
        """
        SELECT step, `group`, phase, sum(shortest_ns) AS transfer_ns, sum(payload) AS bytes,
               max(joined) AS members
        FROM (
          SELECT step, `group`, phase, seq, min(s.duration_ns) AS shortest_ns, max(s.bytes) AS payload,
                 count() AS joined
          FROM spans AS s
          WHERE job = {job:String} AND attempt = {attempt:Int32}
            AND step BETWEEN {since:Int64} AND {until:Int64}
            AND category = 'communication' AND NOT s.open AND `group` != '' AND seq >= 0
            AND phase NOT IN ('send', 'recv', 'barrier')
          GROUP BY step, `group`, phase, seq)
        WHERE joined > 1 AND payload > 0
        GROUP BY step, `group`, phase
        """,
        {"job": job, "attempt": attempt, "since": since, "until": until},
    )


def group_members(store: Queryable, job: str, attempt: int, since: int, until: int) -> pa.Table:
    """Ranks that took part in the communication of each process group: group, ranks (list)."""
    return store.query(
        """
        SELECT `group`, groupUniqArray(rank) AS ranks FROM spans
        WHERE job = {job:String} AND attempt = {attempt:Int32}
          AND step BETWEEN {since:Int64} AND {until:Int64} AND category = 'communication' AND `group` != ''
        GROUP BY `group`
        """,
        {"job": job, "attempt": attempt, "since": since, "until": until},
    )
