"""Which spans of a trace belong together: a send and its receive, and the members of a collective.

Chrome's JSON trace format calls them flow events ("Flow Events" in the document that `trace_export` names). A
flow begins in one span (`s`), passes through others (`t`) and ends in one (`f` with `bp: e`). Viewers draw an
arrow from each to the next, and drop a flow that goes back in time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypedDict

TraceEvent = Mapping[str, object]
TRANSFERS = ("send", "recv")


class FlowRow(TypedDict):
    """What a row of `views.spans` says about communication. `peer` and `seq` are -1 for none."""

    attempt: int
    rank: int
    phase: str
    category: str
    lane: str
    group: str
    seq: int
    peer: int
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Spans that hang together, and a moment in each, UTC ns, in order of time."""

    name: str
    rows: tuple[FlowRow, ...]
    at_ns: tuple[int, ...]

    @property
    def goes_forward(self) -> bool:
        """Whether no moment is before the one that it follows. Clocks of nodes that disagree can do that."""
        return all(one <= other for one, other in pairwise(self.at_ns))


def flows(rows: Iterable[FlowRow]) -> list[Flow]:
    """The flows of spans in any order, by their first moment.

    A send leads from its start to the end of the receive with the same attempt, group and `seq`, where each
    names the other's rank. A collective leads through the starts of its members in the order in which they
    arrived. Of a span that occurs twice the first counts. A span without its other side has no flow.
    """
    known = sorted(rows, key=_order)
    found = [*_transfers(known), *_collectives(known)]
    return sorted(found, key=lambda flow: (flow.at_ns[0], flow.name, [_order(row) for row in flow.rows]))


def _order(row: FlowRow) -> tuple[int, int, str, int]:
    return (row["start_ns"], row["rank"], row["lane"], row["seq"])


def _transfers(rows: Sequence[FlowRow]) -> Iterator[Flow]:
    numbered = [row for row in rows if row["peer"] >= 0 and row["seq"] >= 0 and row["group"]]
    sends = _first(numbered, "send", lambda row: (row["rank"], row["peer"]))
    receives = _first(numbered, "recv", lambda row: (row["peer"], row["rank"]))
    for key, sent in sends.items():
        if key in receives:
            received = receives[key]
            # the last nanosecond, because a viewer looks for the span around the moment
            ends_ns = received["start_ns"] + max(0, received["duration_ns"] - 1)
            yield Flow(name="send", rows=(sent, received), at_ns=(sent["start_ns"], ends_ns))


def _first(
    rows: Sequence[FlowRow], phase: str, ends: Callable[[FlowRow], tuple[int, int]]
) -> dict[Hashable, FlowRow]:
    """The first row of each transfer of a phase, by its attempt, group, number and who gave to whom."""
    found: dict[Hashable, FlowRow] = {}
    for row in rows:
        if row["phase"] == phase:
            found.setdefault((row["attempt"], row["group"], row["seq"], *ends(row)), row)
    return found


def _collectives(rows: Sequence[FlowRow]) -> Iterator[Flow]:
    members: defaultdict[Hashable, dict[int, FlowRow]] = defaultdict(dict)
    for row in rows:
        is_collective = row["category"] == "communication" and row["peer"] < 0
        if is_collective and row["seq"] >= 0 and row["group"] and row["phase"] not in TRANSFERS:
            members[row["attempt"], row["group"], row["seq"], row["phase"]].setdefault(row["rank"], row)
    for found in members.values():
        if len(found) > 1:
            arrived = tuple(found.values())
            yield Flow(name=arrived[0]["phase"], rows=arrived, at_ns=tuple(r["start_ns"] for r in arrived))


def flow_events(
    found: Sequence[Flow], origin_ns: int, thread: Callable[[FlowRow], int]
) -> Iterator[TraceEvent]:
    """The flows as trace events. Those that go back in time are left out. `thread` is a row's `tid`."""
    for number, flow in enumerate(flow for flow in found if flow.goes_forward):
        last = len(flow.rows) - 1
        for place, (row, at_ns) in enumerate(zip(flow.rows, flow.at_ns, strict=True)):
            event: dict[str, object] = {
                "ph": "s" if place == 0 else "f" if place == last else "t",
                "id": number,
                "name": flow.name,
                "cat": "flow",
                "pid": row["rank"],
                "tid": thread(row),
                "ts": (at_ns - origin_ns) / 1e3,
            }
            yield event | {"bp": "e"} if place == last else event
