"""Whose log differs from its peers': lines that one rank or node prints and the others do not.

Lines become templates (Drain, He et al., ICWS 2017, by drain3): what varies is masked, so that the same
message of two ranks is the same template. Only lines that complain count, because one rank usually prints for
all; a rank that lacks what all others keep printing has fallen silent.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from drain3.drain import Drain

from pulsetrain.analytics.machines.log_rules import Blame, classify, rule_of
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, SubjectType, Verdict
from pulsetrain.core.errors import UsageError

NAME = "logs"
COMPLAINTS: Mapping[str, float] = {"warning": 0.4, "error": 1.0, "critical": 1.5}
MOST_LINES = 200_000
MOST_TEMPLATES = 4096
LONGEST_LINE = 500

_MASKS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (
        re.compile(r"\b(?:GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I),
        "<uuid>",
    ),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<ip>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<hex>"),
    (re.compile(r"(?<![\w.])(?:/[\w.+@-]+){2,}"), "<path>"),
    (re.compile(r"(?<![A-Za-z_])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"), "<n>"),
)
_COMPLAINT = re.compile(
    r"\b(error|exception|fail(ed|ure)?|fatal|critical|traceback|abort(ed)?)\b", re.IGNORECASE
)
_WARNING = re.compile(r"\bwarn(ing)?\b", re.IGNORECASE)


class Templates:
    """The templates of a log as they are found. Bounded: the least used ones are forgotten."""

    def __init__(self) -> None:
        self._drain = Drain(depth=5, sim_th=0.5, max_children=100, max_clusters=MOST_TEMPLATES)

    def add(self, line: str) -> int:
        """The number of the line's template."""
        cluster, _ = self._drain.add_log_message(mask(line))
        return int(cluster.cluster_id)

    def text(self, template: int) -> str:
        """The template, with <*> for what varies."""
        cluster = self._drain.id_to_cluster.get(template)
        return str(cluster.get_template()) if cluster else ""


def mask(line: str) -> str:
    """A line with what is never twice the same replaced.

    >>> mask("rank 3: loss 2.5e-3 at 10.0.0.1:29500")
    'rank <n>: loss <n> at <ip>'
    """
    text = line[:LONGEST_LINE]
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    return text.strip()


@dataclass
class _Peer:
    """What one rank or node printed."""

    complaints: Counter[int] = field(default_factory=Counter)
    all: Counter[int] = field(default_factory=Counter)
    example: dict[int, str] = field(default_factory=dict)
    weight: dict[int, float] = field(default_factory=dict)
    last_ns: int = 0
    node: str = ""


def find(table: pa.Table, *, now_ns: int, job: str = "", attempt: int = -1) -> list[Verdict]:
    """Findings of kind `log_anomaly` from rows of `logs` (ts, node, rank, severity, message).

    Ranks are compared with ranks; lines of no rank (rank -1) by node. Fewer than three peers cannot be
    compared.
    """
    columns = [table[name].to_pylist() for name in ("node", "rank", "severity", "message")]
    times = table["ts"].cast(pa.int64()).to_pylist() if "ts" in table.column_names else [0] * table.num_rows
    rows = sorted(zip(times, *columns, strict=True), key=lambda r: (r[0], r[2], r[1], r[4]))[-MOST_LINES:]
    by_rank = [(f"{rank}", node, s, m, t) for t, node, rank, s, m in rows if rank >= 0]
    by_node = [(node, node, s, m, t) for t, node, rank, s, m in rows if rank < 0 and node]
    found = [
        *compare(by_rank, "rank", now_ns=now_ns, job=job, attempt=attempt),
        *compare(by_node, "node", now_ns=now_ns, job=job, attempt=attempt),
    ]
    if found:
        return list(found)
    peers = {r[0] for r in by_rank}, {r[0] for r in by_node}
    if max(len(p) for p in peers) < 3:
        return [Inconclusive(analyzer=NAME, reason="fewer than three logs to compare", blind=not rows)]
    return [Healthy(analyzer=NAME, numbers={"lines": len(rows), "ranks": len(peers[0])})]


Line = tuple[str, str, str, str, int]  # subject, node, severity, message, time


def compare(
    lines: Iterable[Line], subject_type: SubjectType, *, now_ns: int = 0, job: str = "", attempt: int = -1
) -> list[Finding]:
    """Subjects whose complaints few others share, or who lack what nearly all others print."""
    templates = Templates()
    peers = _gather(lines, templates)
    if len(peers) < 3:
        return []
    few = max(1, len(peers) // 10)
    spread = Counter(t for peer in peers.values() for t in peer.complaints)
    found: list[Finding] = []
    for name, peer in sorted(peers.items()):
        own = {t: n for t, n in peer.complaints.items() if spread[t] <= few}
        score = sum(
            peer.weight[t] * math.log(len(peers) / spread[t]) * (1 + math.log(n)) for t, n in own.items()
        )
        grave = any(peer.weight[t] > COMPLAINTS["warning"] for t in own)  # one rank often warns for all
        if grave and score >= math.log(3):
            found.append(_odd(name, peer, own, score, subject_type, now_ns, job, attempt, templates))
    if len(found) > few:
        return []  # everybody has a story of its own: that is no difference
    return found or _silent(peers, few, subject_type, now_ns, job, attempt, templates)


def _gather(lines: Iterable[Line], templates: Templates) -> dict[str, _Peer]:
    peers: dict[str, _Peer] = {}
    for subject, node, severity, message, ts_ns in lines:
        if not message.strip():
            continue
        peer = peers.setdefault(subject, _Peer(node=node))
        template = templates.add(message)
        peer.all[template] += 1
        peer.last_ns = max(peer.last_ns, ts_ns)
        weight = _weight(severity, message)
        if weight:
            peer.complaints[template] += 1
            peer.weight[template] = max(weight, peer.weight.get(template, 0.0))
            peer.example.setdefault(template, message.strip()[:300])
    return peers


def _weight(severity: str, message: str) -> float:
    if severity in COMPLAINTS:
        return COMPLAINTS[severity]
    if rule_of(message):
        return COMPLAINTS["error"]
    if _COMPLAINT.search(message):
        return 0.7
    return COMPLAINTS["warning"] if _WARNING.search(message) else 0.0


def _odd(
    name: str,
    peer: _Peer,
    own: Mapping[int, int],
    score: float,
    subject_type: SubjectType,
    now_ns: int,
    job: str,
    attempt: int,
    templates: Templates,
) -> Finding:
    worst = sorted(own, key=lambda t: (-peer.weight[t], -own[t], t))
    blame = classify([peer.example[t] for t in worst])
    first = peer.example[worst[0]]
    severity: Severity = "warning" if any(peer.weight[t] >= 1 for t in own) else "info"
    return Finding(
        ts_ns=peer.last_ns or now_ns,
        job=job,
        attempt=attempt,
        kind="log_anomaly",
        subject_type=subject_type,
        subject=name,
        severity=severity,
        confidence=round(min(0.85, 0.4 + 0.12 * score), 2),
        summary=f"{subject_type} {name} prints what its peers do not: {first[:160]}",
        evidence={
            "query": "logs",
            "node": peer.node,
            "score": round(score, 2),
            "templates": [{"template": templates.text(t), "count": own[t]} for t in worst[:5]],
            "lines": [peer.example[t] for t in worst[:5]],
            "blame": _rounded(blame),
        },
    )


def _silent(
    peers: Mapping[str, _Peer],
    few: int,
    subject_type: SubjectType,
    now_ns: int,
    job: str,
    attempt: int,
    templates: Templates,
) -> list[Finding]:
    """Subjects that lack a message that all but a few print again and again."""
    spread = Counter(t for peer in peers.values() for t, n in peer.all.items() if n >= 3)
    common = [t for t, n in spread.items() if len(peers) - few <= n < len(peers)]
    lacking = {name: [t for t in common if not peer.all[t]] for name, peer in peers.items()}
    lacking = {name: missing for name, missing in lacking.items() if missing}
    if len(peers) < 4 or not 0 < len(lacking) <= few:
        return []
    return [
        Finding(
            ts_ns=peers[name].last_ns or now_ns,
            job=job,
            attempt=attempt,
            kind="log_anomaly",
            subject_type=subject_type,
            subject=name,
            severity="info",
            confidence=0.5,
            summary=f"{subject_type} {name} lacks what its peers print: {templates.text(missing[0])[:160]}",
            evidence={
                "query": "logs",
                "node": peers[name].node,
                "missing": [templates.text(t) for t in missing[:5]],
            },
        )
        for name, missing in sorted(lacking.items())
    ]


def _rounded(blame: Blame) -> dict[str, Any]:
    return {
        "shares": {k: round(v, 3) for k, v in blame.shares.items()},
        "reasons": [name for name, _ in blame.reasons],
        "consequence": blame.consequence,
    }


# -- files ------------------------------------------------------------------------------------------------

_RANK = re.compile(r"rank[_-]?(\d+)|(?:^|[_/-])(\d+)$", re.IGNORECASE)


def read_folder(folder: Path) -> dict[str, Any]:
    """What the log files of a folder (one for each rank or node) say.

    `{"files": [{"file", "subject", "lines", "blame"}], "findings": [...]}`. Raises `UsageError` where there
    is no file to read.
    """
    paths = [folder] if folder.is_file() else sorted(p for p in _listed(folder) if p.is_file())
    if not paths:
        raise UsageError(f"logs {folder}: no file in it")
    rows: list[Line] = []
    files: list[dict[str, Any]] = []
    for path in paths:
        lines = _lines(path)
        subject = _subject(path)
        rows += [(subject, "", "", line, 0) for line in lines]
        files.append(
            {"file": path.name, "subject": subject, "lines": len(lines), "blame": _rounded(classify(lines))}
        )
    ranks = all(f["subject"].isdecimal() for f in files)
    found = compare(rows, "rank" if ranks else "node")
    return {"files": files, "findings": [f.row() for f in found]}


def _listed(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise UsageError(f"logs {folder}: {error.strerror}") from error


def _lines(path: Path) -> list[str]:
    """The last lines of a file, for bounded memory."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (64 << 20)))
            return file.read().decode(errors="replace").splitlines()[-MOST_LINES:]
    except OSError as error:
        raise UsageError(f"log {path}: {error.strerror}") from error


def _subject(path: Path) -> str:
    match = _RANK.search(path.stem)
    return next((part for part in match.groups() if part), path.stem) if match else path.stem
