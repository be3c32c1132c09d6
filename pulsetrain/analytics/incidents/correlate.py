"""Findings joined over time and location into incidents: root, victims, hypotheses, timeline and action."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TypedDict

from pulsetrain.analytics.incidents import causality
from pulsetrain.analytics.incidents.causality import Symptom, cause_of, symptom_of
from pulsetrain.analytics.incidents.locations import SCOPES, Location, Topology, location_of_finding
from pulsetrain.analytics.verdict import Severity
from pulsetrain.records.findings import Finding

SECOND_NS = 1_000_000_000
WINDOW_NS = 120 * SECOND_NS  # findings of one job that lie further apart are different incidents
MAX_HYPOTHESES = 5
MAX_WEIGHED = 64  # suspects weighed against each other; in a storm of ranks more of them add nothing
_SEVERITY_ORDER = {"critical": 2, "warning": 1, "info": 0}


class Hypothesis(TypedDict):
    """One possible root, as "type subject", with the kinds and summaries of its findings."""

    root: str
    kinds: list[str]
    confidence: float
    because: list[str]


class TimelineEntry(TypedDict):
    """One finding of an incident."""

    ts: str
    ts_ns: int
    kind: str
    subject: str
    severity: Severity
    confidence: float
    summary: str


class Incident(TypedDict):
    """Findings that belong together.

    `root` and `victims` are "type subject". `state` is "open" while one of its findings is open and until
    nothing was seen for two minutes, then "over". The confidences of `hypotheses` sum to 1, and the last one
    is "something else".
    """

    id: str
    job: str
    attempt: int
    state: str
    severity: Severity
    since: str
    since_ns: int
    root: str
    victims: list[str]
    summary: str
    hypotheses: list[Hypothesis]
    timeline: list[TimelineEntry]
    suggested_action: str


def join(
    findings: Iterable[Finding],
    topology: Topology | None = None,
    *,
    now_ns: int = 0,
    still_open: Iterable[Finding] = (),
) -> list[Incident]:
    """Join findings into incidents, the newest first. Their order does not matter, and copies count once.

    A finding is recorded once, when it begins. `still_open` are those that have not ended.

    Findings belong together when they are of one job, or of machines that the job runs on, and less than two
    minutes apart.

    >>> common = {"ts_ns": 0, "job": "j", "attempt": 0, "subject_type": "rank", "severity": "critical"}
    >>> crash = Finding(kind="crash", subject="3", confidence=0.9, summary="Rank 3 ended.", **common)
    >>> hang = Finding(kind="hang", subject="0", confidence=0.6, summary="Rank 0 hangs.", **common)
    >>> (incident,) = join([hang, crash])
    >>> incident["root"], incident["victims"]
    ('rank 3', ['rank 0'])
    """
    lasting = {_key(f)[:-1] for f in still_open}
    groups = _groups(findings)
    newest = {_key(f)[:-1]: index for index, group in enumerate(groups) for f in group}
    going_on = {newest[name] for name in lasting if name in newest}
    incidents = [
        _incident(group, topology, now_ns, lasts=index in going_on) for index, group in enumerate(groups)
    ]
    return sorted(incidents, key=lambda i: (-i["since_ns"], i["job"], i["root"]))


def _groups(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Split findings by job and by pauses. Findings without a job join the incidents that they overlap."""
    unique = {_key(f): f for f in sorted(findings, key=_copy_order)}
    by_job: dict[str, list[Finding]] = {}
    for finding in unique.values():
        by_job.setdefault(finding.job, []).append(finding)
    without_job = by_job.pop("", [])
    groups: list[list[Finding]] = []
    joined: set[tuple[str | int, ...]] = set()
    for of_job in by_job.values():
        for group in _runs(of_job):
            low, high = group[0].ts_ns - WINDOW_NS, group[-1].ts_ns + WINDOW_NS
            near = [f for f in without_job if low <= f.ts_ns <= high]
            joined.update(_key(f) for f in near)
            groups.append(sorted([*group, *near], key=_order))
    return groups + _runs([f for f in without_job if _key(f) not in joined])


def _runs(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Split findings where none was made for two minutes."""
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=_order):
        if groups and finding.ts_ns - groups[-1][-1].ts_ns <= WINDOW_NS:
            groups[-1].append(finding)
        else:
            groups.append([finding])
    return groups


def _key(finding: Finding) -> tuple[str | int, ...]:
    """What copies of one finding have in common."""
    return (finding.job, finding.kind, finding.subject_type, finding.subject, finding.attempt, finding.ts_ns)


def _copy_order(finding: Finding) -> tuple[int, str, str, str, float, str, str]:
    """Order copies of one finding, the most confident last."""
    return (*_order(finding), finding.confidence, finding.severity, finding.summary)


def _order(finding: Finding) -> tuple[int, str, str, str]:
    return (finding.ts_ns, finding.kind, finding.subject_type, finding.subject)


# -- one incident -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    """One subject with all its findings. `score` is how likely it is the root."""

    location: Location
    findings: tuple[Finding, ...]
    score: float

    @property
    def name(self) -> str:
        return f"{self.findings[0].subject_type} {self.findings[0].subject}"

    @cached_property
    def symptom(self) -> Symptom:
        return symptom_of(
            ((f.kind, f.evidence) for f in self.findings),
            self.location,
            mild=all(f.severity == "info" for f in self.findings),
        )


def _incident(
    group: Sequence[Finding], topology: Topology | None, now_ns: int, *, lasts: bool = False
) -> Incident:
    suspects = _suspects(group, topology)
    root, rest = suspects[0], suspects[1:]
    victims = sorted({*_named_victims(group), *(s.name for s in rest if _explained(s, root))} - {root.name})
    first, last = group[0].ts_ns, max(f.ts_ns for f in group)
    deepest = _deepest(root.findings)
    job = next((f.job for f in group if f.job), "")
    return {
        "id": _id(next(f for f in group if f.job == job)),
        "job": job,
        "attempt": max(f.attempt for f in group),
        "state": "open" if lasts or now_ns - last <= WINDOW_NS else "over",
        "severity": max((f.severity for f in group), key=lambda s: _SEVERITY_ORDER[s]),
        "since": _utc_text(first),
        "since_ns": first,
        "root": root.name,
        "victims": victims,
        "summary": deepest.summary,
        "hypotheses": _hypotheses(suspects),
        "timeline": [_timeline_entry(f) for f in group],
        "suggested_action": _action(deepest, root),
    }


def _id(first: Finding) -> str:
    """The id of an incident by the first finding of its job. A root that changes later keeps the id."""
    return hashlib.sha256("\0".join(map(str, _key(first))).encode()).hexdigest()[:12]


def _deepest(findings: Sequence[Finding]) -> Finding:
    """Return the finding of one subject that the others do not explain, and nearest to the origin."""
    explained = {k for f in findings for k in cause_of(f.kind).explains if k != f.kind}
    unexplained = [f for f in findings if f.kind not in explained] or findings
    return max(unexplained, key=lambda f: (_depth(f.kind), f.confidence))


def _suspects(group: Sequence[Finding], topology: Topology | None) -> list[_Suspect]:
    """Return the subjects, the most likely root first."""
    by_subject: dict[tuple[str, str], list[Finding]] = {}
    for finding in group:
        by_subject.setdefault((finding.subject_type, finding.subject), []).append(finding)
    suspects = [
        _Suspect(location=location_of_finding(f[0], topology), findings=tuple(f), score=_own_score(f))
        for f in by_subject.values()
    ]
    first_ns = min(f.ts_ns for f in group)
    victims = _named_victims(group)
    largest = max((s.symptom.excess for s in suspects if s.symptom.excess > 0), default=0.0)
    weighed = sorted(suspects, key=lambda s: (-s.score, s.name))[:MAX_WEIGHED]

    def score(s: _Suspect) -> float:
        as_victim = 0.2 if s.name in victims else 1.0
        return s.score * _context(s, weighed, first_ns) * _size(s, largest) * as_victim

    scored = [replace(s, score=score(s)) for s in suspects]
    return sorted(scored, key=lambda s: (-s.score, s.findings[0].ts_ns, _scope(s.location), s.name))


def _own_score(findings: Sequence[Finding]) -> float:
    """Return the score of one subject alone. Findings of different kinds add up as independent reports."""
    severity = max(_SEVERITY_ORDER[f.severity] for f in findings)
    depth = max(_depth(f.kind) for f in findings)
    return (1 - _doubt(findings)) * (0.25, 0.6, 1.0)[severity] * (1 + 0.25 * depth)


def _context(suspect: _Suspect, others: Sequence[_Suspect], first_ns: int) -> float:
    """Return a factor: higher for what it explains, lower for what explains it, and for being late."""
    factor = 1.0 / (1.0 + (suspect.findings[0].ts_ns - first_ns) / (60 * SECOND_NS))
    for other in others:
        if other is suspect:
            continue
        if _explains(suspect, other):
            factor *= 1.5
        if _explains(other, suspect):
            factor *= 0.5
    return max(min(factor, 8.0), 0.02)


def _size(suspect: _Suspect, largest: float) -> float:
    """Return the share of the largest slowdown in the incident, at least a fifth, 1 where it is not known."""
    excess = suspect.symptom.excess
    return max(0.2, excess / largest) if math.isfinite(excess) and largest else 1.0


def _explains(cause: _Suspect, effect: _Suspect) -> bool:
    return causality.explains(cause.symptom, effect.symptom)


def _explained(suspect: _Suspect, root: _Suspect) -> bool:
    return root.location.contains(suspect.location) or _explains(root, suspect)


def _named_victims(group: Sequence[Finding]) -> set[str]:
    """Return the subjects that an analyzer named as victims in its evidence."""
    named: set[str] = set()
    for finding in group:
        victims = finding.evidence.get("victims", ())
        if isinstance(victims, list | tuple):
            named |= {f"rank {v}" if isinstance(v, int) else str(v) for v in victims}
    return named


def _hypotheses(suspects: Sequence[_Suspect]) -> list[Hypothesis]:
    """Return the likely roots. What the most likely one leaves open goes to "something else"."""
    best = 1 - _doubt(suspects[0].findings)
    total = sum(s.score for s in suspects) or 1.0
    ranked = [
        Hypothesis(
            root=s.name,
            kinds=sorted({f.kind for f in s.findings}),
            confidence=round(best * s.score / total, 3),
            because=[f.summary for f in s.findings][:3],
        )
        for s in suspects[:MAX_HYPOTHESES]
    ]
    rest = round(max(1 - sum(h["confidence"] for h in ranked), 0.0), 3)
    return [*ranked, Hypothesis(root="something else", kinds=[], confidence=rest, because=[])]


def _doubt(findings: Sequence[Finding]) -> float:
    """Return the probability that all findings are wrong, if those of different kinds are independent."""
    doubt = 1.0
    for confidence in {f.kind: f.confidence for f in findings}.values():
        doubt *= 1 - (min(max(confidence, 0.0), 0.99) if math.isfinite(confidence) else 0.0)
    return doubt


def _timeline_entry(finding: Finding) -> TimelineEntry:
    return {
        "ts": _utc_text(finding.ts_ns),
        "ts_ns": finding.ts_ns,
        "kind": finding.kind,
        "subject": f"{finding.subject_type} {finding.subject}",
        "severity": finding.severity,
        "confidence": finding.confidence,
        "summary": finding.summary,
    }


def _action(deepest: Finding, root: _Suspect) -> str:
    """Return the action that the finding suggests, else that of its kind, with the names filled in."""
    suggested = deepest.evidence.get("suggested_action") or deepest.evidence.get("action")
    if isinstance(suggested, str) and suggested:
        return suggested
    where = root.location.node or "its node"
    return cause_of(deepest.kind).action.format(subject=root.name, node=where)


def _depth(kind: str) -> int:
    return cause_of(kind).depth


def _scope(location: Location) -> int:
    return SCOPES.index(location.scope) if location.scope in SCOPES else len(SCOPES)


def _utc_text(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
