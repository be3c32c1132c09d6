"""Findings joined over time and place into one story each: root, victims, hypotheses, timeline, action."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pulsetrain.analytics.incidents import causality
from pulsetrain.analytics.incidents.causality import Symptom, cause_of, trouble
from pulsetrain.analytics.incidents.locations import SCOPES, Location, Topology, place_of_finding
from pulsetrain.records.findings import Finding

S = 1_000_000_000
WINDOW_NS = 120 * S  # findings of one job further apart than this are different stories
MOST_HYPOTHESES = 5
MOST_CONTEXT = 64  # suspects weighed against each other; a storm of ranks adds nothing beyond them
_SEVERITY = {"critical": 2, "warning": 1, "info": 0}


def join(
    findings: Iterable[Finding], topology: Topology | None = None, *, now_ns: int = 0
) -> list[dict[str, Any]]:
    """Incidents, newest first, from findings in any order; the same finding twice counts once.

    Findings belong together when they are of one job (or of machines that the job runs on) and less than two
    minutes apart. Each incident: `id`, `job`, `state` (open until nothing was seen for two minutes), `since`,
    `root` and `victims` as "type subject", `hypotheses` ranked with confidences that sum to 1 (the last is
    "something else"), `timeline`, `suggested_action`, `summary`.
    """
    incidents = [_story(group, topology, now_ns) for group in _groups(findings)]
    return sorted(incidents, key=lambda i: (-i["since_ns"], i["job"], i["root"]))


def _groups(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings split by job and by pauses. What names no job joins the stories that it overlaps."""
    unique = {_key(f): f for f in sorted(findings, key=_surest)}
    by_job: dict[str, list[Finding]] = {}
    for finding in unique.values():
        by_job.setdefault(finding.job, []).append(finding)
    nobodys = by_job.pop("", [])
    groups: list[list[Finding]] = []
    adopted: set[tuple[Any, ...]] = set()
    for mine in by_job.values():
        for group in _runs(mine):
            low, high = group[0].ts_ns - WINDOW_NS, group[-1].ts_ns + WINDOW_NS
            near = [f for f in nobodys if low <= f.ts_ns <= high]
            adopted.update(_key(f) for f in near)
            groups.append(sorted([*group, *near], key=_order))
    return groups + _runs([f for f in nobodys if _key(f) not in adopted])


def _runs(findings: Iterable[Finding]) -> list[list[Finding]]:
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=_order):
        if groups and finding.ts_ns - groups[-1][-1].ts_ns <= WINDOW_NS:
            groups[-1].append(finding)
        else:
            groups.append([finding])
    return groups


def _key(finding: Finding) -> tuple[Any, ...]:
    return (finding.job, finding.kind, finding.subject_type, finding.subject, finding.attempt, finding.ts_ns)


def _surest(finding: Finding) -> tuple[Any, ...]:
    return (*_order(finding), finding.confidence, finding.severity, finding.summary)


def _order(finding: Finding) -> tuple[Any, ...]:
    return (finding.ts_ns, finding.kind, finding.subject_type, finding.subject)


# -- one story ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    """Everything said of one subject."""

    place: Location
    findings: tuple[Finding, ...]
    score: float

    @property
    def name(self) -> str:
        return f"{self.findings[0].subject_type} {self.findings[0].subject}"

    @cached_property
    def trouble(self) -> Symptom:
        return trouble(
            ((f.kind, f.evidence) for f in self.findings),
            self.place,
            mild=all(f.severity == "info" for f in self.findings),
        )


def _story(group: Sequence[Finding], topology: Topology | None, now_ns: int) -> dict[str, Any]:
    suspects = _suspects(group, topology)
    root, rest = suspects[0], suspects[1:]
    victims = sorted({*_told_victims(group), *(s.name for s in rest if _explained(s, root))} - {root.name})
    first, last = group[0].ts_ns, max(f.ts_ns for f in group)
    deepest = _deepest(root.findings)
    job = next((f.job for f in group if f.job), "")
    return {
        "id": hashlib.sha256(f"{job}\0{first}\0{root.name}".encode()).hexdigest()[:12],
        "job": job,
        "attempt": max(f.attempt for f in group),
        "state": "open" if now_ns - last <= WINDOW_NS else "over",
        "severity": max((f.severity for f in group), key=lambda s: _SEVERITY[s]),
        "since": _clock(first),
        "since_ns": first,
        "root": root.name,
        "victims": victims,
        "summary": deepest.summary,
        "hypotheses": _hypotheses(suspects),
        "timeline": [_line(f) for f in group],
        "suggested_action": _action(deepest, root),
    }


def _deepest(findings: Sequence[Finding]) -> Finding:
    """Of what is said of one subject, that which the rest does not explain, and nearest to the origin."""
    explained = {k for f in findings for k in cause_of(f.kind).explains if k != f.kind}
    own = [f for f in findings if f.kind not in explained] or findings
    return max(own, key=lambda f: (_depth(f.kind), f.confidence))


def _suspects(group: Sequence[Finding], topology: Topology | None) -> list[_Suspect]:
    """Subjects, the likeliest root first."""
    by_subject: dict[tuple[str, str], list[Finding]] = {}
    for finding in group:
        by_subject.setdefault((finding.subject_type, finding.subject), []).append(finding)
    made = [
        _Suspect(place=place_of_finding(f[0], topology), findings=tuple(f), score=_own_score(f))
        for f in by_subject.values()
    ]
    first_ns = min(f.ts_ns for f in group)
    named = _told_victims(group)
    largest = max((s.trouble.excess for s in made if s.trouble.excess > 0), default=0.0)
    core = sorted(made, key=lambda s: (-s.score, s.name))[:MOST_CONTEXT]
    scored = [
        _Suspect(
            place=s.place,
            findings=s.findings,
            score=s.score
            * _context(s, core, first_ns)
            * _size(s, largest)
            * (0.2 if s.name in named else 1.0),
        )
        for s in made
    ]
    return sorted(scored, key=lambda s: (-s.score, s.findings[0].ts_ns, _scope(s.place), s.name))


def _own_score(findings: Sequence[Finding]) -> float:
    """Independent reports of one subject add up: 1 - the product of what each leaves open."""
    severity = max(_SEVERITY[f.severity] for f in findings)
    depth = max(_depth(f.kind) for f in findings)
    return (1 - _doubt(findings)) * (0.25, 0.6, 1.0)[severity] * (1 + 0.25 * depth)


def _context(suspect: _Suspect, others: Sequence[_Suspect], first_ns: int) -> float:
    """Up for what it explains, down for what explains it; the earlier weighs a little more."""
    factor = 1.0 / (1.0 + (suspect.findings[0].ts_ns - first_ns) / (60 * S))
    for other in others:
        if other is suspect:
            continue
        if _explains(suspect, other):
            factor *= 1.5
        if _explains(other, suspect):
            factor *= 0.5
    return max(min(factor, 8.0), 0.02)


def _size(suspect: _Suspect, largest: float) -> float:
    """Its share of the largest loss of time in the story, a fifth at least; 1 where that is not told."""
    excess = suspect.trouble.excess
    return max(0.2, excess / largest) if math.isfinite(excess) and largest else 1.0


def _explains(cause: _Suspect, effect: _Suspect) -> bool:
    return causality.explains(cause.trouble, effect.trouble)


def _explained(suspect: _Suspect, root: _Suspect) -> bool:
    return root.place.contains(suspect.place) or _explains(root, suspect)


def _told_victims(group: Sequence[Finding]) -> set[str]:
    """Ranks that an analyzer already called victims: `victims` in its evidence."""
    named: set[str] = set()
    for finding in group:
        victims = finding.evidence.get("victims", ())
        if isinstance(victims, list | tuple):
            named |= {f"rank {v}" if isinstance(v, int) else str(v) for v in victims}
    return named


def _hypotheses(suspects: Sequence[_Suspect]) -> list[dict[str, Any]]:
    """Roots with shares of belief; what the best one leaves open stays with "something else"."""
    best = 1 - _doubt(suspects[0].findings)
    total = sum(s.score for s in suspects) or 1.0
    ranked = [
        {
            "root": s.name,
            "kinds": sorted({f.kind for f in s.findings}),
            "confidence": round(best * s.score / total, 3),
            "because": [f.summary for f in s.findings][:3],
        }
        for s in suspects[:MOST_HYPOTHESES]
    ]
    known = sum(round(best * s.score / total, 3) for s in suspects[:MOST_HYPOTHESES])
    other = {
        "root": "something else",
        "kinds": [],
        "confidence": round(max(1 - known, 0.0), 3),
        "because": [],
    }
    return [*ranked, other]


def _doubt(findings: Sequence[Finding]) -> float:
    doubt = 1.0
    for confidence in {f.kind: f.confidence for f in findings}.values():
        doubt *= 1 - (min(max(confidence, 0.0), 0.99) if math.isfinite(confidence) else 0.0)
    return doubt


def _line(finding: Finding) -> dict[str, Any]:
    return {
        "ts": _clock(finding.ts_ns),
        "ts_ns": finding.ts_ns,
        "kind": finding.kind,
        "subject": f"{finding.subject_type} {finding.subject}",
        "severity": finding.severity,
        "confidence": finding.confidence,
        "summary": finding.summary,
    }


def _action(deepest: Finding, root: _Suspect) -> str:
    """What the finding itself asks for, else what the table says for its kind, with the names filled in."""
    told = deepest.evidence.get("suggested_action") or deepest.evidence.get("action")
    if isinstance(told, str) and told:
        return told
    where = root.place.node or "its node"
    return cause_of(deepest.kind).action.format(subject=root.name, node=where)


def _depth(kind: str) -> int:
    return cause_of(kind).depth


def _scope(place: Location) -> int:
    return SCOPES.index(place.scope) if place.scope in SCOPES else len(SCOPES)


def _clock(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
