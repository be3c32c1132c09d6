"""Every SELECT behind the analyzers of steps, ranks and links. Each function returns an Arrow table.

Durations of spans come from the rollup: closed spans summed by step, rank, phase and the phase they ran
inside. So a step of a rank is a handful of rows however many operations it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        SELECT rank, any(node) AS node, argMax(tp, ts) AS tp, argMax(pp, ts) AS pp, argMax(dp, ts) AS dp,
               argMax(cp, ts) AS cp, argMax(ep, ts) AS ep
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


def losses_not_finite(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """Where a rank logged a NaN or an infinity as its loss, the first 64: step, rank. In order."""
    return store.query(
        f"""
        SELECT DISTINCT step, rank FROM steps
        WHERE {IN_RANGE} AND loss IS NOT NULL AND NOT isFinite(assumeNotNull(loss))
        ORDER BY step, rank LIMIT 64
        """,
        steps.params,
    )


def newest_losses_not_finite(store: Queryable, steps: AttemptSteps, ranks: Sequence[int]) -> pa.Table:
    """Of `ranks` those whose newest loss in these steps is a NaN or an infinity: step, rank. In order."""
    return store.query(
        f"""
        SELECT newest AS step, rank FROM (
          SELECT rank, max(step) AS newest, argMax(assumeNotNull(loss), step) AS newest_loss FROM steps
          WHERE {IN_RANGE} AND has({{ranks:Array(Int32)}}, rank) AND loss IS NOT NULL GROUP BY rank
        )
        WHERE NOT isFinite(newest_loss) ORDER BY step, rank
        """,
        {**steps.params, "ranks": list(ranks)},
    )


def phase_names(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """The phases of these steps: phase, category."""
    return store.query(f"SELECT DISTINCT phase, category FROM span_rollup WHERE {IN_RANGE}", steps.params)


# Where a phase's own blocked time is known, it is subtracted. It is measured on one thread, so nothing in it
# overlaps. Where it is not (a device's clock, an older recording), the communication inside the phase is.
_PHASES_WITH_PARENTS = f"""
    SELECT step, rank, phase, category, parent, longest_ns, duration_ns AS took, blocked_ns AS blocked, bytes,
           spans, blocked_known = spans AS known, duration_ns - blocked_ns AS own,
           category = 'compute' AS computes, category = 'communication' AS communicates,
           communicates AND parent NOT IN {{communication:Array(String)}} AS waits,
           parent IN {{compute:Array(String)}} AS in_compute,
           computes AND phase NOT IN {{compute:Array(String)}}
             OR communicates AND phase NOT IN {{communication:Array(String)}} AS unnamed,
           phase = 'forward' AND parent != 'forward' AS is_forward,
           phase = 'backward' AND parent != 'backward' AS is_backward,
           phase = 'optimizer' AND parent != 'optimizer' AS is_optimizer
    FROM (
      SELECT step, rank, phase, category, parent, sum(r.spans) AS spans, sum(r.duration_ns) AS duration_ns,
             max(r.longest_ns) AS longest_ns, sum(r.blocked_ns) AS blocked_ns,
             sum(r.blocked_known) AS blocked_known, sum(r.bytes) AS bytes
      FROM span_rollup AS r WHERE {IN_RANGE}
      GROUP BY step, rank, phase, category, parent)
"""


def _own(outermost: str, inside: str) -> str:
    """Time of outermost phases without what they stood still. `inside`: the communication within them."""
    assumed = f"sum(took * ({outermost})) - sum(took * communicates * ({inside}))"
    return f"if(max({outermost} AND NOT known), {assumed}, sum(own * ({outermost})))"


_STEP_PARTS = f"""
    SELECT step, rank,
      {_own("computes AND NOT in_compute", "in_compute")} AS compute,
      if(max(waits AND NOT known), sum(took * waits), sum(blocked * waits))
        + sum(took * (phase = 'device_wait')) AS wait,
      {_own("is_forward", "parent = 'forward'")} AS forward,
      {_own("is_backward", "parent = 'backward'")} AS backward,
      {_own("is_optimizer", "parent = 'optimizer'")} AS optimizer,
      sum(if(known, own, took) * (category = 'data')) AS data,
      sum(if(known, own, took) * (category = 'checkpoint')) AS checkpoint,
      sum(took * (phase = 'gc')) AS gc,
      max(longest_ns * (phase = 'gc')) AS gc_longest,
      sum(took * (phase = 'cpu_wait')) AS cpu_wait,
      sum(took * (phase = 'off_cpu')) AS off_cpu,
      sum(if(known, own, took) * (category = 'other')
        * (phase NOT IN ('gc', 'cpu_wait', 'off_cpu', 'device_wait')) * (parent = ''))
        AS other,
      max(computes AND NOT in_compute AND NOT known) AND max(communicates AND in_compute) AS assumed,
      min(known OR NOT waits) AS waits_known,
      max(computes AND NOT in_compute AND NOT known) AS on_device,
      sum(spans * (computes AND NOT in_compute)) AS pieces,
      sum(took * (phase = 'device_wait')) AS device_wait,
      sum(bytes * (phase = 'all_to_all')) AS routed_bytes, max(unnamed) AS unnamed
    FROM ({_PHASES_WITH_PARENTS})
    GROUP BY step, rank
"""


def step_parts(
    store: Queryable, steps: AttemptSteps, *, compute: Sequence[str], communication: Sequence[str]
) -> pa.Table:
    """Where the time of each step of each rank went, in ns.

    Columns: step, rank, compute (without the time that the rank stood still in it), wait (how long it stood
    still for communication, or for a device that it shares), forward, backward, optimizer (each as compute),
    data and checkpoint (as compute, where it is known how long the rank stood still in them), gc, gc_longest,
    cpu_wait (runnable without a processor, outside communication), off_cpu (neither running nor runnable,
    outside communication), other (evaluation and the user's own phases, as data), assumed (compute is a
    difference that takes all communication for blocking, because `blocked_ns` is not known), waits_known (all
    of `wait` was measured), on_device (a device timed the compute, or a recording that does not say how long
    it stood still), pieces (how many spans compute consists of), device_wait (for a device that it shares),
    routed_bytes (that it sent or received in
    all_to_all, the larger of the two for each operation), unnamed (it has a phase of these categories that is
    not in `compute` or `communication`).

    `compute` and `communication` name the phases of those categories. Nested phases count once.
    """
    names = {"compute": list(compute), "communication": list(communication)}
    return store.query(_STEP_PARTS, {**steps.params, **names})


_UNDISTURBED = f"""
    SELECT step, rank,
      groupUniqArrayIf(parent, communicates) AS hosts,
      arrayMap(x -> x.2, arrayFilter(x -> has(hosts, x.1),
                                     groupArrayIf((phase, parent), computes AND in_compute))) AS above,
      arraySum(x -> x.2, arrayFilter(x -> NOT has(hosts, x.1) AND NOT has(above, x.1),
                                     groupArrayIf((phase, took), computes AND NOT in_compute))) AS undisturbed
    FROM ({_PHASES_WITH_PARENTS})
    GROUP BY step, rank
"""


def undisturbed_compute(
    store: Queryable, steps: AttemptSteps, *, compute: Sequence[str], communication: Sequence[str]
) -> pa.Table:
    """The compute of phases in which no communication lies: step, rank, undisturbed (ns).

    In data parallelism that is the forward pass. It is a rank's own also where communication overlaps the
    rest. `compute` and `communication` name the phases of those categories.
    """
    names = {"compute": list(compute), "communication": list(communication)}
    return store.query(f"SELECT step, rank, undisturbed FROM ({_UNDISTURBED})", {**steps.params, **names})


def communication_count(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """How many operations the newest of these steps has, over all ranks: one row of `operations`."""
    return store.query(
        f"""
        SELECT sum(spans) AS operations FROM span_rollup
        WHERE {IN_RANGE} AND step = {{last:Int64}} AND category = 'communication'
        """,
        steps.params,
    )


def last_collectives(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """The last collective of each step and process group, one row for each member.

    Columns: step, group, seq, rank, node, start_ns and end_ns (UTC, on the clock of the node).
    """
    collectives = f"""{IN_RANGE} AND category = 'communication' AND NOT s.open AND `group` != ''
            AND seq >= 0 AND peer < 0 AND phase NOT IN ('send', 'recv')"""
    return store.query(
        f"""
        SELECT step, `group`, seq, rank, any(node) AS node, min(toUnixTimestamp64Nano(s.start)) AS start_ns,
               max(toUnixTimestamp64Nano(s.start) + s.duration_ns) AS end_ns
        FROM spans AS s
        WHERE {collectives} AND (step, `group`, seq) IN (
          SELECT step, `group`, max(seq) FROM spans AS s WHERE {collectives} GROUP BY step, `group`)
        GROUP BY step, `group`, seq, rank
        """,
        steps.params,
    )


def first_transfers(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """The send or recv with which each rank began each of these steps: step, rank, phase, peer."""
    return store.query(
        f"""
        SELECT step, rank, first.1 AS phase, first.2 AS peer
        FROM (
          SELECT step, rank, argMin((s.phase, s.peer), s.start) AS first
          FROM spans AS s WHERE {IN_RANGE} AND category = 'communication' AND peer >= 0
            AND s.phase IN ('send', 'recv')
          GROUP BY step, rank)
        ORDER BY rank, step
        """,
        steps.params,
    )


def communication_overlap(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """How much communication there was, and how much of it at the same time as other communication.

    One row of total_ns (the sum over operations) and covered_ns (the union of their intervals on each rank).
    """
    return store.query(
        f"""
        SELECT sum(took) AS total_ns, sum(greatest(0, began + took - greatest(began, before))) AS covered_ns
        FROM (
          SELECT s.duration_ns AS took, toUnixTimestamp64Nano(s.start) AS began,
                 max(began + took) OVER (PARTITION BY rank ORDER BY began
                                         ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM spans AS s WHERE {IN_RANGE} AND category = 'communication' AND NOT s.open AND s.seq >= 0
            AND parent != '')
        """,
        steps.params,
    )


def group_transfers(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """How long the collectives of each process group took, one row for each step, group and phase.

    Columns: step, group, phase, transfer_ns, bytes (sum), members (ranks that took part). `transfer_ns` sums
    over operations the shortest time that a member spent in it: the last member to arrive waits for nobody
    and spends its time on the transfer alone. On one node, with one clock, it is the time from the last
    arrival to the first end. The end of an operation that nobody waited for is only noticed later. So members
    that waited count if there are any, and an operation that surely nobody waited for is left out.
    """
    return store.query(
        f"""
        SELECT step, `group`, phase, sum(shortest_ns) AS transfer_ns, sum(payload) AS bytes,
               max(joined) AS members
        FROM (
          SELECT step, `group`, phase, seq, max(s.bytes) AS payload, count() AS joined,
                 if(countIf(s.blocked_ns > 0) > 0, minIf(s.duration_ns, s.blocked_ns > 0),
                    min(s.duration_ns)) AS spent_ns,
                 min(toUnixTimestamp64Nano(s.start) + s.duration_ns)
                   - max(toUnixTimestamp64Nano(s.start)) AS together_ns,
                 if(uniq(node) = 1, least(spent_ns, greatest(together_ns, 1)), spent_ns) AS shortest_ns
          FROM spans AS s
          WHERE {IN_RANGE}
            AND category = 'communication' AND NOT s.open AND `group` != '' AND seq >= 0
            AND phase NOT IN ('send', 'recv', 'barrier')
          GROUP BY step, `group`, phase, seq
          HAVING countIf(s.blocked_ns > 0) > 0 OR countIf(s.blocked_ns < 0) > 0)
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


def group_work(store: Queryable, steps: AttemptSteps) -> pa.Table:
    """What each rank usually does in each process group: rank, group, phase, operations, bytes (a step).

    The medians over these steps. What is done in fewer than half of them is left out, and sends and receives.
    """
    count = steps.last - steps.first + 1
    usual = f"arraySort(arrayResize(groupArray({{}}), {count}))[{(count + 1) // 2}]"
    return store.query(
        f"""
        SELECT rank, `group`, phase, {usual.format("done")} AS operations, {usual.format("payload")} AS bytes
        FROM (
          SELECT step, rank, `group`, s.phase AS phase, toInt64(count()) AS done,
                 toInt64(sum(s.bytes)) AS payload
          FROM spans AS s
          WHERE {IN_RANGE} AND category = 'communication' AND NOT s.open AND `group` != '' AND seq >= 0
            AND peer < 0 AND s.phase NOT IN ('send', 'recv')
          GROUP BY step, rank, `group`, phase)
        GROUP BY rank, `group`, phase HAVING operations > 0
        """,
        steps.params,
    )


def flops_source(store: Queryable, steps: AttemptSteps) -> str:
    """Where the FLOPs of the attempt's steps come from, as its ranks said.

    "explicit": from the script. "": it is not known.
    """
    table = store.query(
        """
        SELECT argMax(JSONExtractString(detail, 'flops'), ts) AS source FROM events
        WHERE kind = 'instrumentation' AND job = {job:String} AND attempt = {attempt:Int32}
        """,
        steps.params,
    )
    return "".join(row["source"] for row in table.to_pylist())


# The order key begins with no time. A part of the table knows its first and last start, so old parts are not
# read. In one that is read, the spans of a rank without steps are in the order of their start: marks are
# skipped.
_OPERATIONS = """job = {job:String} AND attempt = {attempt:Int32} AND NOT s.open
    AND s.start >= fromUnixTimestamp64Nano({since_ns:Int64}) AND category = 'communication'
    AND `group` != '' AND seq >= 0"""

# Clocks of nodes may be apart, and starts are on the clock of the node.
_SINCE = """toUnixTimestamp64Nano(s.start) >=
    transform(node, {nodes:Array(String)}, {since:Array(Int64)}, {since_ns:Int64})"""


def operations_per_second(store: Queryable, job: str, attempt: int, since_ns: int) -> pa.Table:
    """How many operations began on each node in each second (UTC, on its clock) since then.

    Columns: node, second, operations. Newest first.
    """
    return store.query(
        f"""
        SELECT node, intDiv(toUnixTimestamp64Nano(s.start), 1000000000) AS second, count() AS operations
        FROM spans AS s WHERE {_OPERATIONS} GROUP BY node, second ORDER BY second DESC, node
        """,
        {"job": job, "attempt": attempt, "since_ns": since_ns},
    )


def operations(store: Queryable, job: str, attempt: int, since_ns: Mapping[str, int]) -> pa.Table:
    """The operations of ranks that began since then, whatever their step. `since_ns` has at least one node.

    Columns: rank, node, group, seq, phase, peer, bytes, start_ns and end_ns (UTC, on the clock of the node),
    blocked_ns (-1 where it is not known).
    """
    return store.query(
        f"""
        SELECT rank, node, `group`, seq, phase, peer, bytes, toUnixTimestamp64Nano(s.start) AS start_ns,
               toUnixTimestamp64Nano(s.start) + s.duration_ns AS end_ns, blocked_ns
        FROM spans AS s WHERE {_OPERATIONS} AND {_SINCE}
        """,
        _since(job, attempt, since_ns),
    )


def processor_losses(store: Queryable, job: str, attempt: int, since_ns: Mapping[str, int]) -> pa.Table:
    """What ranks lost that name no steps: rank, node, phase (cpu_wait or off_cpu), start_ns, lost_ns.

    What a rank lost between the start of one `cpu_wait` and the next is in the spans that begin at the first.
    """
    return store.query(
        f"""
        SELECT rank, node, phase, toUnixTimestamp64Nano(s.start) AS start_ns, s.duration_ns AS lost_ns
        FROM spans AS s
        WHERE job = {{job:String}} AND attempt = {{attempt:Int32}} AND NOT s.open
          AND s.start >= fromUnixTimestamp64Nano({{since_ns:Int64}}) AND {_SINCE}
          AND s.phase IN ('cpu_wait', 'off_cpu')
        """,
        _since(job, attempt, since_ns),
    )


def _since(job: str, attempt: int, since_ns: Mapping[str, int]) -> dict[str, object]:
    times = {"nodes": list(since_ns), "since": list(since_ns.values()), "since_ns": min(since_ns.values())}
    return {"job": job, "attempt": attempt, **times}


def attempt_of_operations(store: Queryable, job: str) -> int:
    """The newest attempt that has any span, -1 for none. Reads only the end of the order key."""
    rows = store.query(
        "SELECT attempt FROM spans WHERE job = {job:String} ORDER BY job DESC, attempt DESC LIMIT 1",
        {"job": job},
    ).to_pylist()
    return int(rows[0]["attempt"]) if rows else -1
