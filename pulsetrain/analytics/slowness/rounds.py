"""Rounds of a job's collectives: what stands for its steps where nobody tells them. Pure.

The operations of one rank repeat themselves: each step has the same ones. A round is so many repetitions of
them as take a quarter of a second or more. It ends where one of them ends on the lowest rank that has any.
All ranks' times are brought onto one clock (`operations`), and all ranks' rounds are cut there.

A rank's own time in a round is what its main thread did not stand still in operations. Before a broadcast, or
another operation of which one member is the root, that one may do what nobody else does: it loads data, or
drives the others. So own time that ends with such an operation counts as loading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.selection import ranges
from pulsetrain.analytics.slowness import pipeline_order, recurrence
from pulsetrain.analytics.slowness.operations import Operations
from pulsetrain.records.arrow import number_array

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUND_NS = 250e6  # a round takes as long or longer: processor losses are told as often
MOST = 256  # newest rounds that are kept
COVERED = 0.7  # of the time, from which no longer period is tried
LOOKED = 8  # periods from which it is taken where ranks wait most
ALIKE = 0.01  # by which operations may differ in number over a round or more, and be equal work
ALIKE_BYTES = 0.1  # and in bytes
UNEVEN = "all_to_all"  # experts get as many bytes as their tokens have
LAST_NS = 2e9  # losses that are not told yet are like the usual last ones for so long
LAST_TOLD = 8  # times that losses were told, of which the usual one counts


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Rounds as spans of time: `number` goes on from one look to the next, times as in `Operations`."""

    number: Ints
    begin_ns: Floats
    end_ns: Floats

    @property
    def covers(self) -> float:
        """How much time they cover, in ns."""
        return float((self.end_ns - self.begin_ns).sum())

    @property
    def of_time(self) -> Floats:
        """Every begin and end, in order: round i is between entries 2 i and 2 i + 1."""
        return np.stack([self.begin_ns, self.end_ns], axis=1).reshape(-1)

    def at(self, times_ns: Floats) -> Ints:
        """Which round each time lies in, -1 for none. A round's end belongs to it."""
        place = np.searchsorted(self.of_time, times_ns)
        return np.where(place % 2 == 1, place // 2, -1)


def cut(operations: Operations) -> Cuts | str:
    """The newest rounds, or why there are none. Those in which anything else was done are left out."""
    rank = next((r for r in np.unique(operations.rank).tolist() if _on_clock(operations, r)), None)
    if rank is None:
        return "the clocks of nodes cannot be compared"
    mine = operations.of(rank)
    best = Cuts(number=np.zeros(0, np.int64), begin_ns=np.zeros(0), end_ns=np.zeros(0))
    repeats = False
    for kinds in (operations.kind[mine], operations.without_bytes[mine]):
        for length in recurrence.periods(kinds):
            repeats, cuts = True, _cut(operations, mine, kinds, length)
            if cuts.covers > best.covers:
                best = cuts
            if best.covers > COVERED * np.ptp(operations.end_ns[mine]):
                return best
    if len(best.number):
        return best
    if not repeats:
        return f"the collectives of rank {rank} do not repeat themselves: nothing stands for its steps"
    return f"the collectives of rank {rank} have repeated themselves too seldom yet"


def _cut(operations: Operations, mine: slice, kinds: Ints, length: int) -> Cuts:
    """The rounds that a period of so many of a rank's operations gives."""
    ends, seq = operations.end_ns[mine], operations.seq[mine]
    whole = recurrence.newest_whole(kinds, length)
    last = _last_of_period(operations, mine, whole, length) if whole >= 0 else -1
    at = (
        recurrence.endings(kinds, kinds[last - length + 1 : last + 1])
        if whole >= 0
        else np.zeros(0, np.int64)
    )
    took = float(np.median(np.diff(ends[at]))) if len(at) > 1 else 0.0
    many = max(1, int(np.ceil(ROUND_NS / took))) if took > 0 else 1
    each = int(np.median(np.diff(seq[at]))) if len(at) > 1 else 1
    count = seq[at] // max(1, each)
    at, count = (values[count % many == many - 1] for values in (at, count))
    kept = np.flatnonzero((np.diff(at) == many * length) & (np.diff(ends[at]) > 0))[-MOST:]
    first = int(count[kept[0]]) // many if len(kept) else 0
    return Cuts(number=first + np.arange(len(kept)), begin_ns=ends[at[kept]], end_ns=ends[at[kept + 1]])


def _on_clock(operations: Operations, rank: int) -> bool:
    return bool(np.isfinite(operations.end_ns[operations.of(rank)]).all())


def _last_of_period(operations: Operations, mine: slice, whole: int, length: int) -> int:
    """Where the newest period shall end that lies before `whole`, as a place among a rank's operations.

    Where there are collectives, with that of the largest group in which the rank waits longest. In a pipeline
    a step begins with as many sends as there are in a row.
    """
    places = np.arange(whole - length + 1, whole + 1)
    members = operations.members[mine][places]
    if not members.any():
        return int(places[_before_sends(operations, mine, places)])
    periods = min(LOOKED, (whole + 1) // length)
    blocked = operations.blocked_ns[mine][places - length * np.arange(periods)[:, None]].mean(axis=0)
    return int(places[np.argmax(np.where(members == members.max(), blocked, -2.0))])


def _before_sends(operations: Operations, mine: slice, places: Ints) -> int:
    """Before the most sends in a row of a cycle of transfers."""
    sends = np.array([operations.phases[p] == "send" for p in operations.phase[mine][places].tolist()])
    if sends.all() or not sends.any():
        return len(places) - 1
    turned = np.roll(sends, -int(np.argmin(sends)))  # begins without one
    edges = np.flatnonzero(np.diff(np.append(turned, False).astype(np.int64)))
    begins, ends = edges[::2], edges[1::2]
    return int((begins[np.argmax(ends - begins)] + np.argmin(sends)) % len(places))


def parts_of(operations: Operations, cuts: Cuts, ranks: Ints) -> dict[str, Floats]:
    """Where the time of each round of each rank went: matrices [round, rank], ns, NaN where not known.

    `duration_ns`, `wait` (it stood still), `data` (own time before a rooted operation), `compute` (the rest),
    `routed_bytes`. A rank that has no operation near a round's end is missing from it.
    """
    shape = (len(cuts.number), len(ranks))
    names = ("duration_ns", "wait", "data", "compute", "routed_bytes")
    parts = {name: np.full(shape, np.nan) for name in names}
    length = cuts.end_ns - cuts.begin_ns
    routed = np.array([name == UNEVEN for name in operations.phases])[operations.phase]
    rooted = operations.rooted
    for column, rank in enumerate(ranks.tolist()):
        mine = operations.of(rank)
        start, end, blocked = (
            v[mine] for v in (operations.start_ns, operations.end_ns, operations.blocked_ns)
        )
        if not np.isfinite(end).all():
            continue
        there = (end.max() >= cuts.end_ns - length / 2) & (end.min() <= cuts.begin_ns + length / 2)
        parts["duration_ns"][there, column] = length[there]
        of = cuts.at(end)
        counted = routed[mine] & (of >= 0)
        sizes = np.bincount(of[counted], operations.bytes[mine][counted], len(length))
        parts["routed_bytes"][there, column] = sizes[there]
        if (blocked < 0).any():
            continue
        wait = _covered(end - blocked, end, cuts)
        before = np.append(-np.inf, np.maximum.accumulate(np.where(blocked > 0, end, -np.inf)))[:-1]
        told = rooted[mine] & np.isfinite(before)
        busy = _covered(
            np.append(end - blocked, np.minimum(before, start)[told]), np.append(end, start[told]), cuts
        )
        for name, took in (("wait", wait), ("data", busy - wait), ("compute", length - busy)):
            parts[name][there, column] = np.maximum(took, 0.0)[there]
    return parts


def _covered(begin: Floats, end: Floats, cuts: Cuts) -> Floats:
    """How much of each round these intervals cover together."""
    order = np.argsort(end, kind="stable")
    begin, end = begin[order], end[order]
    # What begins within an interval that ends later is covered by it.
    earliest = np.append(np.minimum.accumulate(begin[::-1])[::-1][1:], np.inf)
    until = np.minimum(end, earliest)
    begin, until = begin[until > begin], until[until > begin]
    if not len(begin):
        return np.zeros(len(cuts.number))
    total = np.repeat(np.cumsum(until - begin), 2)
    total[::2] -= until - begin
    times = np.stack([begin, until], axis=1).reshape(-1)
    return np.asarray(np.diff(np.interp(cuts.of_time, times, total))[::2])


def told(operations: Operations, losses: pa.Table, cuts: Cuts) -> Cuts:
    """The rounds since every rank has told its losses, of those that ever do. Before, they are not known."""
    rank, start = (losses[name].to_numpy().astype(np.int64) for name in ("rank", "start_ns"))
    order = np.lexsort((start, rank))
    ranks, first = np.unique(rank[order], return_index=True)
    since = [
        float(operations.on_clock(start[order[at : at + 1]], operations.node_of.get(number, ""))[0])
        for number, at in zip(ranks.tolist(), first.tolist(), strict=True)
    ]
    kept = cuts.begin_ns >= max((at for at in since if np.isfinite(at)), default=-np.inf)
    return Cuts(number=cuts.number[kept], begin_ns=cuts.begin_ns[kept], end_ns=cuts.end_ns[kept])


def losses_of(operations: Operations, losses: pa.Table, cuts: Cuts, ranks: Ints) -> dict[str, Floats]:
    """`cpu_wait` and `off_cpu` of each round of each rank, from `analysis.processor_losses`. NaN: not told.

    What was lost between two times is shared out evenly over the time between them. What is not told yet is
    like the median of the last ones: a single one says little. Where a rank has told nothing, that of the
    others does not count: a rank whose time is not net of waits would seem slow.
    """
    result = {name: np.full((len(cuts.number), len(ranks)), np.nan) for name in ("cpu_wait", "off_cpu")}
    rank, start, lost = (losses[name].to_numpy().astype(np.int64) for name in ("rank", "start_ns", "lost_ns"))
    queued = np.array([name == "cpu_wait" for name in losses["phase"].to_pylist()], np.bool_)
    order = np.argsort(rank, kind="stable")
    edges = np.searchsorted(rank[order], [ranks, ranks + 1])
    for column, (first, end) in enumerate(edges.T.tolist()):
        rows = order[first:end]
        began = np.unique(start[rows[queued[rows]]])
        if len(began) < 2:
            continue
        newest = int(lost[rows[start[rows] >= began[-1]]].sum())  # it lasts as long at least
        over = began[-1] + max(min(int(np.median(np.diff(began))), int(LAST_NS)), newest)
        times = np.append(began, [over, over + int(LAST_NS)])
        knots = operations.on_clock(times, operations.node_of[int(ranks[column])])
        for name, of_name in (("cpu_wait", queued[rows]), ("off_cpu", ~queued[rows])):
            chosen = rows[of_name & (start[rows] >= began[0])]
            place = np.searchsorted(began, start[chosen], side="right") - 1
            each = np.bincount(place, lost[chosen], len(began))
            rate = float(np.median((each / np.maximum(1, np.diff(times[:-1])))[-LAST_TOLD:]))
            total = np.concatenate([[0.0], np.cumsum(np.append(each, rate * LAST_NS))])
            result[name][:, column] = np.diff(np.interp(cuts.of_time, knots, total))[::2]
    all_tell = all(np.isfinite(part).any(axis=0).all() for part in result.values())
    return result if all_tell else {name: np.full_like(part, np.nan) for name, part in result.items()}


def heard_first(operations: Operations, cuts: Cuts, newest: int) -> dict[int, int]:
    """Whom each rank hears first in the newest rounds, see `pipeline_order.heard_first`."""
    receives = np.array([name == "recv" for name in operations.phases])[operations.phase]
    of = cuts.at(np.where(receives, operations.end_ns, operations.start_ns))  # one may be waited for early
    sent = np.array([name in ("send", "recv") for name in operations.phases])[operations.phase]
    rows = np.flatnonzero(sent & (operations.peer >= 0) & (of >= len(cuts.number) - newest))
    _, first = np.unique(operations.rank[rows] * len(cuts.number) + of[rows], return_index=True)
    rows = rows[first]  # of each rank in the order of their start
    table = pa.table(
        {
            "rank": operations.rank[rows],
            "phase": [operations.phases[p] for p in operations.phase[rows].tolist()],
            "peer": operations.peer[rows],
        }
    )
    return pipeline_order.heard_first(table)


def unlike(operations: Operations, cuts: Cuts, ranks: Ints, cohorts: list[Ints]) -> str:
    """Which ranks of a cohort have other operations than the rest, so that their work may differ. "": none.

    `ranks` have the columns of `cohorts`. They are compared in the time from which all have operations. Those
    that have none in a half of it are left out. At its ends the operations of a round may be missing.
    """
    begin, end, there = _shared_time(operations, cuts, ranks)
    inside = (operations.end_ns > begin) & (operations.end_ns <= end)
    rounds = max(1.0, (end - begin) / float(np.median(cuts.end_ns - cuts.begin_ns)))
    even = np.array([name != UNEVEN for name in operations.phases])[operations.phase]
    shapes, column = int(operations.shape.max()) + 1, np.searchsorted(ranks, operations.rank)
    cell = column[inside] * shapes + operations.shape[inside]
    for weights, alike in ((np.ones(len(inside)), ALIKE), (operations.bytes * even, ALIKE_BYTES)):
        each = np.bincount(cell, weights[inside], len(ranks) * shapes).reshape(len(ranks), shapes)
        for columns in (cohort[there[cohort]] for cohort in cohorts):
            usual = np.median(each[columns], axis=0) if len(columns) else each[:0]
            off = np.abs(each[columns] - usual) > alike * usual + np.maximum(usual / rounds, 1.0)
            who = ranks[columns[off.any(axis=1)]]
            if len(who):
                verb = "do" if len(who) > 1 else "does"
                return f"{_who(who)} {verb} not communicate as often or as much as the others: other work"
    return ""


def _shared_time(operations: Operations, cuts: Cuts, ranks: Ints) -> tuple[float, float, NDArray[np.bool_]]:
    """From when to when all ranks have operations, of those with some in both halves. Which these are."""
    edges = np.searchsorted(operations.rank, np.append(ranks, ranks[-1] + 1))
    first = np.minimum.reduceat(operations.end_ns, edges[:-1])
    last = np.maximum.reduceat(operations.end_ns, edges[:-1])
    begin, end = float(cuts.begin_ns[0]), float(cuts.end_ns[-1])
    there = (first < (begin + end) / 2) & (last > (begin + end) / 2)
    begin = max(begin, float(first[there].max(initial=begin)))
    return begin, min(end, float(last[there].min(initial=end))), there


def _who(ranks: Ints) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(sorted(ranks.tolist()))}"


def last_collectives(operations: Operations, table: pa.Table, cuts: Cuts) -> pa.Table:
    """The last collective of each round and group, as `analysis.last_collectives` has those of steps."""
    known = np.flatnonzero((operations.collective >= 0) & np.isfinite(operations.end_ns))
    number = operations.collective[known]
    ended = np.full(int(number.max(initial=0)) + 1, np.inf)
    np.minimum.at(ended, number, operations.end_ns[known])
    of = cuts.at(ended)[number]
    known, of = known[of >= 0], of[of >= 0]
    groups = int(operations.group.max()) + 1
    place = of * groups + operations.group[known]
    newest = np.full(len(cuts.number) * groups, -1)
    np.maximum.at(newest, place, operations.seq[known])
    last = operations.seq[known] == newest[place]
    rows = table.take(number_array(operations.rows[known[last]]))
    return rows.append_column("step", number_array(cuts.number[of[last]]))
