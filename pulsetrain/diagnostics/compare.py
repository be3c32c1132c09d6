"""Compare nodes by what their checks measured: who is slow beside its peers. Pure.

These are notes for people, beside the verdict: nobody is evicted for being slow in a check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from pulsetrain.diagnostics.measurement import CheckRow
from pulsetrain.diagnostics.rounds import Group, GroupResult, best_times

LEAST_PEERS = 2
NORMAL_CONSISTENT = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


def slow_checks(reports: Mapping[str, Sequence[CheckRow]], *, ratio: float = 0.5) -> dict[str, list[str]]:
    """Map each slow node to the checks in which it reaches less than `ratio` of its peers' median.

    `reports` holds the rows of each node's self-check. Only checks with a limit are compared. A check needs
    two peers.

    >>> def rows(speed):
    ...     return [{"check": "gemm_speed", "value": speed, "limit": 1.0}]
    >>> slow_checks({"a": rows(10.0), "b": rows(11.0), "c": rows(4.0), "d": rows(10.5)})
    {'c': ['gemm_speed']}
    """
    slow: dict[str, list[str]] = {}
    for check, values in _by_check(reports).items():
        for node, value in values.items():
            peers = [v for n, v in values.items() if n != node]
            if len(peers) >= LEAST_PEERS and value < ratio * median(peers):
                slow.setdefault(node, []).append(check)
    return slow


def _by_check(reports: Mapping[str, Sequence[CheckRow]]) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, float]] = {}
    for node, rows in reports.items():
        for row in rows:
            if row["limit"] is not None:
                values.setdefault(row["check"], {})[node] = row["value"]
    return values


def slow_all_gathers(results: Sequence[GroupResult]) -> dict[str, float]:
    """Map each slow node to its best all-gather time, as a multiple of the fleet's. See `far_slower`.

    >>> t0, t1 = {"2": 20.3, "3": 20.3, "0": 206.9, "1": 151.8}, {"2": 20.3, "3": 20.3, "0": 23.2, "1": 136.0}
    >>> one = [GroupResult(members=(n,), ok=True, seconds=s) for t in (t0, t1) for n, s in t.items()]
    >>> sorted(slow_all_gathers(one))
    ['1']
    """
    return far_slower(best_times(results))


def slow_products(results: Iterable[GroupResult]) -> dict[str, float]:
    """Map each slow node to its best time of matrix products, as a multiple of the fleet's."""
    times: dict[str, float] = {}
    for result in results:
        for node, own in result.own_times_s.items():
            if "compute" in own:
                times[node] = min(times.get(node, own["compute"]), own["compute"])
    return far_slower(times)


def far_slower(
    times: Mapping[str, float], *, ratio: float = 1.5, deviations: float = 6.0
) -> dict[str, float]:
    """Map each slow node to its time, as a multiple of the fleet's.

    A node is slow above both `ratio` times the fleet's time and `deviations` robust deviations. The fleet is
    the faster half, so that even half a fleet of slow nodes is seen. Needs three nodes.
    """
    if len(times) <= LEAST_PEERS:
        return {}
    fast = sorted(times.values())[: (len(times) + 1) // 2]
    centre = median(fast)
    deviation = NORMAL_CONSISTENT * median(abs(t - centre) for t in fast)
    limit = max(ratio * centre, centre + deviations * deviation)
    return {node: t / centre for node, t in sorted(times.items()) if centre > 0 and t > limit}


def slowest_beside_fastest(results: Sequence[GroupResult], nodes: Collection[str]) -> list[Group]:
    """Return pairs of those `nodes` that have a time: a second time shows which member of a pair was slow.

    An odd one joins the last pair (DLRover's second round, dlrover.master.elastic_training.rdzv_manager).

    >>> one = [GroupResult(members=m, ok=True, seconds=s) for m, s in ((("a", "b"), 3), (("c", "d", "e"), 1))]
    >>> slowest_beside_fastest(one, "abcde")
    [('c', 'b'), ('d', 'a', 'e')]
    """
    times = {n: t for n, t in best_times(results).items() if n in nodes}
    ranked = sorted(times, key=lambda node: (times[node], node))
    half = len(ranked) // 2
    groups: list[Group] = [(ranked[i], ranked[-1 - i]) for i in range(half)]
    if len(ranked) % 2 and groups:
        groups[-1] += (ranked[half],)
    return groups
