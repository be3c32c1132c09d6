"""PyTorch Flight Recorder dumps to a hang verdict. A rank without a dump, or whose dump says nothing, counts
as not heard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pulsetrain.analytics.hangs.evidence import Key, RankEvidence, Wait
from pulsetrain.analytics.hangs.flight_dumps import DEFAULT, Dump, Operation, load
from pulsetrain.analytics.hangs.hang import Blame, blame

_MARGIN_NS = 1_000_000_000
_JOINED = 1 << 62  # a count beyond any other


def verdict(folder: Path) -> dict[str, Any]:
    """The verdict on the dumps in `folder`: verdict, culprits, confidence, groups, victims, reason, notes.

    `verdict` is rank, network, desync, none or uncertain. Files that cannot be read are noted and their ranks
    count as not heard. Raises `UsageError` where there is no folder or no dump in it.
    """
    dumps, notes = load(folder)
    heard = {d.rank for d in dumps}
    absent = sorted({m for d in dumps for key in d.groups for m in key[1]} - heard)
    found = _supported(_credible(judge(dumps), heard, absent), dumps)
    if absent:
        notes.append(f"no dump of ranks {folded(absent)}")
    return found.answer(notes)


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """`verdict`'s answer for people."""
    head = f"verdict: {answer['verdict']} (confidence {answer['confidence']:.2f})"
    if answer["culprits"]:
        head += f"; at fault: {folded(answer['culprits'])}"
    lines = [head, f"  {answer['reason']}"]
    if answer["victims"]:
        lines.append(f"  waiting for them, directly or through others: {folded(answer['victims'])}")
    for group in answer["groups"]:
        missing = f"missing {folded(group['missing'])}" if group["missing"] else "all joined"
        lines.append(
            f"  {group['group']} {folded(group['members'])}: {group['op']} seq {group['seq']}, {missing}"
        )
    return lines + [f"  note: {note}" for note in answer["notes"]]


def folded(ranks: Sequence[int]) -> str:
    """Sorted ranks with runs folded.

    >>> folded([0, 1, 2, 9])
    '0-2, 9'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def judge(dumps: Sequence[Dump]) -> Blame:
    """The blame graph's verdict on dumps of distinct ranks."""
    return blame(witnesses(dumps), margin_ns=_MARGIN_NS)


def _credible(found: Blame, heard: Set[int], absent: Sequence[int]) -> Blame:
    """`found`, unless it blames ranks for a silence that most ranks share: then dumps were not collected."""
    if len(absent) <= len(heard) or not set(found.culprits) - heard:
        return found
    reason = f"dumps of only {len(heard)} of {len(heard) + len(absent)} ranks: a missing one proves nothing"
    return replace(found, verdict="uncertain", culprits=(), victims=(), confidence=0.2, reason=reason)


def _supported(found: Blame, dumps: Sequence[Dump]) -> Blame:
    """`found`, less sure or not at all where what it rests on was not recorded: members, transfers."""
    guessed = {key for d in dumps for key in d.inferred if key[0] != DEFAULT}
    if found.verdict == "network" and found.group in guessed:
        reason = "all who are known to be in the group joined, but its members are not recorded"
        return replace(found, verdict="uncertain", confidence=0.2, reason=reason)
    unseen = {key for d in dumps for key in d.unseen}
    waiting = {d.rank for d in dumps if any(op.pending for op in d.operations)}
    idle = {r for r in found.culprits if r not in waiting and any(r in key[1] for key in unseen)}
    if found.verdict != "rank" or not idle:
        return found
    if len(idle) == 1:
        return replace(found, confidence=min(found.confidence, 0.7))
    reason = f"{found.reason}; which of them waits for another in a transfer was not recorded"
    return replace(found, verdict="uncertain", culprits=(), confidence=0.3, reason=reason)


def witnesses(dumps: Sequence[Dump]) -> list[RankEvidence]:
    """What the blame graph needs of each rank."""
    timed = any(op.started for d in dumps for op in d.operations)
    last_ns = {d.rank: max((op.created_ns for op in d.operations), default=0) for d in dumps}
    newest_ns = max(last_ns.values(), default=0)
    counts = _counts(dumps)
    return [
        _witness(d, counts, timed=timed, silence_ns=newest_ns - (last_ns[d.rank] or newest_ns)) for d in dumps
    ]


@dataclass(frozen=True)
class _Counts:
    """The most (collectives, transfers) that anybody recorded in each group, and the groups whose transfers
    are recorded or known to be missing. A group's counters in `status` are those of whichever came last, so a
    number says something of one kind only where it is beyond the count of the other."""

    collectives: Mapping[Key, int]
    transfers: Mapping[Key, int]
    mixed: Set[Key]


def _counts(dumps: Sequence[Dump]) -> _Counts:
    collectives: dict[Key, int] = {}
    transfers: dict[Key, int] = {}
    for op in (op for d in dumps for op in d.operations):
        collectives[op.group] = max(collectives.get(op.group, 0), op.seq)
        transfers[op.group] = max(transfers.get(op.group, 0), op.transfers)
    recorded = {op.group for d in dumps for op in d.operations if op.peer >= 0}
    return _Counts(collectives, transfers, recorded.union(*(d.unseen for d in dumps)))


def _witness(dump: Dump, counts: _Counts, *, timed: bool, silence_ns: int) -> RankEvidence:
    enqueued: dict[Key, int] = {}
    completed: dict[Key, int] = {}
    transferred: dict[Key, int] = {}
    for key in dump.groups:
        if key in counts.mixed:
            enqueued[key], moved = _transfers(dump, key, counts.collectives.get(key, 0))
            transferred |= {key: moved} if len(key[1]) == 2 else {}
        elif (reached := _collectives(dump, key, counts.transfers.get(key, 0))) is not None:
            enqueued[key], completed[key] = reached
    pending = [
        op
        for op in dump.operations
        if op.pending and (op.peer >= 0 or op.group in counts.mixed or op.seq > completed.get(op.group, -1))
    ]
    return RankEvidence(
        rank=dump.rank,
        heard=bool(dump.operations) or bool(dump.status),
        silence_ns=silence_ns,
        enqueued=enqueued,
        completed=completed,
        transferred=transferred,
        waits=tuple(_waits(pending, timed=timed)),
    )


def _collectives(dump: Dump, key: Key, transfers: int) -> tuple[int, int] | None:
    """(enqueued, completed) of a group of collectives alone; None where nothing is known.

    A group that also had `transfers`, none of them left in the record, counts as joined where its counters
    could be theirs.
    """
    own = [op for op in dump.operations if op.group == key]
    known = [dump.status[key]] if key in dump.status and dump.status[key][0] > transfers else []
    if key in dump.status and not known and not own:
        return _JOINED, -1
    enqueued = max([op.seq for op in own] + [s[0] for s in known], default=None)
    if enqueued is None:
        return None
    waiting = [op.seq for op in own if op.pending]
    completed = max([s[1] for s in known] + [min(waiting) - 1 if waiting else enqueued if own else -1])
    return enqueued, completed


def _transfers(dump: Dump, key: Key, collectives: int) -> tuple[int, int]:
    """The same for a group with transfers: (collectives enqueued, newest transfer completed).

    Every entry carries the count of collectives. With no entry left, nothing tells them from transfers, and
    the rank counts as having joined the group's collectives.
    """
    own = [op for op in dump.operations if op.group == key]
    enqueued = max((op.seq for op in own), default=_JOINED)
    moving = [op.p2p_seq for op in own if op.peer >= 0 and op.pending]
    if moving:
        return enqueued, min(moving) - 1
    moved = max((op.p2p_seq for op in own if op.peer >= 0), default=-1)
    counted = dump.status[key][1] if key in dump.status else -1
    return enqueued, max(moved, counted if counted > collectives else -1)


def _waits(pending: Sequence[Operation], *, timed: bool) -> list[Wait]:
    """The oldest collective of each group, and the oldest transfer to and from each peer."""
    oldest: dict[tuple[Key, int, str], Operation] = {}
    for op in sorted(pending, key=lambda op: op.order):
        oldest.setdefault((op.group, op.peer, op.op if op.peer >= 0 else ""), op)
    return [
        Wait(
            group=op.group,
            seq=op.seq if op.peer < 0 else op.p2p_seq,
            op=op.op,
            size=op.size if op.peer < 0 else "",
            peer=op.peer,
            order=op.order,
            started=op.started if timed else None,
        )
        for op in oldest.values()
    ]
