"""Which ranks of which communicator lag, by what NCCL RAS counts, and whose ranks they are.

A process of a report has a host and a process id. Which global rank it is follows from the process ids that
the agents know. In the communicator of all ranks the rank is the global one. Where it is missing, a host is
the node that has all of its process ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from pulsetrain.analytics.hangs.ras import UNKNOWN, Member, Process, Report, changed, judge
from pulsetrain.analytics.hangs.sinks import HangVerdict
from pulsetrain.analytics.selection import ranges
from pulsetrain.core.errors import CorruptData
from pulsetrain.core.json import JsonObject

MOST_COMMUNICATORS = 16  # that are told of
MOST_COUNTS = 8  # of one communicator: the largest one and the smallest ones
MOST_SENTENCES = 3
_SHORT = 18  # characters of a communicator's hash that a sentence shows


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """The process of a global rank. `address` is that of its node."""

    rank: int
    pid: int
    node: str
    address: str


RasState = Literal["lagging", "even", "moving", "unknown"]


class Count(TypedDict):
    """How many collectives some ranks of a communicator began."""

    ranks: str
    collectives: int


class Lag(TypedDict):
    """A communicator in which no count changed and whose members stand apart.

    `behind` are the ranks that began fewer collectives than `ahead`, `silent` those that do not answer. All
    are rank ranges. `counts` has each count, the largest first.
    """

    communicator: str
    size: int
    ahead: str
    behind: str
    silent: str
    counts: list[Count]
    sentence: str


class RasAccount(TypedDict):
    """What two reports say together, as evidence of a hang.

    `state` is "lagging" where ranks lag, do not answer or began other collectives than their peers, "even"
    where members of every communicator that stands still began the same, "moving" where all communicators
    are at work, and "unknown" where nothing can be said. The others are as `pulsetrain hang` prints them.
    """

    state: RasState
    sentence: str
    verdict: HangVerdict
    culprits: list[int]
    confidence: float
    communicators: list[Lag]


def unknown(why: str) -> RasAccount:
    """Return the account of what could not be asked or understood."""
    return {
        "state": "unknown",
        "sentence": why,
        "verdict": "uncertain",
        "culprits": [],
        "confidence": 0.0,
        "communicators": [],
    }


def account(before: Report, after: Report, processes: Sequence[RankProcess]) -> RasAccount:
    """Return what two reports, some seconds apart, say of the ranks of a job."""
    ranks = global_ranks(after, processes)
    if not ranks:
        return unknown("NCCL RAS speaks of another job: none of its processes is a rank of this one")
    still = [name for name, members in after.items() if not changed(members, before.get(name, ()))]
    diagnosis, apart = judge(before, after, ranks), lags(before, after, ranks)
    if apart or diagnosis.verdict in ("rank", "desync", "network"):
        state: RasState = "lagging"
        told = [lag["sentence"] for lag in apart[:MOST_SENTENCES]] or [diagnosis.reason]
        more = len(apart) - MOST_SENTENCES
        text = "; ".join(told) + (f"; and {more} communicators more" if more > 0 else "")
    elif still:
        state, text = "even", "in every communicator that stands still all ranks began the same collectives"
    else:
        state, text = "moving", "ranks began collectives in every communicator meanwhile"
    return {
        "state": state,
        "sentence": f"NCCL RAS: {text}",
        "verdict": diagnosis.verdict,
        "culprits": list(diagnosis.culprits),
        "confidence": round(diagnosis.confidence, 3),
        "communicators": apart,
    }


def global_ranks(report: Report, processes: Sequence[RankProcess]) -> dict[Process, int]:
    """Return the global rank of each process of the report that is one of `processes`.

    Empty where the report is of another job.

    >>> member = Member(process=("10.0.0.1", 7), count=3, answers=True, position=0)
    >>> global_ranks({"0x1": (member,)}, [RankProcess(rank=4, pid=7, node="a", address="10.0.0.1")])
    {('10.0.0.1', 7): 4}
    """
    by_rank = {p.rank: p.pid for p in processes}
    for members in report.values():
        if len(members) == len(by_rank) and _is_world(members, by_rank):
            return {m.process: m.position for m in members}
    return _by_node(report, processes)


def _is_world(members: Sequence[Member], by_rank: Mapping[int, int]) -> bool:
    """Return whether the positions are the global ranks: all known process ids are those of these ranks."""
    if {m.position for m in members} != by_rank.keys():
        return False
    known = [m for m in members if m.process[1] >= 0]
    return bool(known) and all(by_rank[m.position] == m.process[1] for m in known)


def _by_node(report: Report, processes: Sequence[RankProcess]) -> dict[Process, int]:
    nodes: dict[str, dict[int, int]] = {}
    addresses: dict[str, set[str]] = {}
    for p in processes:
        nodes.setdefault(p.node, {})[p.pid] = p.rank
        addresses.setdefault(p.address, set()).add(p.node)
    hosts: dict[str, set[int]] = {}
    for host, pid in {m.process for members in report.values() for m in members}:
        if pid >= 0:
            hosts.setdefault(host, set()).add(pid)
    ranks: dict[Process, int] = {}
    for host, pids in hosts.items():
        fitting = {node for node, known in nodes.items() if pids <= known.keys()}
        chosen = fitting & addresses.get(host, set()) if len(fitting) > 1 else fitting
        if len(chosen) == 1:
            known = nodes[chosen.pop()]
            ranks |= {(host, pid): known[pid] for pid in pids}
    return ranks


def lags(before: Report, after: Report, ranks: Mapping[Process, int]) -> list[Lag]:
    """Return the communicators whose members stand apart and stood so before, those with most ranks first.

    A communicator in which any count changed is at work and is left out. So are members whose rank or count
    is not known.
    """
    found = []
    for name, members in after.items():
        known = [m for m in members if m.process in ranks and m.count != UNKNOWN]
        if not changed(members, before.get(name, ())):
            lag = _lag(name, len(members), known, ranks)
            if lag is not None:
                found.append(lag)
    return sorted(found, key=lambda lag: (-lag["size"], lag["communicator"]))[:MOST_COMMUNICATORS]


def _lag(name: str, size: int, members: Sequence[Member], ranks: Mapping[Process, int]) -> Lag | None:
    counted: dict[int, list[int]] = {}
    for member in members:
        if member.answers:
            counted.setdefault(member.count, []).append(ranks[member.process])
    silent = sorted(ranks[m.process] for m in members if not m.answers)
    if not silent and len(counted) < 2:
        return None
    counts = sorted(counted.items(), reverse=True)
    behind = sorted(rank for _, who in counts[1:] for rank in who)
    lag: Lag = {
        "communicator": name,
        "size": size,
        "ahead": ranges(counts[0][1]) if counts else "",
        "behind": ranges(behind),
        "silent": ranges(silent),
        "counts": [{"ranks": ranges(who), "collectives": count} for count, who in _ends(counts, MOST_COUNTS)],
        "sentence": "",
    }
    return {**lag, "sentence": sentence(lag)}


def _ends(counts: Sequence[tuple[int, list[int]]], most: int) -> Sequence[tuple[int, list[int]]]:
    """Return the first one and as many of the last ones as `most` allows."""
    return counts if len(counts) <= most else [counts[0], *counts[1 - most :]]


def sentence(lag: Lag) -> str:
    """Return one line about a communicator.

    >>> counts = [Count(ranks="0-6", collectives=42), Count(ranks="7", collectives=41)]
    >>> sentence(Lag(communicator="0x1", size=8, ahead="0-6", behind="7", silent="", counts=counts,
    ...              sentence=""))
    'communicator 0x1 of 8 ranks: 7 began 41 collectives, 0-6 began 42'
    """
    parts = [f"{c['ranks']} began {c['collectives']}" for c in reversed(lag["counts"])]
    if parts:
        parts[0] += " collectives"
    if lag["silent"]:
        parts.insert(0, f"{lag['silent']} does not answer")
    return f"communicator {_short(lag['communicator'])} of {lag['size']} ranks: {', '.join(parts)}"


def _short(name: str) -> str:
    return name.partition("/")[0][:_SHORT]


# -- from agent to hub -----------------------------------------------------------------------------------


def pack(report: Report) -> JsonObject:
    """Return the report as small JSON: each process and each list of kinds once."""
    processes: dict[Process, int] = {}
    kinds: dict[str, int] = {}
    communicators = [
        [
            name,
            [
                [
                    processes.setdefault(m.process, len(processes)),
                    m.position,
                    m.count,
                    int(m.answers),
                    kinds.setdefault(m.kinds, len(kinds)),
                ]
                for m in members
            ],
        ]
        for name, members in report.items()
    ]
    return {
        "processes": [list(p) for p in processes],
        "kinds": list(kinds),
        "communicators": communicators,
    }


def unpack(packed: JsonObject) -> Report:
    """Return the report in what `pack` made. Raises `CorruptData` for anything else."""
    try:
        processes = [(str(host), int(pid)) for host, pid in packed["processes"]]
        kinds = [str(kind) for kind in packed["kinds"]]
        return {str(name): tuple(_members(rows, processes, kinds)) for name, rows in packed["communicators"]}
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptData(f"not a packed NCCL RAS report: {type(error).__name__}") from error


def _members(
    rows: Iterable[Sequence[int]], processes: Sequence[Process], kinds: Sequence[str]
) -> list[Member]:
    return [
        Member(
            process=processes[process],
            position=int(position),
            count=int(count),
            answers=bool(answers),
            kinds=kinds[kind],
        )
        for process, position, count, answers, kind in rows
    ]
