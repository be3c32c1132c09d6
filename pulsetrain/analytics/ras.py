"""NCCL RAS reports (JSON, NCCL 2.28 and later) to the witnesses of the blame graph.

One report lists communicators with their ranks, each rank's counts of collectives, and who does not answer.
Counts that differ once are normal: two reports are compared, and only a communicator in which nobody moved
between them counts as waiting. RAS counts no send or recv, so it is blind to pipeline transfers. Ranks in a
report are the communicator's own; they are joined to global ranks by host and process id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulsetrain.analytics.hang import Blame, blame
from pulsetrain.analytics.witness import GroupKey, Key, Wait, Witness
from pulsetrain.stream.errors import CorruptData


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of one communicator: its process, how many collectives it began, and whether it answers."""

    process: tuple[str, int]
    count: int
    answers: bool


Report = Mapping[str, tuple[Member, ...]]  # communicator hash -> members by rank in it


def parse(text: str) -> Report:
    """The communicators of one report. Raises `CorruptData` where it is not one."""
    try:
        raw = json.loads(text)
        found = raw.get("communicators", raw.get("comms", []))
        return {str(c.get("hash", i)): tuple(_members(c)) for i, c in enumerate(found)}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptData(f"not a NCCL RAS report: {error}") from error


def _members(communicator: Mapping[str, Any]) -> Iterator[Member]:
    for rank in communicator.get("ranks", ()):
        counts = rank.get("collective_counts", {})
        total = sum(int(v) for v in (counts.values() if isinstance(counts, dict) else counts))
        yield Member(process=_process(rank), count=total, answers=True)
    for rank in communicator.get("missing_ranks", ()):
        yield Member(process=_process(rank), count=-1, answers=False)


def _process(rank: Mapping[str, Any]) -> tuple[str, int]:
    return (str(rank.get("host", "")), int(rank["pid"]))


def judge(before: Report, after: Report, ranks: Mapping[tuple[str, int], int] | None = None) -> Blame:
    """The blame graph's verdict on two reports of one job, some seconds apart.

    `ranks` joins (host, process id) to global ranks; without it processes are numbered in their order.

    >>> def report(a, b):
    ...     counts = {1: {"AllReduce": a}, 2: {"AllReduce": b}}
    ...     rows = [{"host": "n", "pid": p, "collective_counts": c} for p, c in counts.items()]
    ...     return parse(json.dumps({"communicators": [{"hash": "0x1", "ranks": rows}]}))
    >>> judge(report(8, 7), report(8, 7)).culprits
    (1,)
    >>> judge(report(8, 7), report(9, 8)).verdict
    'none'
    """
    ranks = ranks or _numbered(after)
    return blame(witnesses(before, after, ranks))


def _numbered(report: Report) -> dict[tuple[str, int], int]:
    processes = sorted({m.process for members in report.values() for m in members})
    return {process: number for number, process in enumerate(processes)}


def witnesses(before: Report, after: Report, ranks: Mapping[tuple[str, int], int]) -> list[Witness]:
    """One witness a rank; a rank that some communicator misses counts as gone."""
    enqueued: dict[int, dict[Key, int]] = {rank: {} for rank in ranks.values()}
    waits: dict[int, list[Wait]] = {rank: [] for rank in ranks.values()}
    silent: set[int] = set()
    for name, members in after.items():
        held = [m for m in members if m.process in ranks]
        key = GroupKey(name, (ranks[m.process] for m in held))
        silent |= {ranks[m.process] for m in held if not m.answers}
        for member in held:
            enqueued[ranks[member.process]][key] = member.count
        for rank, seq in _waiting(held, before.get(name, ()), ranks):
            waits[rank].append(Wait(group=key, seq=seq, op="collective"))
    return [
        Witness(
            rank=r, state="gone" if r in silent else "running", enqueued=enqueued[r], waits=tuple(waits[r])
        )
        for r in sorted(enqueued)
    ]


def _waiting(
    held: Sequence[Member], before: Sequence[Member], ranks: Mapping[tuple[str, int], int]
) -> list[tuple[int, int]]:
    """(rank, seq) of those ahead of a member that is behind, where no count of the communicator has moved."""
    counts = {m.process: m.count for m in held}
    moved = not before or any(counts.get(m.process) != m.count for m in before)
    most = max(counts.values(), default=0)
    if moved or min(counts.values(), default=0) == most:
        return []
    return [(ranks[m.process], most) for m in held if m.count == most]
