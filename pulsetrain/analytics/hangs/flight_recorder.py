"""From PyTorch Flight Recorder dumps to a hang verdict.

A rank without a dump, or with a dump that says nothing, counts as a rank that did not report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from pulsetrain.analytics.hangs.evidence import GroupKey, RankEvidence, Wait
from pulsetrain.analytics.hangs.flight_dumps import DEFAULT_GROUP, Dump, Operation
from pulsetrain.analytics.hangs.flight_files import load
from pulsetrain.analytics.hangs.hang import HangAnswer, HangDiagnosis, diagnose
from pulsetrain.analytics.selection import ranges

_MARGIN_NS = 1_000_000_000
_JOINED_ALL = 1 << 62  # a sequence number beyond any other


def verdict(folder: Path) -> HangAnswer:
    """Return the verdict on the dumps in `folder`: rank, network, desync, none or uncertain.

    Files that cannot be read are noted, and their ranks count as not reported. Raises `UsageError` where
    there is no folder or no dump in it.
    """
    dumps, notes = load(folder)
    present = {d.rank for d in dumps}
    absent = sorted({m for d in dumps for key in d.groups for m in key[1]} - present)
    diagnosis = _limit_to_recorded(_limit_to_present(judge(dumps), present, absent), dumps)
    if absent:
        notes.append(f"no dump of ranks {_listed(absent)}")
    return diagnosis.answer(notes)


def sentences(answer: HangAnswer) -> list[str]:
    """Return the answer as lines of text."""
    head = f"verdict: {answer['verdict']} (confidence {answer['confidence']:.2f})"
    if answer["culprits"]:
        head += f"; at fault: {_listed(answer['culprits'])}"
    lines = [head, f"  {answer['reason']}"]
    if answer["victims"]:
        lines.append(f"  waiting for them, directly or through others: {_listed(answer['victims'])}")
    for group in answer["groups"]:
        missing = f"missing {_listed(group['missing'])}" if group["missing"] else "all joined"
        lines.append(
            f"  {group['group']} {_listed(group['members'])}: {group['op']} seq {group['seq']}, {missing}"
        )
    return lines + [f"  note: {note}" for note in answer["notes"]]


def judge(dumps: Sequence[Dump]) -> HangDiagnosis:
    """Return the diagnosis of dumps of distinct ranks.

    >>> group = ("tp", (0, 1))
    >>> common = {"group": group, "p2p_seq": -1, "op": "all_reduce", "size": "", "peer": -1, "order": 0}
    >>> waits = Operation(seq=8, created_ns=5, pending=True, started=True, **common)
    >>> ended = Operation(seq=7, created_ns=4, pending=False, started=True, **common)
    >>> judge([Dump(rank=0, groups=(group,), operations=(waits,)),
    ...        Dump(rank=1, groups=(group,), operations=(ended,))]).culprits
    (1,)
    """
    return diagnose(evidence(dumps), margin_ns=_MARGIN_NS)


def _listed(ranks: Sequence[int]) -> str:
    return ranges(ranks, separator=", ")


def _limit_to_present(diagnosis: HangDiagnosis, present: Set[int], absent: Sequence[int]) -> HangDiagnosis:
    """Blame no rank for a missing dump where most dumps are missing: then dumps were not collected."""
    if len(absent) <= len(present) or not set(diagnosis.culprits) - present:
        return diagnosis
    ranks = len(present) + len(absent)
    reason = f"dumps of only {len(present)} of {ranks} ranks: a missing one proves nothing"
    return replace(diagnosis, verdict="uncertain", culprits=(), victims=(), confidence=0.2, reason=reason)


def _limit_to_recorded(diagnosis: HangDiagnosis, dumps: Sequence[Dump]) -> HangDiagnosis:
    """Lower the confidence, or withdraw the verdict, where it rests on members or transfers not recorded."""
    guessed = {key for d in dumps for key in d.inferred if key[0] != DEFAULT_GROUP}
    if diagnosis.verdict == "network" and diagnosis.group in guessed:
        reason = "all who are known to be in the group joined, but its members are not recorded"
        return replace(diagnosis, verdict="uncertain", confidence=0.2, reason=reason)
    unseen = {key for d in dumps for key in d.uncounted_transfers}
    waiting = {d.rank for d in dumps if any(op.pending for op in d.operations)}
    idle = {r for r in diagnosis.culprits if r not in waiting and any(r in key[1] for key in unseen)}
    if diagnosis.verdict != "rank" or not idle:
        return diagnosis
    if len(idle) == 1:
        return replace(diagnosis, confidence=min(diagnosis.confidence, 0.7))
    reason = f"{diagnosis.reason}; which of them waits for another in a transfer was not recorded"
    return replace(diagnosis, verdict="uncertain", culprits=(), confidence=0.3, reason=reason)


# -- evidence --------------------------------------------------------------------------------------------


def evidence(dumps: Sequence[Dump]) -> list[RankEvidence]:
    """Return what the diagnosis needs of each rank."""
    timed = any(op.started for d in dumps for op in d.operations)
    last_ns = {d.rank: max((op.created_ns for op in d.operations), default=0) for d in dumps}
    newest_ns = max(last_ns.values(), default=0)
    counts = _counts(dumps)
    return [
        _rank_evidence(d, counts, timed=timed, silence_ns=newest_ns - (last_ns[d.rank] or newest_ns))
        for d in dumps
    ]


@dataclass(frozen=True)
class _Counts:
    """The most collectives and transfers that any rank recorded in each group.

    `mixed` are the groups whose transfers are recorded, or known to be missing. The counters in `status` are
    those of the newest operation of either kind. So they say something of one kind only where they are beyond
    the count of the other.
    """

    collectives: Mapping[GroupKey, int]
    transfers: Mapping[GroupKey, int]
    mixed: Set[GroupKey]


def _counts(dumps: Sequence[Dump]) -> _Counts:
    collectives: dict[GroupKey, int] = {}
    transfers: dict[GroupKey, int] = {}
    for op in (op for d in dumps for op in d.operations):
        collectives[op.group] = max(collectives.get(op.group, 0), op.seq)
        transfers[op.group] = max(transfers.get(op.group, 0), op.transfers)
    recorded = {op.group for d in dumps for op in d.operations if op.peer >= 0}
    mixed = recorded.union(*(d.uncounted_transfers for d in dumps))
    return _Counts(collectives, transfers, mixed)


def _rank_evidence(dump: Dump, counts: _Counts, *, timed: bool, silence_ns: int) -> RankEvidence:
    enqueued: dict[GroupKey, int] = {}
    completed: dict[GroupKey, int] = {}
    transferred: dict[GroupKey, int] = {}
    for key in dump.groups:
        if key in counts.mixed:
            enqueued[key], newest = _progress_of_mixed(dump, key, counts.collectives.get(key, 0))
            transferred |= {key: newest} if len(key[1]) == 2 else {}
        elif (progress := _progress(dump, key, counts.transfers.get(key, 0))) is not None:
            enqueued[key], completed[key] = progress
    pending = [
        op
        for op in dump.operations
        if op.pending and (op.peer >= 0 or op.group in counts.mixed or op.seq > completed.get(op.group, -1))
    ]
    return RankEvidence(
        rank=dump.rank,
        reported=bool(dump.operations) or bool(dump.status),
        silence_ns=silence_ns,
        enqueued=enqueued,
        completed=completed,
        transferred=transferred,
        waits=tuple(_waits(pending, timed=timed)),
    )


def _progress(dump: Dump, key: GroupKey, transfers: int) -> tuple[int, int] | None:
    """Return (enqueued, completed) for a group of collectives alone, or None where nothing is known.

    A group that also had `transfers`, of which no entry is left, counts as joined where its counters could be
    those of transfers.
    """
    own = [op for op in dump.operations if op.group == key]
    counters = [dump.status[key]] if key in dump.status and dump.status[key][0] > transfers else []
    if key in dump.status and not counters and not own:
        return _JOINED_ALL, -1
    enqueued = max([op.seq for op in own] + [s[0] for s in counters], default=None)
    if enqueued is None:
        return None
    waiting = [op.seq for op in own if op.pending]
    completed = max([s[1] for s in counters] + [min(waiting) - 1 if waiting else enqueued if own else -1])
    return enqueued, completed


def _progress_of_mixed(dump: Dump, key: GroupKey, collectives: int) -> tuple[int, int]:
    """Return (collectives enqueued, newest transfer completed) for a group with transfers.

    Every entry carries the count of collectives. Where no entry is left, nothing separates collectives from
    transfers, and the rank counts as having joined the group's collectives.
    """
    own = [op for op in dump.operations if op.group == key]
    enqueued = max((op.seq for op in own), default=_JOINED_ALL)
    in_flight = [op.p2p_seq for op in own if op.peer >= 0 and op.pending]
    if in_flight:
        return enqueued, min(in_flight) - 1
    transferred = max((op.p2p_seq for op in own if op.peer >= 0), default=-1)
    counter = dump.status[key][1] if key in dump.status else -1
    return enqueued, max(transferred, counter if counter > collectives else -1)


def _waits(pending: Sequence[Operation], *, timed: bool) -> list[Wait]:
    """Return the oldest collective of each group, and the oldest transfer to and from each peer."""
    oldest: dict[tuple[GroupKey, int, str], Operation] = {}
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
