"""From NCCL RAS reports (JSON, NCCL 2.28 and later) to a hang verdict.

A report lists communicators with their ranks, each rank's counts of collectives, and who does not answer.
Counts that differ once are normal. So two reports are compared, and only a communicator in which no count
changed between them is waiting. RAS counts no send or recv, so it cannot see pipeline transfers. Ranks in a
report are those of the communicator. Host and process id join them to global ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pulsetrain.analytics.hangs.evidence import GroupKey, HashedGroupKey, RankEvidence, Wait
from pulsetrain.analytics.hangs.hang import HangAnswer, HangDiagnosis, diagnose
from pulsetrain.core.errors import CorruptData

MAX_COUNT = 1 << 60
MAX_BYTES = 256 << 20
DETECT_BYTES = 1 << 16  # where in a file the word that marks a report is searched
UNKNOWN = -2  # the count of a member whose counts cannot be read
_NOT_ANSWERING = -1  # the count of a member that does not answer

Process = tuple[str, int]  # host and process id
RawObject = Mapping[str, object]  # a JSON object of which nothing is checked


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of one communicator: its process, how many collectives it began, and whether it answers.

    `kinds` lists the collectives by kind. `position` is the rank in the communicator, -1 where it is not
    given. A member whose process is not given is identified by the communicator and its position.
    """

    process: Process
    count: int
    answers: bool
    kinds: str = ""
    position: int = -1


Report = Mapping[str, tuple[Member, ...]]  # communicator -> its members


def parse(text: str) -> Report:
    """Return the communicators of one report. Entries that name no process are left out.

    Raises `CorruptData` where the text is no report.
    """
    try:
        raw = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"not a NCCL RAS report: {error}") from error
    communicators = raw.get("communicators", raw.get("comms")) if isinstance(raw, dict) else None
    if not isinstance(communicators, list):
        raise CorruptData("not a NCCL RAS report: no list of communicators in it")
    named = [(_name(c, i), c) for i, c in enumerate(communicators) if isinstance(c, dict)]
    report = {name: tuple(_members(name, c)) for name, c in named}
    if any(c.get("ranks") for _, c in named) and not any(report.values()):
        raise CorruptData("not a NCCL RAS report: none of its ranks can be identified")
    return report


def _name(communicator: RawObject, place: int) -> str:
    """Return the communicator's hash, with the second one where there is one: the first may repeat."""
    name, second = str(communicator.get("hash", place)), communicator.get("secondary_hash")
    return f"{name}/{second}" if isinstance(second, str) and second else name


def _members(name: str, communicator: RawObject) -> Iterator[Member]:
    taken: set[Process] = set()
    for key, answers in (("ranks", True), ("missing_ranks", False)):
        for raw in _objects(communicator.get(key)):
            counts = _counts(raw.get("collective_counts")) if answers else {}
            process = _process(name, raw)
            if process is not None and process not in taken:
                taken.add(process)
                known = UNKNOWN if counts is None else sum(counts.values())
                yield Member(
                    process=process,
                    count=known if answers else _NOT_ANSWERING,
                    answers=answers,
                    kinds=", ".join(f"{n} {kind}" for kind, n in sorted((counts or {}).items()) if n),
                    position=_whole_number(raw.get("rank")),
                )


def _objects(value: object) -> list[RawObject]:
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []


def _counts(raw: object) -> dict[str, int] | None:
    """Return the collectives begun, by kind, or None where a count is no whole number."""
    if not isinstance(raw, dict | list):
        return None
    by_kind: Mapping[object, object] = raw if isinstance(raw, dict) else dict(enumerate(raw))
    counts = {str(kind): _whole_number(n) for kind, n in by_kind.items()}
    return counts if all(0 <= n < MAX_COUNT for n in counts.values()) else None


def _whole_number(raw: object) -> int:
    """Return a number of the report; -1 where it is none."""
    if not isinstance(raw, int | float | str):
        return -1
    try:
        return int(raw)
    except (ValueError, OverflowError):
        return -1


def _process(name: str, raw: RawObject) -> Process | None:
    """Return (host, process id), else (communicator, -2 - rank), or None where neither is given."""
    pid, position = _whole_number(raw.get("pid")), _whole_number(raw.get("rank"))
    if pid >= 0:
        return (str(raw.get("host", "")), pid)
    return (f"communicator {name}", -2 - position) if position >= 0 else None


def judge(before: Report, after: Report, ranks: Mapping[Process, int] | None = None) -> HangDiagnosis:
    """Return the diagnosis of two reports of one job, some seconds apart.

    `ranks` joins (host, process id) to global ranks. Without it, ranks are those of a communicator that has
    every process. Where there is none, processes are numbered in their order.

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
    diagnosis = diagnose(evidence(before, after, ranks))
    unknown = any(m.count == UNKNOWN for members in after.values() for m in members)
    if diagnosis.verdict == "none" and unknown:
        reason = "no rank waits for another whose counts are known, but not all are"
        return replace(diagnosis, verdict="uncertain", confidence=0.2, reason=reason)
    return diagnosis


def numbered(report: Report) -> dict[Process, int]:
    """Return a rank for each process: that in a communicator of all, else its position in order."""
    processes = sorted({m.process for members in report.values() for m in members})
    for members in report.values():
        positions = {m.process: m.position for m in members if m.position >= 0}
        if len(positions) == len(set(positions.values())) == len(processes):
            return positions
    return {process: number for number, process in enumerate(processes)}


def evidence(before: Report, after: Report, ranks: Mapping[Process, int]) -> list[RankEvidence]:
    """Return what the diagnosis needs of each rank. A rank that some communicator misses counts as gone."""
    enqueued: dict[int, dict[GroupKey, int]] = {rank: {} for rank in ranks.values()}
    waits: dict[int, list[Wait]] = {rank: [] for rank in ranks.values()}
    silent: set[int] = set()
    for name, members in after.items():
        known = [m for m in members if m.process in ranks and m.count != UNKNOWN]
        key = HashedGroupKey(name, (ranks[m.process] for m in known))
        silent |= {ranks[m.process] for m in known if not m.answers}
        for member in known:
            enqueued[ranks[member.process]][key] = member.count
        for member in [] if changed(members, before.get(name, ())) else _waiting(known):
            waits[ranks[member.process]].append(
                Wait(group=key, seq=member.count, op=member.kinds or "collective")
            )
    return [
        RankEvidence(
            rank=r, state="gone" if r in silent else "running", enqueued=enqueued[r], waits=tuple(waits[r])
        )
        for r in sorted(enqueued)
    ]


def _waiting(members: Sequence[Member]) -> list[Member]:
    """Return the members that wait in a communicator in which no count changed.

    Members wait that are ahead of another one. All wait where they began equally many collectives, but of
    other kinds.
    """
    most = max((m.count for m in members), default=0)
    level = min((m.count for m in members), default=0) == most
    if level and len({m.kinds for m in members}) < 2:
        return []
    return [m for m in members if m.count == most]


def changed(members: Sequence[Member], before: Sequence[Member]) -> bool:
    """Return whether a count of a communicator changed between two reports, or nothing is known of before.

    Both hold all of its members, also those that are no ranks of the job: they change its counts as well.
    """
    counts = {m.process: (m.count, m.kinds) for m in members}
    earlier = [m for m in before if m.count != UNKNOWN]
    return not earlier or any(counts.get(m.process) != (m.count, m.kinds) for m in earlier)


# -- files -----------------------------------------------------------------------------------------------


def reports_in(folder: Path) -> list[tuple[str, str]]:
    """Return (name, content) of the files that look like reports, by name; none without a folder."""
    if not folder.is_dir():
        return []
    reports = []
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.stat().st_size <= MAX_BYTES):
        with suppress(OSError):
            data = path.read_bytes()
            if b'"communicators"' in data[:DETECT_BYTES]:
                reports.append((path.name, data.decode(errors="replace")))
    return reports


def read(texts: Sequence[tuple[str, str]]) -> tuple[list[Report], list[str]]:
    """Return the reports among texts (name, content), and one line for each that is none.

    Raises `CorruptData` where no text is a report.
    """
    reports, notes = [], []
    for name, text in texts:
        try:
            reports.append(parse(text))
        except CorruptData as error:
            notes.append(f"{name}: {error}")
    if not reports:
        raise CorruptData(notes[0] if notes else "no NCCL RAS report")
    return reports, notes


def verdict(texts: Sequence[tuple[str, str]]) -> HangAnswer:
    """Return the verdict on reports (name, content) in order of time.

    Raises `CorruptData` where no text is a report.
    """
    return answer(*read(texts))


def answer(reports: Sequence[Report], notes: Sequence[str]) -> HangAnswer:
    """Return the verdict on reports in order of time. `notes` are of texts that were none.

    The first report is compared with the last. One report alone proves nothing, so its verdict is
    "uncertain".
    """
    diagnosis = judge(reports[0], reports[-1])
    if len(reports) < 2:
        reason = "one report alone: counts that differ once are normal; give two, some seconds apart"
        diagnosis = replace(
            diagnosis, verdict="uncertain", culprits=(), victims=(), confidence=0.2, reason=reason
        )
    return diagnosis.answer(notes)
