"""NCCL RAS reports (JSON, NCCL 2.28 and later) to the witnesses of the blame graph.

One report lists communicators with their ranks, each rank's counts of collectives, and who does not answer.
Counts that differ once are normal: two reports are compared, and only a communicator in which nobody moved
between them counts as waiting. RAS counts no send or recv, so it is blind to pipeline transfers. Ranks in a
report are the communicator's own; they are joined to global ranks by host and process id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pulsetrain.analytics.hangs.evidence import GroupKey, Key, RankEvidence, Wait
from pulsetrain.analytics.hangs.hang import Blame, blame
from pulsetrain.core.errors import CorruptData

MOST = 1 << 60  # a count beyond any
MOST_BYTES = 256 << 20
LOOKED_AT_BYTES = 1 << 16
UNKNOWN = -2  # the count of a member whose counts cannot be read


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of one communicator: its process, how many collectives it began (of which kinds), and whether
    it answers. A member whose process is not told is known by the communicator and its place there."""

    process: tuple[str, int]
    count: int
    answers: bool
    kinds: str = ""
    place: int = -1  # rank in the communicator; -1: not told


Report = Mapping[str, tuple[Member, ...]]  # communicator hash -> members by rank in it


def parse(text: str) -> Report:
    """The communicators of one report; what names no process is left out. Raises `CorruptData` where it is no
    report."""
    try:
        raw = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"not a NCCL RAS report: {error}") from error
    found = raw.get("communicators", raw.get("comms")) if isinstance(raw, dict) else None
    if not isinstance(found, list):
        raise CorruptData("not a NCCL RAS report: no list of communicators in it")
    named = [(str(c.get("hash", i)), c) for i, c in enumerate(found) if isinstance(c, dict)]
    report = {name: tuple(_members(name, c)) for name, c in named}
    if any(c.get("ranks") for _, c in named) and not any(report.values()):
        raise CorruptData("not a NCCL RAS report: none of its ranks can be told")
    return report


def _members(name: str, communicator: Mapping[str, Any]) -> Iterator[Member]:
    taken: set[tuple[str, int]] = set()
    for key, answers in (("ranks", True), ("missing_ranks", False)):
        for raw in _dicts(communicator.get(key)):
            counts = _counts(raw.get("collective_counts")) if answers else {}
            process = _process(name, raw)
            if process is not None and process not in taken:
                taken.add(process)
                known = UNKNOWN if counts is None else sum(counts.values())
                yield Member(
                    process=process,
                    count=known if answers else -1,
                    answers=answers,
                    kinds=", ".join(f"{n} {kind}" for kind, n in sorted((counts or {}).items()) if n),
                    place=_whole(raw.get("rank"), -1),
                )


def _dicts(found: Any) -> list[Mapping[str, Any]]:
    return [x for x in found if isinstance(x, dict)] if isinstance(found, list) else []


def _counts(raw: Any) -> dict[str, int] | None:
    """Collectives begun by kind; None where a count is no whole number."""
    named = raw if isinstance(raw, dict) else dict(enumerate(raw)) if isinstance(raw, list) else None
    if named is None:
        return None
    counts = {str(kind): _whole(n, -1) for kind, n in named.items()}
    return counts if all(0 <= n < MOST for n in counts.values()) else None


def _whole(raw: Any, otherwise: int) -> int:
    try:
        return int(raw)
    except (TypeError, ValueError, OverflowError):
        return otherwise


def _process(name: str, raw: Mapping[str, Any]) -> tuple[str, int] | None:
    """(host, process id); (communicator, -2 - rank) where that is not told; None where neither is."""
    pid, place = _whole(raw.get("pid"), -1), _whole(raw.get("rank"), -1)
    if pid >= 0:
        return (str(raw.get("host", "")), pid)
    return (f"communicator {name}", -2 - place) if place >= 0 else None


def judge(before: Report, after: Report, ranks: Mapping[tuple[str, int], int] | None = None) -> Blame:
    """The blame graph's verdict on two reports of one job, some seconds apart.

    `ranks` joins (host, process id) to global ranks; without it the ranks are those of a communicator that
    has every process, else processes are numbered in their order.

    >>> def report(a, b):
    ...     counts = {1: {"AllReduce": a}, 2: {"AllReduce": b}}
    ...     rows = [{"host": "n", "pid": p, "collective_counts": c} for p, c in counts.items()]
    ...     return parse(json.dumps({"communicators": [{"hash": "0x1", "ranks": rows}]}))
    >>> judge(report(8, 7), report(8, 7)).culprits
    (1,)
    >>> judge(report(8, 7), report(9, 8)).verdict
    'none'
    """
    ranks = ranks or numbered(after)
    found = blame(witnesses(before, after, ranks))
    if found.verdict == "none" and any(m.count == UNKNOWN for members in after.values() for m in members):
        reason = "no rank waits for another whose counts are told, but not all are"
        return replace(found, verdict="uncertain", confidence=0.2, reason=reason)
    return found


def numbered(report: Report) -> dict[tuple[str, int], int]:
    """(host, process id) -> rank in a communicator that has every process, else the place in their order."""
    processes = sorted({m.process for members in report.values() for m in members})
    for members in report.values():
        places = {m.process: m.place for m in members if m.place >= 0}
        if len(places) == len(set(places.values())) == len(processes):
            return places
    return {process: number for number, process in enumerate(processes)}


def witnesses(before: Report, after: Report, ranks: Mapping[tuple[str, int], int]) -> list[RankEvidence]:
    """One witness a rank; a rank that some communicator misses counts as gone."""
    enqueued: dict[int, dict[Key, int]] = {rank: {} for rank in ranks.values()}
    waits: dict[int, list[Wait]] = {rank: [] for rank in ranks.values()}
    silent: set[int] = set()
    for name, members in after.items():
        held = [m for m in members if m.process in ranks and m.count != UNKNOWN]
        key: Key = GroupKey(name, (ranks[m.process] for m in held))
        silent |= {ranks[m.process] for m in held if not m.answers}
        for member in held:
            enqueued[ranks[member.process]][key] = member.count
        for member in _waiting(held, before.get(name, ())):
            waits[ranks[member.process]].append(
                Wait(group=key, seq=member.count, op=member.kinds or "collective")
            )
    return [
        RankEvidence(
            rank=r, state="gone" if r in silent else "running", enqueued=enqueued[r], waits=tuple(waits[r])
        )
        for r in sorted(enqueued)
    ]


def _waiting(held: Sequence[Member], before: Sequence[Member]) -> list[Member]:
    """Those ahead of a member that is behind, or all where as many began other collectives, if no count of
    the communicator has moved."""
    counts = {m.process: (m.count, m.kinds) for m in held}
    told = [m for m in before if m.count != UNKNOWN]
    moved = not told or any(counts.get(m.process) != (m.count, m.kinds) for m in told)
    most = max((m.count for m in held), default=0)
    level = min((m.count for m in held), default=0) == most
    if moved or (level and len({m.kinds for m in held}) < 2):
        return []
    return [m for m in held if m.count == most]


# -- for people -------------------------------------------------------------------------------------------


def reports_in(folder: Path) -> list[tuple[str, str]]:
    """(name, content) of the files in `folder` that look like reports, by name; none without a folder."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.stat().st_size <= MOST_BYTES):
        with suppress(OSError):
            data = path.read_bytes()
            if b'"communicators"' in data[:LOOKED_AT_BYTES]:
                found.append((path.name, data.decode(errors="replace")))
    return found


def verdict(texts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The verdict on reports (name, content) in order of time, with the fields of
    `flight_recorder.verdict`: the first is compared with the last; one alone proves nothing."""
    reports, notes = [], []
    for name, text in texts:
        try:
            reports.append(parse(text))
        except CorruptData as error:
            notes.append(f"{name}: {error}")
    if not reports:
        raise CorruptData(notes[0] if notes else "no NCCL RAS report")
    found = judge(reports[0], reports[-1])
    if len(reports) < 2:
        reason = "one report alone: counts that differ once are normal; give two, some seconds apart"
        found = replace(found, verdict="uncertain", culprits=(), victims=(), confidence=0.2, reason=reason)
    return found.answer(notes)
