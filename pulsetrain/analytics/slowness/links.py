"""Process groups whose transfers take longer than those of their siblings, whatever their members compute.

The time of a collective is that of its last member to arrive, who waits for nobody: the shortest time that a
member spent in it. Time per byte is compared between siblings (see `transfers`) that lie alike on nodes: a
group across two nodes is slower by design than one inside a node. However much times scatter,
a link is slow where a group's quick transfers take longer than its siblings' slow ones. Sends and receives
are left out, because their two ends are recorded apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pulsetrain.analytics.slowness import robust
from pulsetrain.analytics.slowness.cohort import Excess, Rows, measure, work_from, work_of
from pulsetrain.analytics.slowness.newest_steps import worst
from pulsetrain.analytics.slowness.recent_transfers import RecentTransfers
from pulsetrain.analytics.slowness.timings import Timings
from pulsetrain.analytics.slowness.transfers import Transfers, transfers_from
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, SubjectType, Verdict, findings
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable

NAME = "slow_link"
WINDOW = 30  # newest steps that are compared: what a link does now
STEPS_NEEDED = 16
CELLS = 250_000  # steps x ranks whose operations are read: fewer steps of a larger fleet
MOST_LOOKS = 500  # stretches of steps that are read of a whole job
FLOOR_RATIO = 0.25  # groups of one kind differ by where in the network their members are
NOISY_SHARE = 0.6  # of the noise of a step, below which a slowdown is not reported
TOO_NOISY = 0.3  # noise of one step from which transfers wait for processors rather than for the network
QUARTILE_GAP = 0.25  # there, how far the quick quarter must lie above the siblings' slow quarter, as a ratio
STRAGGLER_SHARE = 0.1  # of a group's slowness (log), from which a straggler among its members explains it
COMPUTE_SHARE = 0.5  # of a group's slowness (log), from which a member's longer compute explains it
FALSE_ALARMS = 1e-4

Members = Mapping[str, tuple[int, ...]]
"""The ranks of each process group."""


@dataclass(frozen=True, kw_only=True)
class _SlowGroup:
    group: str
    phase: str
    ratio: float
    margin: float  # in standard errors


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What a finding names, and the groups and ranks that it stands for."""

    subject_type: SubjectType
    name: str
    worst: _SlowGroup
    groups: tuple[str, ...]


def scan_store(store: Queryable, timings: Timings, stragglers: Sequence[Verdict]) -> list[Verdict]:
    """`find` on stretches of all of these steps, every half length. Each group is said once, at its worst.

    Of very many steps `MOST_LOOKS` stretches are read, at equal distances.
    """
    if not len(timings.steps):
        return find_in_store(store, timings, stragglers)
    first, last, window = int(timings.steps[0]), int(timings.steps[-1]), _window(timings)
    stride = max(window // 2, -(-(last - first) // MOST_LOOKS))
    ends = [last, *range(last - stride, first + STEPS_NEEDED, -stride)]
    parts = [timings.between(end - window - 1, end) for end in ends]
    answer = worst([find_in_store(store, part, stragglers, looks=len(ends)) for part in parts])
    looked = {"stretches": len(ends), "steps_a_stretch": window, "every_steps": stride}
    return [replace(v, numbers={**v.numbers, **looked}) if isinstance(v, Healthy) else v for v in answer]


def find_in_store(
    store: Queryable,
    timings: Timings,
    stragglers: Sequence[Verdict],
    recent: RecentTransfers | None = None,
    *,
    looks: int = 1,
) -> list[Verdict]:
    """`find` on the newest steps of a store. `recent` keeps what was read for the next look."""
    if not len(timings.steps):
        return [Inconclusive(analyzer=NAME, reason="no steps", blind=True)]
    last = int(timings.steps[-1])
    first = max(int(timings.steps[0]), last - _window(timings) - 1)
    newest = AttemptSteps(job=timings.job, attempt=timings.attempt, first=last - 1, last=last)
    steps = AttemptSteps(job=timings.job, attempt=timings.attempt, first=first, last=last)
    recent = recent or RecentTransfers()
    transfers = transfers_from(recent.rows(store, steps))
    return find(timings, transfers, recent.members(store, newest), stragglers, looks=looks)


def _window(timings: Timings) -> int:
    """How many steps are compared: fewer of a larger fleet."""
    return min(WINDOW, max(STEPS_NEEDED + 2, CELLS // max(1, len(timings.ranks))))


def find(
    timings: Timings,
    transfers: Transfers,
    members: Members,
    stragglers: Sequence[Verdict],
    *,
    looks: int = 1,
) -> list[Verdict]:
    """Findings of kind `slow_link`: one for each group, or one for a node that all slow groups share.

    A group is left out where one of its members explains it: a straggler (unless it is slow by very little in
    comparison), or a rank whose compute is longer by half as much, which is seen before it is sure.
    `looks` is at how many stretches of steps the caller looks. All together are no more often wrong than one.

    >>> import pyarrow as pa
    >>> rows = [(step, f"dp:{i}", 3e6 if i == 2 else 1e6) for step in range(20) for i in range(4)]
    >>> step, group, transfer_ns = zip(*rows)
    >>> columns = {"step": step, "group": group, "transfer_ns": transfer_ns}
    >>> columns |= {"phase": ["all_reduce"] * 80, "bytes": [1000] * 80, "members": [2] * 80}
    >>> from pulsetrain.analytics.slowness.timings import from_matrices
    >>> job = from_matrices({"compute": np.ones((20, 8))})
    >>> [finding] = find(job, transfers_from(pa.table(columns)), {"dp:2": (4, 5)}, [])
    >>> finding.summary
    'Group dp:2 takes 3.00 times as long per byte as its siblings (all_reduce).'
    """
    usable = set(timings.steps[timings.usable].tolist())
    rows = np.flatnonzero([s in usable for s in transfers.steps.tolist()])[-WINDOW:]
    if not len(transfers.groups):
        return [Inconclusive(analyzer=NAME, reason="no collective with a payload", blind=True)]
    if len(rows) < STEPS_NEEDED:
        return [Inconclusive(analyzer=NAME, reason=f"{len(rows)} usable steps")]
    cohorts = _measured(transfers, rows, _layouts(timings, transfers, members))
    if not cohorts:
        reason = "no three groups of one kind and size to compare, alike over nodes"
        return [Inconclusive(analyzer=NAME, reason=reason)]
    slow = _slow_groups(cohorts, transfers, looks)
    slow = _unexplained(slow, members, _straggler_excess(stragglers), STRAGGLER_SHARE)
    compute = _compute_excess(timings) if slow else {}
    slow = _unexplained(slow, members, compute, COMPUTE_SHARE)
    if slow:
        span = (int(transfers.steps[rows[0]]), int(transfers.steps[rows[-1]]))
        return [_finding(timings, s, members, compute, span) for s in _subjects(timings, slow, members)]
    if all(cohort.noise > TOO_NOISY for cohort in cohorts):
        reason = "transfer times scatter too much from step to step, as on an oversubscribed host"
        return [Inconclusive(analyzer=NAME, reason=reason)]
    return [Healthy(analyzer=NAME, numbers={"groups": len(transfers.groups), "steps": len(rows)})]


def _layouts(timings: Timings, transfers: Transfers, members: Members) -> list[tuple[int, ...]]:
    """How many ranks of each series' group its nodes have, sorted. Empty where a node is not known."""
    node_of = dict(zip(timings.ranks.tolist(), timings.nodes.tolist(), strict=False))
    by_group = {}
    for group in set(transfers.groups):
        nodes = [node_of.get(rank, "") for rank in members.get(group, ())]
        by_group[group] = tuple(sorted(Counter(nodes).values())) if all(nodes) else ()
    return [by_group[group] for group in transfers.groups]


def _measured(transfers: Transfers, rows: Rows, layouts: Sequence[tuple[int, ...]]) -> list[Excess]:
    """The excess of each group over its siblings, one entry for each set of siblings that can be compared."""
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for column, key in enumerate(zip(transfers.siblings.tolist(), layouts, strict=True)):
        alike.setdefault(key, []).append(column)
    siblings = [np.array(columns, np.int64) for _, columns in sorted(alike.items())]
    time = transfers.ns_a_byte
    with np.errstate(divide="ignore", invalid="ignore"):
        work = work_from(np.log(np.where(time > 0, time, np.nan)), time[None], siblings, rows)
    return [e for columns in siblings if (e := measure(work, columns, rows)) is not None]


def _slow_groups(cohorts: Sequence[Excess], transfers: Transfers, looks: int) -> list[_SlowGroup]:
    sigmas = robust.sigmas_needed(FALSE_ALARMS, looks * sum(len(cohort.columns) for cohort in cohorts))
    return [slow for cohort in cohorts for slow in _slow_siblings(cohort, sigmas, transfers)]


def _slow_siblings(cohort: Excess, sigmas: float, transfers: Transfers) -> Iterator[_SlowGroup]:
    steady = cohort.noise <= TOO_NOISY
    floor = max(float(np.log1p(FLOOR_RATIO)), NOISY_SHARE * min(cohort.noise, TOO_NOISY))
    needed = sigmas * (1.5 if cohort.noisy else 1.0)
    gap = robust.quartile_gap(np.log(transfers.ns_a_byte[np.ix_(cohort.rows, cohort.columns)]))
    slow_when_quick = gap > (0.0 if steady else np.log1p(QUARTILE_GAP))
    still_slow = cohort.recent > floor / 2
    sure = (cohort.excess > floor) & (cohort.excess > needed * cohort.error)
    for i in np.flatnonzero(slow_when_quick & still_slow & sure):
        yield _SlowGroup(
            group=transfers.groups[cohort.columns[i]],
            phase=transfers.phases[cohort.columns[i]],
            ratio=float(np.exp(cohort.excess[i])),
            margin=float(cohort.excess[i] / max(cohort.error[i], 1e-12)),
        )


def _straggler_excess(stragglers: Sequence[Verdict]) -> dict[int, float]:
    """The excess (log) of each rank that a straggler finding names."""
    named = [(f.evidence.get("ranks", ()), float(np.log(f.evidence["ratio"]))) for f in findings(stragglers)]
    return {rank: excess for ranks, excess in named for rank in ranks}


def _compute_excess(timings: Timings) -> dict[int, float]:
    """By how much (log) each rank's compute lately exceeds that of its cohort, where known.

    Of two ranks with the same work the one that takes longer may be slow.
    """
    rows = np.flatnonzero(timings.usable)[-WINDOW:]
    if not np.isfinite(timings.parts["compute"][rows]).any():
        return {}
    work = work_of(timings, rows)
    cohorts = [e for c in timings.cohorts if (e := measure(work, c, rows)) is not None]
    excess = {
        int(timings.ranks[c]): float(x) for e in cohorts for c, x in zip(e.columns, e.excess, strict=True)
    }
    for pair in (c for c in timings.cohorts if len(c) == 2):
        both = work.whole[np.ix_(rows, pair)]
        levels = np.median(both[np.isfinite(both).all(axis=1)], axis=0)
        if np.isfinite(levels).all():
            own = (levels - levels.min()).tolist()
            excess |= dict(zip(timings.ranks[pair].tolist(), own, strict=True))
    return excess


def _unexplained(
    slow: Iterable[_SlowGroup], members: Members, excess: Mapping[int, float], share: float
) -> list[_SlowGroup]:
    """Groups none of whose members exceeds its cohort by `share` of the group's own slowness."""
    return [
        s
        for s in slow
        if max((excess.get(rank, 0.0) for rank in members.get(s.group, ())), default=0.0)
        < share * float(np.log(s.ratio))
    ]


def _subjects(timings: Timings, slow: Sequence[_SlowGroup], members: Members) -> list[_Subject]:
    """The one node that all of several slow groups share, else each group by its slowest phase."""
    worst: dict[str, _SlowGroup] = {}
    for s in slow:
        if s.group not in worst or s.ratio > worst[s.group].ratio:
            worst[s.group] = s
    groups = tuple(sorted(worst))
    nodes = [_nodes(timings, members.get(group, ())) for group in groups]
    common = set.intersection(*nodes) if len(groups) > 1 else set()
    if len(common) == 1:
        slowest = max(worst.values(), key=lambda s: s.ratio)
        return [_Subject(subject_type="node", name=common.pop(), worst=slowest, groups=groups)]
    return [
        _Subject(subject_type="group", name=group, worst=worst[group], groups=(group,)) for group in groups
    ]


def _nodes(timings: Timings, ranks: Iterable[int]) -> set[str]:
    wanted = set(ranks)
    return {timings.node_of(c) for c, r in enumerate(timings.ranks.tolist()) if r in wanted} - {""}


def _finding(
    timings: Timings,
    subject: _Subject,
    members: Members,
    compute: Mapping[int, float],
    span: tuple[int, int],
) -> Finding:
    """A member may be slow, and not the link. Where it or its time is not known, it is information."""
    worst = subject.worst
    ranks = sorted({rank for group in subject.groups for rank in members.get(group, ())})
    unnamed = any(not members.get(group) for group in subject.groups)
    unknown = unnamed or any(rank not in compute for rank in ranks)
    whose_time = "who the members are" if unnamed else "its own time"
    doubt = f" A slow member cannot be excluded: {whose_time} is not known." if unknown else ""
    if subject.subject_type == "node":
        who, whose = f"Groups that meet on node {subject.name} take", "their"
    else:
        who, whose = f"Group {subject.name} takes", "its"
    return timings.finding(
        NAME,
        subject.subject_type,
        subject.name,
        severity="info" if unknown else "warning",
        confidence=0.95 - 0.25 * float(np.exp(-max(0.0, worst.margin - 4) / 4)),
        summary=f"{who} {worst.ratio:.2f} times as long per byte as {whose} siblings ({worst.phase}).{doubt}",
        evidence={
            "query": "analysis.group_transfers",
            "ratio": round(worst.ratio, 4),
            "groups": list(subject.groups),
            "nodes": sorted(_nodes(timings, ranks)),
            "ranks": ranks[:64],
            "phase": worst.phase,
            "margin_in_errors": round(min(worst.margin, 1e6), 2),
            "first_step": span[0],
            "last_step": span[1],
        },
    )
