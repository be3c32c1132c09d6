"""Which findings suspect the links of which nodes. Pure.

After the ladder of ByteRobust (arXiv 2509.16293, section 4). These suspect links at once: a slow group of
ranks, a hang without a culprit, and several nodes of one switch that are slow or whose traffic suffers. A
network alert waits for a second one of the same node within five minutes, or until it has lasted that long
itself. Exceptions of the user's own code suspect no link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.protocol.messages import WorldNode
from pulsetrain.recovery.faults import Observation
from pulsetrain.recovery.link_checks import LinkReport
from pulsetrain.recovery.world import node_of

ALERTS = frozenset(
    {
        "traffic_drop",
        "traffic_stop",
        "traffic_fluctuation",
        "congestion",
        "link_errors",
        "link_flap",
        "port_down",
    }
)
"""Kinds of findings that come from the counters of ports."""
SWITCH_FAULT = "switch_fault"
SECOND_WITHIN_S = 300.0
KEPT_S = 3600.0
MOST_UNDECIDED = 2  # rounds that tell nothing, which cost their time at each stop
"""after which a suspicion that nobody could check is given up"""

_Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Links in doubt. No `nodes`: those of all nodes. `since_s` is on the hub's monotonic clock."""

    kind: str
    nodes: tuple[str, ...]
    reason: str
    since_s: float


@dataclass(frozen=True, kw_only=True)
class LinkOutcome:
    """The last rounds over links of a job, and when they were."""

    report: LinkReport
    at_ns: int
    actor: str


class LinkSuspicions:
    """What is suspected of the links of one job, and what the last rounds over them said."""

    def __init__(self) -> None:
        self.outcome: LinkOutcome | None = None
        self.under_way = False
        self._open: dict[_Key, Suspicion] = {}
        self._present: dict[_Key, float] = {}
        self._checked: set[_Key] = set()
        self._alerts: dict[str, deque[float]] = {}
        self._undecided = 0

    def take(
        self, findings: Iterable[Observation], world: Sequence[WorldNode], now_s: float
    ) -> list[Suspicion]:
        """Take the findings that are open now, of all kinds. Returns the suspicions that begin."""
        seen = {_key(f): f for f in findings if _suspects(f)}
        self._present = {key: self._present.get(key, now_s) for key in seen}
        self._checked &= seen.keys()
        begun = [
            self._begin(key, finding, world, now_s)
            for key, finding in seen.items()
            if key not in self._open and key not in self._checked and self._enough(key, finding, now_s)
        ]
        self._open = {k: s for k, s in self._open.items() if now_s - s.since_s < KEPT_S}
        return begun

    def open(self) -> list[Suspicion]:
        """Suspicions that no rounds have looked into."""
        return list(self._open.values())

    def checked(self) -> None:
        """Rounds have looked into all of them. One whose finding goes on suspects nothing anew."""
        self._checked |= self._open.keys() | self._present.keys()
        self._open.clear()
        self._undecided = 0

    def undecided(self) -> None:
        """Rounds could not tell. The suspicions stay for the next stop, `MOST_UNDECIDED` times at most."""
        self._undecided += 1
        if self._undecided >= MOST_UNDECIDED:
            self.checked()

    def _begin(self, key: _Key, finding: Observation, world: Sequence[WorldNode], now_s: float) -> Suspicion:
        suspicion = Suspicion(
            kind=finding.kind, nodes=_nodes(finding, world), reason=finding.summary, since_s=now_s
        )
        self._open[key] = suspicion
        return suspicion

    def _enough(self, key: _Key, finding: Observation, now_s: float) -> bool:
        """Whether a finding suspects links now. An alert of a port waits for a second one."""
        if finding.kind not in ALERTS:
            return True
        since_s = self._present[key]
        times = self._alerts.setdefault(str(finding.evidence.get("node", "")), deque(maxlen=16))
        if since_s == now_s:
            times.append(now_s)
        recent = sum(now_s - at_s <= SECOND_WITHIN_S for at_s in times)
        return recent > 1 or now_s - since_s >= SECOND_WITHIN_S


def concerned(suspicions: Sequence[Suspicion], names: Iterable[str]) -> set[str]:
    """The nodes whose links are in doubt, of all that have a name in `names`."""
    known = set(names)
    if any(not suspicion.nodes for suspicion in suspicions):
        return known
    return known & {node for suspicion in suspicions for node in suspicion.nodes}


def _suspects(finding: Observation) -> bool:
    """Whether a finding is about links: a slow group, an alert of a port, a hang that names no rank, or nodes
    of one switch that are slow or whose traffic suffers."""
    if finding.kind == "hang":
        return finding.subject_type != "rank" and not finding.evidence.get("culprits")
    if finding.kind == SWITCH_FAULT:
        return bool(finding.evidence.get("suspects_links"))
    if finding.kind == "traffic_stop" and finding.subject_type == "job":
        return False  # the job may pause
    return finding.kind == "slow_link" or finding.kind in ALERTS


def _key(finding: Observation) -> _Key:
    return (finding.kind, finding.subject_type, finding.subject)


def _nodes(finding: Observation, world: Sequence[WorldNode]) -> tuple[str, ...]:
    """The nodes that a finding is about, () for all of them."""
    evidence: Mapping[str, object] = finding.evidence
    node, nodes, ranks = evidence.get("node"), evidence.get("nodes"), evidence.get("ranks")
    if node or finding.subject_type == "node":
        return (str(node or finding.subject),)
    if finding.subject_type == "rank":
        ranks = [int(finding.subject)]
    if isinstance(nodes, list | tuple) and nodes:
        return tuple(sorted(map(str, nodes)))
    if isinstance(ranks, list | tuple):
        of_ranks = {node_of(world, rank) for rank in ranks if isinstance(rank, int)}
        return tuple(sorted(of_ranks - {""}))
    return ()
