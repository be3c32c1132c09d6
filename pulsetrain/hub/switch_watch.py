"""Findings on switches whose nodes are lost, crash, slow down or lose traffic together.

Once a second it collects which nodes of each job were hit in the last two minutes, or are still in trouble,
by kind of trouble. `analytics.incidents.shared_switch` says whether they share a switch. The finding informs,
and mutes the alerts of the nodes. It evicts nobody: the ladder of ByteRobust (arXiv 2509.16293, section 4)
goes on for each node. Where nodes are slow or their traffic suffers, several of them at once stand for the
second alert of that ladder, so their links are measured at the next stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from pulsetrain.analytics.crash import suspicion
from pulsetrain.analytics.incidents import shared_switch
from pulsetrain.analytics.incidents.locations import SWITCH, Topology, location_of_finding
from pulsetrain.analytics.incidents.shared_switch import JobNodes, SharedSwitch
from pulsetrain.analytics.verdict import Finding, Severity
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.hub.finding_dedup import FindingDedup
from pulsetrain.hub.live_watch import FindingSink, Watched
from pulsetrain.recovery.link_suspicion import ALERTS, SWITCH_FAULT
from pulsetrain.recovery.nodes import GONE, NodeState
from pulsetrain.recovery.snapshot import JobSnapshot
from pulsetrain.recovery.transitions import TERMINAL

SOURCE = "switches"
PERIOD_S = 1.0
SHARE = 20  # looking may use a twentieth of the time
WINDOW_S = 120.0
"""Trouble that began longer ago, and has ended, is another incident."""
TOGETHER_NS = 2_000_000_000
PATH = " to "  # in the subject of a link between two good ports
NO_ATTEMPT = -1
"""of findings about a machine rather than about an attempt"""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One kind of trouble that nodes have alike. `words` follow "3 of the 8 nodes under switch s3".

    `kinds` are those of findings that say so. `of_ranks`: only nodes that train can have it.
    """

    words: str
    severity: Severity
    kinds: frozenset[str] = frozenset()
    of_ranks: bool = False
    suspects_links: bool = False


TROUBLES: Mapping[str, Trouble] = MappingProxyType(
    {
        "lost": Trouble(words="are lost", severity="critical"),
        "crashed": Trouble(words="have ranks that crashed together", severity="critical", of_ranks=True),
        "slow": Trouble(
            words="are slow",
            severity="warning",
            kinds=frozenset({"fail_slow", "straggler"}),
            of_ranks=True,
            suspects_links=True,
        ),
        "traffic": Trouble(
            words="have trouble with their network",
            severity="warning",
            kinds=ALERTS | {"bad_link"},
            suspects_links=True,
        ),
    }
)


class FoundFindings(Protocol):
    """What was found, as far as a switch can be behind it."""

    def all_open(self) -> list[Finding]:
        """Every finding of any job that is still there."""
        ...


@dataclass
class _Hits:
    """When a node of a job was last seen in trouble, by trouble, node and job. Lost nodes count once."""

    seen_s: dict[tuple[str, str, str], float] = field(default_factory=dict)
    lost: dict[str, set[str]] = field(default_factory=dict)

    def note(self, trouble: str, job: str, nodes: Iterable[str], now_s: float) -> None:
        self.seen_s.update({(trouble, job, node): now_s for node in nodes})

    def forget(self, before_s: float) -> None:
        self.seen_s = {key: at_s for key, at_s in self.seen_s.items() if at_s >= before_s}

    def of(self, trouble: str) -> dict[str, frozenset[str]]:
        """The nodes that were hit, by job."""
        found: dict[str, set[str]] = {}
        for kind, job, node in self.seen_s:
            if kind == trouble:
                found.setdefault(job, set()).add(node)
        return {job: frozenset(nodes) for job, nodes in found.items()}


class SwitchWatch:
    """Looks at the nodes of all jobs together, because a switch does not know which job is on its nodes."""

    def __init__(
        self, jobs: Mapping[str, Watched], found: FoundFindings, sink: FindingSink, clock: Clock
    ) -> None:
        self._jobs, self._found, self._sink, self._clock = jobs, found, sink, clock
        self._hits = _Hits()
        self._dedup: dict[str, FindingDedup] = {}

    async def turn(self) -> float:
        """Look at every job."""
        began_s = self._clock.monotonic_s()
        self.look()
        return max(PERIOD_S, (SHARE - 1) * (self._clock.monotonic_s() - began_s))

    def look(self) -> None:
        """Look at every job."""
        now_s, failures, jobs = self._clock.monotonic_s(), FailureCollector(), dict[str, JobSnapshot]()
        for name, job in list(self._jobs.items()):
            with failures.collect(f"job {name}"):
                snapshot = job.snapshot()
                if snapshot.phase not in TERMINAL:
                    jobs[name] = snapshot
                    self._note_nodes(name, snapshot, now_s)
        self._note_findings(jobs, now_s)
        self._hits.forget(now_s - WINDOW_S)
        suspects = self._suspects(jobs)
        for name, snapshot in jobs.items():
            with failures.collect(f"job {name}"):
                self._report(snapshot, [_finding(snapshot, s, t) for s, t in suspects if name in s.hit])
        failures.raise_any()

    def forget(self, job: str) -> None:
        """A job is not kept any longer."""
        self._dedup.pop(job, None)
        self._hits.lost.pop(job, None)

    def _note_nodes(self, name: str, job: JobSnapshot, now_s: float) -> None:
        lost = {node.name for node in job.nodes if node.state is NodeState.LOST}
        begun = lost - self._hits.lost.get(name, set())
        self._hits.lost[name] = lost
        self._hits.note("lost", name, begun, now_s)
        self._hits.note("crashed", name, crashed(job), now_s)

    def _note_findings(self, jobs: Mapping[str, JobSnapshot], now_s: float) -> None:
        for finding in self._found.all_open():
            job = jobs.get(finding.job)
            if job is not None and finding.attempt in (NO_ATTEMPT, job.attempt):
                for trouble, about in TROUBLES.items():
                    if finding.kind in about.kinds:
                        self._hits.note(trouble, finding.job, _nodes(finding, job), now_s)

    def _suspects(self, jobs: Mapping[str, JobSnapshot]) -> list[tuple[SharedSwitch, str]]:
        """Each suspected switch with the kind of trouble."""
        found = []
        for trouble in TROUBLES:
            hit = self._hits.of(trouble)
            concerned = sorted(hit.keys() & jobs.keys())
            nodes = {name: _could_be_hit(jobs[name], hit[name], TROUBLES[trouble]) for name in concerned}
            switch = shared_switch.find(nodes)
            if switch is not None:
                found.append((switch, trouble))
        return found

    def _report(self, job: JobSnapshot, seen: Sequence[Finding]) -> None:
        dedup = self._dedup.get(job.job)
        if dedup is None and not seen:
            return
        if dedup is None:
            dedup = self._dedup[job.job] = FindingDedup(patience=1)
        new = dedup.look(_worst(seen))
        self._sink.report(job.job, SOURCE, new, dedup.current())


def _could_be_hit(job: JobSnapshot, hit: frozenset[str], trouble: Trouble) -> JobNodes:
    """The nodes of a job with their switches: only those that train, where the trouble is one of ranks."""
    world = {member.node for member in job.world}
    there = {n.name for n in job.nodes if n.state not in GONE and (n.name in world or not trouble.of_ranks)}
    there |= hit
    return JobNodes(switch_of={n.name: n.hello.switch for n in job.nodes if n.name in there}, hit=hit)


def crashed(job: JobSnapshot) -> set[str]:
    """The nodes whose ranks ended first, by themselves, and blame no peer."""
    failed = sorted((e for e in job.exits if e.code != 0 and suspicion(e) >= 2), key=lambda e: e.ts_ns)
    return {e.node for e in failed if e.ts_ns - failed[0].ts_ns <= TOGETHER_NS}


def _nodes(finding: Finding, job: JobSnapshot) -> Iterator[str]:
    """The node of a finding on a node, rank, port or GPU. A group and a whole job have none."""
    node_of = {}
    if finding.subject_type == "rank" and finding.subject.isdecimal():
        node_of = {(job.job, int(finding.subject)): job.node_of(int(finding.subject))}
    node = location_of_finding(finding, Topology(node_of=node_of)).node
    if node and PATH not in finding.subject:
        yield node


def _worst(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each switch: a switch is one subject, whatever its nodes suffer from."""
    found: dict[str, Finding] = {}
    for finding in findings:
        found.setdefault(finding.subject, finding)  # the worst trouble comes first
    return list(found.values())


def _finding(job: JobSnapshot, suspect: SharedSwitch, trouble: str) -> Finding:
    about = TROUBLES[trouble]
    mine = suspect.hit[job.job]
    there = f"{suspect.count} of the {suspect.under} nodes under switch {suspect.switch}"
    rest = f"{suspect.elsewhere or 'none'} under {suspect.others} other{'s' * (suspect.others != 1)}"
    return Finding(
        ts_ns=job.now_ns,
        job=job.job,
        attempt=NO_ATTEMPT,
        kind=SWITCH_FAULT,
        subject_type="link",
        subject=f"{SWITCH}{suspect.switch}",
        severity=about.severity,
        confidence=confidence(suspect.chance),
        summary=f"{there} {about.words}, and {rest}: the switch itself is suspected",
        evidence={
            "query": "nodes, exits, findings",
            "trouble": trouble,
            "nodes": list(mine),
            "jobs": {name: list(nodes) for name, nodes in suspect.hit.items()},
            "under": suspect.under,
            "elsewhere": suspect.elsewhere,
            "chance": round(suspect.chance, 6),
            "suspects_links": about.suspects_links,
            "victims": [f"node {node}" for node in mine],
        },
    )


def confidence(chance: float) -> float:
    """How sure a switch is at fault whose nodes would be hit together with this chance. Nobody counted it.

    >>> confidence(0.0), confidence(0.05)
    (0.9, 0.6)
    """
    return round(0.9 - 0.3 * min(1.0, chance / shared_switch.ALPHA), 3)
