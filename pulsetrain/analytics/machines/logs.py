"""Whose log differs from its peers': lines that one rank or node prints and the others do not.

Lines become templates (see `log_templates`). Only complaints count, because one rank often prints for all. A
rank that lacks what all others keep printing has fallen silent.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

import pyarrow as pa

from pulsetrain.analytics.machines.log_rules import Attribution, classify, rule_of
from pulsetrain.analytics.machines.log_templates import Templates
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, SubjectType, Verdict

NAME = "logs"
WEIGHTS: Mapping[str, float] = {"warning": 0.4, "error": 1.0, "critical": 1.5}
"""How much a line of each severity counts as a complaint."""
COMPLAINT_WEIGHT = 0.7  # of a line without such a severity whose words complain
MOST_LINES = 200_000
LEAST_PEERS = 3

_COMPLAINT = re.compile(
    r"\b(error|exception|fail(ed|ure)?|fatal|critical|traceback|abort(ed)?)\b", re.IGNORECASE
)
_WARNING = re.compile(r"\bwarn(ing)?\b", re.IGNORECASE)


class AttributionRow(TypedDict):
    """Who is likely to blame, for evidence and JSON."""

    shares: dict[str, float]
    reasons: list[str]
    consequence: bool


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line that a subject (a rank or a node) printed."""

    subject: str
    message: str
    node: str = ""
    severity: str = ""
    ts_ns: int = 0


@dataclass
class _PeerLog:
    """What one rank or node printed, by template."""

    node: str
    lines: Counter[int] = field(default_factory=Counter)
    complaints: Counter[int] = field(default_factory=Counter)
    example: dict[int, str] = field(default_factory=dict)
    weight: dict[int, float] = field(default_factory=dict)
    last_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class LogSource:
    """Whose lines are compared, and what findings on them say of the job."""

    subject_type: SubjectType
    now_ns: int = 0
    job: str = ""
    attempt: int = -1


def find(table: pa.Table, *, now_ns: int, job: str = "", attempt: int = -1) -> list[Verdict]:
    """Findings of kind `log_anomaly` from rows of `logs` (ts, node, rank, severity, message).

    Ranks are compared with ranks, and lines without a rank (-1) by node. `Inconclusive` with fewer than three
    peers.

    >>> lines = [(rank, "step done") for rank in range(4)] + [(2, "RuntimeError: CUDA error: launch failed")]
    >>> rank, message = zip(*lines)
    >>> columns = {"rank": rank, "message": message, "node": ["n"] * 5, "severity": ["info"] * 5}
    >>> [finding] = find(pa.table(columns), now_ns=0)
    >>> finding.summary
    'rank 2 prints what its peers do not: RuntimeError: CUDA error: launch failed'
    """
    columns = [table[name].to_pylist() for name in ("node", "rank", "severity", "message")]
    times = table["ts"].cast(pa.int64()).to_pylist() if "ts" in table.column_names else [0] * table.num_rows
    rows = sorted(zip(times, *columns, strict=True), key=lambda r: (r[0], r[2], r[1], r[4]))[-MOST_LINES:]
    of_ranks = [_line(str(r[2]), r) for r in rows if r[2] >= 0]
    of_nodes = [_line(r[1], r) for r in rows if r[2] < 0 and r[1]]
    anomalies = [
        *compare(of_ranks, LogSource(subject_type="rank", now_ns=now_ns, job=job, attempt=attempt)),
        *compare(of_nodes, LogSource(subject_type="node", now_ns=now_ns, job=job, attempt=attempt)),
    ]
    if anomalies:
        return list(anomalies)
    ranks, nodes = ({line.subject for line in lines} for lines in (of_ranks, of_nodes))
    if max(len(ranks), len(nodes)) < LEAST_PEERS:
        return [Inconclusive(analyzer=NAME, reason="fewer than three logs to compare", blind=not rows)]
    return [Healthy(analyzer=NAME, numbers={"lines": len(rows), "ranks": len(ranks)})]


def compare(lines: Iterable[Line], source: LogSource) -> list[Finding]:
    """Subjects whose complaints few others share, or who lack what nearly all others print.

    Nothing is found with fewer than three subjects, nor where too many differ.
    """
    templates = Templates()
    peers = _gather(lines, templates)
    if len(peers) < LEAST_PEERS:
        return []
    few = max(1, len(peers) // 10)
    spread = Counter(t for peer in peers.values() for t in peer.complaints)
    anomalies: list[Finding] = []
    for name, peer in sorted(peers.items()):
        own = {t: n for t, n in peer.complaints.items() if spread[t] <= few}
        score = sum(
            peer.weight[t] * math.log(len(peers) / spread[t]) * (1 + math.log(n)) for t, n in own.items()
        )
        grave = any(peer.weight[t] > WEIGHTS["warning"] for t in own)  # one rank often warns for all
        if grave and score >= math.log(3):
            anomalies.append(_anomaly(source, name, peer, own, score, templates))
    if len(anomalies) > few:
        return []  # everybody has its own complaints, so nobody differs
    return anomalies or _silent(source, peers, few, templates)


def _line(subject: str, row: tuple[int, str, int, str, str]) -> Line:
    ts_ns, node, _, severity, message = row
    return Line(subject=subject, node=node, severity=severity, message=message, ts_ns=ts_ns)


def _gather(lines: Iterable[Line], templates: Templates) -> dict[str, _PeerLog]:
    peers: dict[str, _PeerLog] = {}
    for line in lines:
        if not line.message.strip():
            continue
        peer = peers.setdefault(line.subject, _PeerLog(node=line.node))
        template = templates.add(line.message)
        peer.lines[template] += 1
        peer.last_ns = max(peer.last_ns, line.ts_ns)
        weight = _weight(line.severity, line.message)
        if weight:
            peer.complaints[template] += 1
            peer.weight[template] = max(weight, peer.weight.get(template, 0.0))
            peer.example.setdefault(template, line.message.strip()[:300])
    return peers


def _weight(severity: str, message: str) -> float:
    """How much a line counts as a complaint. 0: not at all."""
    if severity in WEIGHTS:
        return WEIGHTS[severity]
    if rule_of(message):
        return WEIGHTS["error"]
    if _COMPLAINT.search(message):
        return COMPLAINT_WEIGHT
    return WEIGHTS["warning"] if _WARNING.search(message) else 0.0


def _anomaly(
    source: LogSource,
    name: str,
    peer: _PeerLog,
    own: Mapping[int, int],
    score: float,
    templates: Templates,
) -> Finding:
    """A finding on a subject with complaints of its `own`, which are counts by template."""
    worst = sorted(own, key=lambda t: (-peer.weight[t], -own[t], t))
    first = peer.example[worst[0]]
    severity: Severity = "warning" if any(peer.weight[t] >= 1 for t in own) else "info"
    return Finding(
        ts_ns=peer.last_ns or source.now_ns,
        job=source.job,
        attempt=source.attempt,
        kind="log_anomaly",
        subject_type=source.subject_type,
        subject=name,
        severity=severity,
        confidence=round(min(0.85, 0.4 + 0.12 * score), 2),
        summary=f"{source.subject_type} {name} prints what its peers do not: {first[:160]}",
        evidence={
            "query": "logs",
            "node": peer.node,
            "score": round(score, 2),
            "templates": [{"template": templates.text(t), "count": own[t]} for t in worst[:5]],
            "lines": [peer.example[t] for t in worst[:5]],
            "blame": as_json(classify([peer.example[t] for t in worst])),
        },
    )


def _silent(
    source: LogSource, peers: Mapping[str, _PeerLog], few: int, templates: Templates
) -> list[Finding]:
    """Subjects that lack a message that all but a few print again and again."""
    spread = Counter(t for peer in peers.values() for t, n in peer.lines.items() if n >= 3)
    common = [t for t, n in spread.items() if len(peers) - few <= n < len(peers)]
    lacking = {name: [t for t in common if not peer.lines[t]] for name, peer in peers.items()}
    lacking = {name: missing for name, missing in lacking.items() if missing}
    if len(peers) < 4 or not 0 < len(lacking) <= few:
        return []
    return [
        Finding(
            ts_ns=peers[name].last_ns or source.now_ns,
            job=source.job,
            attempt=source.attempt,
            kind="log_anomaly",
            subject_type=source.subject_type,
            subject=name,
            severity="info",
            confidence=0.5,
            summary=f"{source.subject_type} {name} lacks what its peers print: "
            f"{templates.text(missing[0])[:160]}",
            evidence={
                "query": "logs",
                "node": peers[name].node,
                "missing": [templates.text(t) for t in missing[:5]],
            },
        )
        for name, missing in sorted(lacking.items())
    ]


def as_json(attribution: Attribution) -> AttributionRow:
    """Shares by class, names of the rules that decided, and whether the lines only tell of another's end."""
    return AttributionRow(
        shares={k: round(v, 3) for k, v in attribution.shares.items()},
        reasons=[name for name, _ in attribution.reasons],
        consequence=attribution.consequence,
    )
