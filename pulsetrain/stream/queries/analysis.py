"""Every SELECT behind the analyzers of steps, ranks and links. Each function returns an Arrow table.

Durations of spans come from the rollup: closed spans summed by step, rank, phase and the phase they ran
inside. So a step of a rank is a handful of rows however many operations it had.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsetrain.stream.queries.queryable import IN_RANGE, AttemptSteps, Queryable


def extent(store: Queryable, job: str) -> pa.Table:
    """The steps of a job on record, newest attempt first: attempt, first_step, last_step, ranks."""
    return store.query(
        """
        SELECT attempt, min(step) AS first_step, max(step) AS last_step, uniq(rank) AS ranks
        FROM steps WHERE job = {job:String} GROUP BY attempt ORDER BY attempt DESC
        """,
        {"job": job},
    )


def attempt_extent(store: Queryable, job: str, attempt: int) -> pa.Table:
    """The steps of one attempt on record, at most one row: attempt, first_step, last_step.

    Reads only the ends of the order key, however long the job has been running.
    """
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
    """The node and the mesh coordinates of each rank: rank, node, tp, pp, dp, cp, ep. Sorted by rank."""
    return store.query(
        """
        SELECT rank, any(node) AS node, any(tp) AS tp, any(pp) AS pp, any(dp) AS dp, any(cp) AS cp,
               any(ep) AS ep
        FROM topology WHERE job = {job:String} AND attempt = {attempt:Int32}
        GROUP BY rank ORDER BY rank
        """,
        {"job": job, "attempt": attempt},
    )


def rank_nodes(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """Ranks that have one of these steps, and the node each ran on: rank, node."""
    return store.query(
        f"SELECT rank, any(node) AS node FROM steps WHERE {IN_RANGE} GROUP BY rank ORDER BY rank",
        steps.params,
    )


def steps(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """What each rank reported of each step: step, rank, duration_ns, tokens, flops, loss, grad_norm.

    NULL: not logged.
    """
    return store.query(
        f"""
        SELECT step, rank, max(duration_ns) AS duration_ns, max(tokens) AS tokens, any(flops) AS flops,
               any(loss) AS loss, any(grad_norm) AS grad_norm
        FROM steps WHERE {IN_RANGE}
        GROUP BY step, rank
        """,
        steps.params,
    )


def phase_names(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """The phases of these steps: phase, category."""
    return store.query(f"SELECT DISTINCT phase, category FROM span_rollup WHERE {IN_RANGE}", steps.params)


_PHASES_WITH_PARENTS = f"""
    SELECT step, rank, phase, category, parent, longest_ns, duration_ns AS took,
           category = 'compute' AS computes, category = 'communication' AS communicates,
           parent IN {{compute:Array(String)}} AS in_compute,
           (phase = 'forward' AND parent != 'forward') OR (communicates AND parent = 'forward')
             AS own_forward,
           (phase = 'backward' AND parent != 'backward') OR (communicates AND parent = 'backward')
             AS own_backward,
           (phase = 'optimizer' AND parent != 'optimizer') OR (communicates AND parent = 'optimizer')
             AS own_optimizer
    FROM span_rollup WHERE {IN_RANGE}
"""
_STEP_PARTS = f"""
    SELECT step, rank,
      sum(took * (computes * (NOT in_compute) - communicates * in_compute)) AS compute,
      sum(took * communicates * (parent NOT IN {{communication:Array(String)}})) AS wait,
      sum(took * ((phase = 'forward') - communicates) * own_forward) AS forward,
      sum(took * ((phase = 'backward') - communicates) * own_backward) AS backward,
      sum(took * ((phase = 'optimizer') - communicates) * own_optimizer) AS optimizer,
      sum(took * (category = 'data')) AS data,
      sum(took * (category = 'checkpoint')) AS checkpoint,
      sum(took * (phase = 'gc')) AS gc,
      max(longest_ns * (phase = 'gc')) AS gc_longest,
      sum(took * (phase = 'cpu_wait')) AS cpu_wait,
      sum(took * (category = 'other') * (phase NOT IN ('gc', 'cpu_wait')) * (parent = '')) AS other
    FROM ({_PHASES_WITH_PARENTS})
    GROUP BY step, rank
"""


def step_parts(
    store: Queryable, steps: AttemptSteps, *, compute: Sequence[str], communication: Sequence[str]
) -> pa.Table:
    """Where the time of each step of each rank went, in ns.

    Columns: step, rank, compute (net of the communication inside it), wait (all communication), forward,
    backward, optimizer (each net of communication), data, checkpoint, gc, gc_longest, cpu_wait (runnable
    without a processor, while computing), other (evaluation and the user's own phases, not net of anything).

    `compute` and `communication` name the phases of those categories. Nested phases count once.
    """
    names = {"compute": list(compute), "communication": list(communication)}
    return store.query(_STEP_PARTS, {**steps.params, **names})


def group_transfers(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """How long the collectives of each process group took, one row for each step, group and phase.

    Columns: step, group, phase, transfer_ns, bytes (sum), members (ranks that took part). `transfer_ns` sums
    over operations the shortest time that a member spent in it: the last member to arrive waits for nobody
    and spends its time on the transfer alone.
    """
    return store.query(
        f"""
        SELECT step, `group`, phase, sum(shortest_ns) AS transfer_ns, sum(payload) AS bytes,
               max(joined) AS members
        FROM (
          SELECT step, `group`, phase, seq, min(s.duration_ns) AS shortest_ns, max(s.bytes) AS payload,
                 count() AS joined
          FROM spans AS s
          WHERE {IN_RANGE}
            AND category = 'communication' AND NOT s.open AND `group` != '' AND seq >= 0
            AND phase NOT IN ('send', 'recv', 'barrier')
          GROUP BY step, `group`, phase, seq)
        WHERE joined > 1 AND payload > 0
        GROUP BY step, `group`, phase
        """,
        steps.params,
    )


def group_members(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """Ranks that took part in the communication of each process group: group, ranks (list)."""
    return store.query(
        f"""
        SELECT `group`, groupUniqArray(rank) AS ranks FROM spans
        WHERE {IN_RANGE} AND category = 'communication' AND `group` != ''
        GROUP BY `group`
        """,
        steps.params,
    )
