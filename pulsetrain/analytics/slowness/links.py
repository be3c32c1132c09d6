"""Process groups whose transfers take longer than those of their siblings, whatever their members compute.

The time of a collective is that of its last member to come, who waits for nobody: the shortest of all
members' times in it. Siblings are groups of one kind (the name without its numbers) and size that run one
operation on about as many bytes, for a small payload takes longer a byte; compared is time a byte. However
much times scatter, a slow link is where a group's quick transfers take longer than its siblings' slow ones.
Sends and receives are left out: their ends are recorded apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.cohort import Excess, measure, work_from, work_of
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Verdict, findings
from pulsetrain.stream.queries import analysis

WINDOW = 30  # newest steps looked at: a link is judged by what it does now
STEPS_NEEDED = 16
CELLS = 250_000  # steps x ranks whose operations are read: fewer steps of a larger fleet
FLOOR_RATIO = 0.25  # groups of one kind differ by where their members stand
NOISY_SHARE = 0.6
TOO_NOISY = 0.3  # noise of one step from which transfers wait for processors rather than for wires
APART = 0.25  # there, by how much the quick quarter must be beyond the siblings' slow one, as a ratio
STRAGGLES = 0.1  # share of a group's slowness (log) that a straggler among its members has to have, likewise
LATE = 0.5  # share of a group's slowness (log) in the compute of a member, from which that is the cause
ALIKE = 1.25  # payloads of siblings, ordered by size, differ by less than this ratio from one to the next
FALSE_ALARMS = 1e-4


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """Steps x (group, phase): nanoseconds a byte, NaN where a group did nothing. `kinds` numbers siblings."""

    steps: NDArray[np.int64]
    groups: tuple[str, ...]
    phases: tuple[str, ...]
    kinds: NDArray[np.int64]
    ns_a_byte: NDArray[np.float64]


def look(store: analysis.Queryable, t: Timings, stragglers: Sequence[Verdict]) -> list[Verdict]:
    """`find` on the newest steps of a store."""
    if not len(t.steps):
        return [Inconclusive(analyzer="slow_link", reason="no steps", blind=True)]
    last = int(t.steps[-1])
    window = min(WINDOW, max(STEPS_NEEDED + 2, CELLS // max(1, len(t.ranks))))
    since = max(int(t.steps[0]), last - window - 1)
    table = analysis.group_transfers(store, t.job, t.attempt, since, last)
    rows = analysis.group_members(store, t.job, t.attempt, last - 1, last).to_pylist()
    return find(t, read(table), {r["group"]: tuple(sorted(r["ranks"])) for r in rows}, stragglers)


def read(table: pa.Table) -> Transfers:
    """The matrix of `analysis.group_transfers`, its rows in any order."""
    rows = table.to_pydict()
    keys = sorted(set(zip(rows["group"], rows["phase"], rows["members"], strict=True)))
    merged = sorted({(g, p) for g, p, _ in keys})
    size = {(g, p): n for g, p, n in keys}
    steps = np.unique(np.array(rows["step"], np.int64))
    place = {key: i for i, key in enumerate(merged)}
    matrix, payload = (np.full((len(steps), len(merged)), np.nan) for _ in range(2))
    column = np.array([place[k] for k in zip(rows["group"], rows["phase"], strict=True)], np.int64)
    if len(column):
        at = np.searchsorted(steps, np.array(rows["step"], np.int64))
        payload[at, column] = np.maximum(1, np.array(rows["bytes"], float))
        matrix[at, column] = np.array(rows["transfer_ns"], float) / payload[at, column]
    return Transfers(
        steps=steps,
        groups=tuple(g for g, _ in merged),
        phases=tuple(p for _, p in merged),
        kinds=_siblings([_kind(g, p, size[g, p]) for g, p in merged], payload),
        ns_a_byte=matrix,
    )


def _siblings(kinds: Sequence[tuple[str, str, int]], payload: NDArray[np.float64]) -> NDArray[np.int64]:
    """A number for each column: the same for one kind and about one payload (that of the usual step)."""
    usual = np.nanmedian(payload, axis=0) if len(payload) else np.ones(len(kinds))
    order = sorted(range(len(kinds)), key=lambda i: (kinds[i], usual[i]))
    numbers, number = np.zeros(len(kinds), np.int64), 0
    for before, after in pairwise(order):
        number += kinds[before] != kinds[after] or usual[after] >= ALIKE * usual[before]
        numbers[after] = number
    return numbers


def _kind(group: str, phase: str, members: int) -> tuple[str, str, int]:
    return (re.sub(r"([\W_]*\d+)+$", "", group), phase, members)


def find(
    t: Timings, transfers: Transfers, members: Mapping[str, tuple[int, ...]], stragglers: Sequence[Verdict]
) -> list[Verdict]:
    """Findings of kind `slow_link`, one a group, or one a node where all slow groups meet on it alone.

    Groups with a straggler among their members are left out, since a slow process also moves data slowly,
    unless that is slow by next to nothing beside them. So are those with a member whose compute is longer by
    half as much, which is seen before it is sure.
    """
    usable = set(t.steps[t.usable].tolist())
    rows = np.flatnonzero([s in usable for s in transfers.steps.tolist()])[-WINDOW:]
    if not len(transfers.groups):
        return [Inconclusive(analyzer="slow_link", reason="no collective with a payload", blind=True)]
    if len(rows) < STEPS_NEEDED:
        return [Inconclusive(analyzer="slow_link", reason=f"{len(rows)} usable steps")]
    cohorts = [np.flatnonzero(transfers.kinds == k) for k in np.unique(transfers.kinds)]
    time = transfers.ns_a_byte
    with np.errstate(divide="ignore", invalid="ignore"):
        work = work_from(np.log(np.where(time > 0, time, np.nan)), time[None], cohorts, rows)
    table = [e for c in cohorts if (e := measure(work, c, rows)) is not None]
    steady = [e for e in table if e.noise <= TOO_NOISY]
    if not table:
        reason = "no three groups of one kind and size to compare"
        return [Inconclusive(analyzer="slow_link", reason=reason)]
    z = robust.quantile_of(FALSE_ALARMS, sum(len(e.columns) for e in table))
    told = [(f.evidence.get("ranks", ()), float(np.log(f.evidence["ratio"]))) for f in findings(stragglers)]
    known = {rank: excess for ranks, excess in told for rank in ranks}
    slow = [
        found
        for e in table
        for found in _slow(e, z, transfers)
        if _latest(known, members.get(found.group, ())) < STRAGGLES * float(np.log(found.ratio))
    ]
    late = _late(t) if slow else {}
    slow = [s for s in slow if _latest(late, members.get(s.group, ())) < LATE * float(np.log(s.ratio))]
    if not slow and not steady:
        reason = "transfer times scatter too much from step to step, as on an oversubscribed host"
        return [Inconclusive(analyzer="slow_link", reason=reason)]
    if not slow:
        return [Healthy(analyzer="slow_link", numbers={"groups": len(transfers.groups), "steps": len(rows)})]
    return list(_findings(t, slow, members, int(transfers.steps[rows[0]])))


def _late(t: Timings) -> dict[int, float]:
    """By how much (log) each rank's compute lately exceeds that of ranks with the same work, where known."""
    rows = np.flatnonzero(t.usable)[-WINDOW:]
    if not np.isfinite(t.parts["compute"][rows]).any():
        return {}
    work = work_of(t, rows)
    table = [e for c in t.cohorts if (e := measure(work, c, rows)) is not None]
    return {int(t.ranks[c]): float(x) for e in table for c, x in zip(e.columns, e.excess, strict=True)}


def _latest(late: Mapping[int, float], ranks: Iterable[int]) -> float:
    return max((late.get(r, 0.0) for r in ranks), default=0.0)


@dataclass(frozen=True, kw_only=True)
class _Slow:
    group: str
    phase: str
    ratio: float
    margin: float


def _slow(e: Excess, z: float, transfers: Transfers) -> list[_Slow]:
    steady = e.noise <= TOO_NOISY
    floor = max(float(np.log1p(FLOOR_RATIO)), NOISY_SHARE * min(e.noise, TOO_NOISY))
    needed = z * (1.5 if e.noisy else 1.0)
    apart = robust.apart(np.log(transfers.ns_a_byte[np.ix_(e.rows, e.columns)])) > (
        0.0 if steady else np.log1p(APART)
    )
    hits = np.flatnonzero(apart & (e.excess > floor) & (e.recent > floor / 2) & (e.excess > needed * e.error))
    return [
        _Slow(
            group=transfers.groups[e.columns[i]],
            phase=transfers.phases[e.columns[i]],
            ratio=float(np.exp(e.excess[i])),
            margin=float(e.excess[i] / max(e.error[i], 1e-12)),
        )
        for i in hits
    ]


def _findings(
    t: Timings, slow: Sequence[_Slow], members: Mapping[str, tuple[int, ...]], since: int
) -> Iterable[Finding]:
    worst: dict[str, _Slow] = {}
    for s in slow:
        if s.group not in worst or s.ratio > worst[s.group].ratio:
            worst[s.group] = s
    nodes = {g: _nodes(t, members.get(g, ())) for g in worst}
    common = set.intersection(*nodes.values()) if len(worst) > 1 else set()
    if len(common) == 1:
        node = next(iter(common))
        top = max(worst.values(), key=lambda s: s.ratio)
        ranks = {r for g in worst for r in members.get(g, ())}
        yield _finding(t, "node", node, top, sorted(worst), nodes, ranks, since)
        return
    for group in sorted(worst):
        yield _finding(t, "group", group, worst[group], [group], nodes, members.get(group, ()), since)


def _nodes(t: Timings, ranks: Iterable[int]) -> set[str]:
    wanted = set(ranks)
    return {t.node_of(c) for c, r in enumerate(t.ranks.tolist()) if r in wanted} - {""}


def _finding(
    t: Timings,
    subject_type: str,
    subject: str,
    worst: _Slow,
    groups: Sequence[str],
    nodes: Mapping[str, set[str]],
    ranks: Iterable[int],
    since: int,
) -> Finding:
    where = f"Groups that meet on node {subject}" if subject_type == "node" else f"Group {subject}"
    return t.finding(
        "slow_link",
        "node" if subject_type == "node" else "group",
        subject,
        severity="warning",
        confidence=0.95 - 0.25 * float(np.exp(-max(0.0, worst.margin - 4) / 4)),
        summary=f"{where} transfer {worst.ratio:.2f} times as long a byte as their siblings ({worst.phase}).",
        evidence={
            "query": "analysis.group_transfers",
            "ratio": round(worst.ratio, 4),
            "groups": list(groups),
            "nodes": sorted({n for g in groups for n in nodes[g]}),
            "ranks": sorted(ranks)[:64],
            "phase": worst.phase,
            "margin_in_errors": round(min(worst.margin, 1e6), 2),
            "first_step": since,
        },
    )
