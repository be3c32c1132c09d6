"""One chosen rank of the topology: its groups, its peers and which way data goes, what it has in flight."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pulsetrain.collectors.rank.auto.mesh import axis_of
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.text import ago, clock, duration, fold, size
from pulsetrain.dashboard.models.topology import SILENT_AFTER_NS, RankPoint

AXES = ("tp", "pp", "dp", "cp", "ep")
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "tp": "tensor parallel",
        "pp": "pipeline",
        "dp": "data parallel",
        "cp": "context parallel",
        "ep": "expert parallel",
    }
)
_EXCHANGED: Mapping[str, str] = MappingProxyType(
    {
        "tp": "partial results of layers, both ways",
        "dp": "gradients, both ways",
        "cp": "keys and values of attention, both ways",
        "ep": "tokens, both ways",
    }
)
"""what ranks that differ along an axis send each other, in either direction"""
_RANK_DIGITS = 9
_LISTED = 8  # members of an evenly spaced run that are written out
_Run = tuple[int, int, int]
"""first rank, distance, number"""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A rank with which the chosen rank exchanges data. `flow` is "in", "out" or "both", as the data goes.

    `link` is an axis of the mesh, or "transfer" for a send or recv that was seen.
    """

    rank: int
    link: str
    flow: str
    node: str = ""
    place: tuple[int, int, int] | None = None
    """tp, pp, dp"""


@dataclass(frozen=True, kw_only=True)
class PeerLine:
    """Peers of one kind as a row. `ranks` are the nearest of `in_all`."""

    relation: str
    ranks: tuple[int, ...]
    in_all: int
    data: str


@dataclass(frozen=True, kw_only=True)
class GroupLine:
    """One process group as a row. `members` says when they are not known."""

    name: str
    kind: str
    size: str
    members: str
    newest: str


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """What a rank has in flight. `sentence` says so where nothing is, or where it is not known."""

    sentence: str
    operations: tuple[str, ...] = ()


def rank_in(text: str) -> int | None:
    """The rank that an address names, None for none. Raises `UsageError`.

    >>> rank_in(" 371"), rank_in("")
    (371, None)
    """
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > _RANK_DIGITS:
        raise UsageError(f"rank = {text!r}: allowed: the number of a rank, as in 371")
    return int(text)


def members_text(runs: Iterable[Sequence[int]], count: int) -> str:
    """The members of a group, from runs of first rank, distance and number. `count` says how many there are.

    >>> members_text([(0, 8, 128)], 128), members_text([(4, 1, 4)], 4), members_text([(1, 2, 3)], 3)
    ('every 8th of 0-1016', '4-7', '1, 3, 5')
    """
    known = [(int(first), int(distance), int(number)) for first, distance, number in runs]
    missing = count - sum(number for _, _, number in known)
    parts = [_run_text(run) for run in known] + ([f"and {missing:,} more"] if missing > 0 else [])
    return ", ".join(parts) or "not known"


def _run_text(run: _Run) -> str:
    first, distance, number = run
    last = first + distance * (number - 1)
    if number == 1:
        return str(first)
    if distance == 1:
        return f"{first}-{last}"
    if number <= _LISTED:
        return ", ".join(str(first + distance * i) for i in range(number))
    return f"every {_ordinal(distance)} of {first}-{last}"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number:,}{ending}"


def kind_of(name: str, members: frozenset[int] | None, mesh: Mapping[str, frozenset[int]]) -> str:
    """What a group is for: a key of `KINDS`, "world", or "" where neither name nor members tell.

    `members` is None where there are many. `mesh` has the ranks along each axis, the chosen one included.

    >>> kind_of("mesh_tp:3", None, {}), kind_of("dp-0", None, {}), kind_of("7", frozenset({0, 8}), {})
    ('tp', 'dp', '')
    >>> kind_of("world/cpu", None, {})
    'world'
    """
    plain = re.sub(r"[:-]\d+$", "", name.removesuffix("/cpu")).removeprefix("mesh_")
    if plain == "world":
        return "world"
    if axis := axis_of(plain):
        return axis
    return next((axis for axis, ranks in mesh.items() if len(ranks) > 1 and ranks == members), "")


def group_lines(live: JsonObject, rank: int, peers: Sequence[JsonObject]) -> list[GroupLine]:
    """The groups of a rank, from the hub's row of it (see `HubClient.rank`)."""
    mesh = _along(rank, peers)
    return [_group_line(group, mesh) for group in live.get("groups", ())]


def _group_line(group: JsonObject, mesh: Mapping[str, frozenset[int]]) -> GroupLine:
    largest = max((len(ranks) for ranks in mesh.values()), default=0)
    members = _members(group["runs"]) if group["size"] <= largest else None
    kind = kind_of(group["group"], members, mesh)
    done = f"{group['enqueued']:,} begun, {group['completed']:,} complete"
    return GroupLine(
        name=group["group"],
        kind=_kind_text(kind),
        size=f"{group['size']:,}",
        members=members_text(group["runs"], group["size"]),
        newest=done if group["enqueued"] else "no collective yet",
    )


def _members(runs: Iterable[Sequence[int]]) -> frozenset[int]:
    return frozenset(first + distance * i for first, distance, number in runs for i in range(number))


def _kind_text(kind: str) -> str:
    if kind == "world":
        return "all ranks"
    return f"{kind}: {KINDS[kind]}" if kind else "not known"


def _along(rank: int, peers: Sequence[JsonObject]) -> dict[str, frozenset[int]]:
    """The ranks along each axis of the mesh that are known in full, `rank` included."""
    found: dict[str, frozenset[int]] = {}
    for axis in AXES:
        rows = [row for row in peers if row["axis"] == axis]
        if rows and len(rows) == rows[0]["peers_in_all"]:
            found[axis] = frozenset({rank, *(row["rank"] for row in rows)})
    return found


def stored_group_lines(
    spans: Sequence[JsonObject], rank: int, peers: Sequence[JsonObject]
) -> list[GroupLine]:
    """The groups in the last spans of a rank. Their members follow from the mesh, or are not known."""
    mesh = _along(rank, peers)
    newest: dict[str, int] = {}
    for row in spans:
        if row["group"]:
            newest[row["group"]] = max(newest.get(row["group"], -1), row["seq"] if row["peer"] < 0 else -1)
    lines = []
    for name, seq in sorted(newest.items()):
        kind = kind_of(name, None, mesh)
        ranks = mesh.get(kind, frozenset())
        lines.append(
            GroupLine(
                name=name,
                kind=_kind_text(kind),
                size=f"{len(ranks):,}" if ranks else "not known",
                members=f"{fold(ranks)} by the mesh" if ranks else "not known",
                newest=f"seq {seq:,}" if seq >= 0 else "sends and receives",
            )
        )
    return lines


def mesh_peers(me: RankPoint, rows: Sequence[JsonObject]) -> list[Peer]:
    """Peers by the mesh: neighbours in the pipeline, and all ranks along the other axes."""
    found: list[Peer] = []
    for row in rows:
        axis, place = row["axis"], (row["tp"], row["pp"], row["dp"])
        flow = _pipeline_flow(row["pp"] - me.pp) if axis == "pp" else "both"
        if flow:
            found.append(Peer(rank=row["rank"], link=axis, flow=flow, node=row["node"], place=place))
    return found


def _pipeline_flow(stages: int) -> str:
    """Which way activations go between the chosen rank and one so many stages further on."""
    return {-1: "in", 1: "out"}.get(stages, "")


def seen_transfers(spans: Sequence[JsonObject], known: Iterable[Peer], live: JsonObject) -> list[Peer]:
    """Ranks to which the chosen one was seen to send, or from which it received, in spans and in flight."""
    seen = {(int(row["peer"]), str(row["phase"])) for row in spans if row["peer"] >= 0}
    seen |= {(int(g["peer"]), str(g["op"])) for g in live.get("groups", ()) if g["op"] and g["peer"] >= 0}
    places = {peer.rank: peer for peer in known}
    found = []
    for rank, phase in sorted(seen):
        if flow := {"send": "out", "recv": "in"}.get(phase, ""):
            at = places.get(rank)
            node, place = (at.node, at.place) if at else ("", None)
            found.append(Peer(rank=rank, link="transfer", flow=flow, node=node, place=place))
    return found


def peer_lines(me: RankPoint, rows: Sequence[JsonObject], peers: Sequence[Peer]) -> list[PeerLine]:
    """Peers as rows: the pipeline first, then transfers that were seen, then the other axes."""
    lines = _pipeline_lines(me, rows, peers)
    for flow, relation in (("in", "received from"), ("out", "sent to")):
        ranks = tuple(p.rank for p in peers if p.link == "transfer" and p.flow == flow)
        if ranks:
            way = "from it" if flow == "in" else "to it"
            lines.append(PeerLine(relation=f"{relation} (seen)", ranks=ranks, in_all=len(ranks), data=way))
    for axis in AXES:
        ranks = tuple(sorted(p.rank for p in peers if p.link == axis))
        if axis != "pp" and ranks:
            in_all = max(row["peers_in_all"] for row in rows if row["axis"] == axis)
            lines.append(PeerLine(relation=KINDS[axis], ranks=ranks, in_all=in_all, data=_EXCHANGED[axis]))
    return lines


def _pipeline_lines(me: RankPoint, rows: Sequence[JsonObject], peers: Sequence[Peer]) -> list[PeerLine]:
    stages = [row["pp"] for row in rows if row["axis"] == "pp"]
    if not stages:
        return []
    first, last = me.pp == 0, max(stages) < me.pp
    return [
        _stage_line("previous stage", "in", peers, "it is the first" if first else "not known"),
        _stage_line("next stage", "out", peers, "it is the last" if last else "not known"),
    ]


def _stage_line(relation: str, flow: str, peers: Sequence[Peer], missing: str) -> PeerLine:
    ranks = tuple(p.rank for p in peers if p.link == "pp" and p.flow == flow)
    there, back = ("from", "to") if flow == "in" else ("to", "from")
    data = f"activations {there} it, gradients {back} it" if ranks else missing
    return PeerLine(relation=relation, ranks=ranks, in_all=len(ranks), data=data)


def in_flight(live: JsonObject, now_ns: int, silent_ns: int = SILENT_AFTER_NS) -> InFlight:
    """The oldest operation in flight of each group of a rank, from the hub's row of it, oldest first.

    What a node without a heartbeat in `silent_ns` had in flight does not go on.
    """
    if not live.get("heard_ns"):
        node = live.get("node", "")
        return InFlight(sentence=f"Not known: no heartbeat of {node} has come in this attempt.")
    heard_ns = int(live["heard_ns"])
    silent = now_ns - heard_ns > silent_ns
    until_ns = heard_ns if silent else max(now_ns, heard_ns)
    when = f" when {live['node']} was heard last, {ago(heard_ns, now_ns)}" if silent else ""
    busy = sorted((g for g in live["groups"] if g["op"]), key=lambda g: (g["op_since_ns"], g["group"]))
    if not live["groups"]:
        return InFlight(sentence="Not known: the rank has told of no process group.")
    if not busy:
        return InFlight(
            sentence=f"No operation was in flight{when}." if silent else "No operation is in flight."
        )
    verb = "were" if silent else "are"
    first = f"{_operation(busy[0], until_ns)}{when}"
    more = f" {len(busy)} operations {verb} in flight." if len(busy) > 1 else ""
    return InFlight(
        sentence=f"{first}.{more}", operations=tuple(_operation(group, until_ns) for group in busy[1:])
    )


def _operation(group: JsonObject, now_ns: int) -> str:
    """An operation in flight in words."""
    peer = group["peer"]
    towards = f" {'to' if group['op'] == 'send' else 'from'} rank {peer}" if peer >= 0 else ""
    end = f", torch ends it after {duration(group['timeout_s'] * 10**9)}" if group["timeout_s"] else ""
    since_ns = group["op_since_ns"]
    lasts = duration(max(0, now_ns - since_ns))
    return (
        f"{group['op']}{towards} in group {group['group']}, seq {group['op_seq']:,}, "
        f"{size(group['op_bytes'])}, for {lasts}, since {clock(since_ns)} UTC{end}"
    )


def stored_in_flight(spans: Sequence[JsonObject]) -> InFlight:
    """What had not ended when a rank that no hub watches was recorded last."""
    open_ = [row for row in spans if row["open"] and row["category"] == "communication"]
    if not spans:
        return InFlight(sentence="Not known: no span of its last steps is on record.")
    if not open_:
        return InFlight(sentence="Every operation on record had ended.")
    said = [_stored_operation(row) for row in sorted(open_, key=lambda row: (row["start_ns"], row["group"]))]
    return InFlight(sentence=f"Not ended when it was recorded last: {said[0]}.", operations=tuple(said[1:]))


def _stored_operation(row: JsonObject) -> str:
    towards = f" with rank {row['peer']}" if row["peer"] >= 0 else ""
    return (
        f"{row['phase']}{towards} in group {row['group'] or '(no name)'}, seq {row['seq']:,}, "
        f"{size(row['bytes'])}, for at least {duration(row['duration_ns'])}, "
        f"since {clock(row['start_ns'])} UTC"
    )


def last_lines(
    own: Sequence[JsonObject], of_node: Sequence[JsonObject], *, most: int = 8
) -> list[JsonObject]:
    """The newest error lines of a rank and of its node, each once, newest first."""
    found = {(row["ts_ns"], row["rank"], row["source"], row["message"]): row for row in [*own, *of_node]}
    return sorted(found.values(), key=lambda row: -int(row["ts_ns"]))[:most]
