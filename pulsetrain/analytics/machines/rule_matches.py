"""Findings from the lines that a site's own log rules matched."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import pyarrow as pa

from pulsetrain.analytics.crash import cascade_rule
from pulsetrain.analytics.verdict import Finding, Healthy, Severity, SubjectType, Verdict
from pulsetrain.core.json import JsonObject

NAME = "log_rules"
FRESH_NS = 300 * 10**9
"""A rule that matched no line for so long is no finding of a running job any more."""
CONFIDENCE = 0.8
"""Of a finding: somebody wrote the rule for it. Nobody counted how often such rules are right."""
SHOWN_LINES = 3


@dataclass
class _Matches:
    """All matches of one rule on one rank or node."""

    detail: JsonObject
    first_ns: int
    last_ns: int
    lines: int = 0
    examples: list[str] = field(default_factory=list)


def find(table: pa.Table, *, now_ns: int, job: str = "", attempt: int = -1) -> list[Verdict]:
    """One finding for each rule and rank, or node where no rank printed the line, of the rule's own kind.

    `table` has the columns ts_ns, node, rank, detail. Only rules that matched within `FRESH_NS` before
    `now_ns` count. With 0 all do. A detail that is not an agent's is left out.

    >>> detail = '{"rule": "ib", "kind": "link_lost", "severity": "critical", "line": "x"}'
    >>> table = pa.table({"ts_ns": [5], "node": ["a"], "rank": [3], "detail": [detail]})
    >>> find(table, now_ns=9)[0].summary
    'rank 3 printed what rule ib looks for: x'
    """
    groups: dict[tuple[str, str, int], _Matches] = {}
    for row in table.to_pylist():
        detail = _parsed(row["detail"])
        if detail is None:
            continue
        key = (str(detail["rule"]), row["node"], int(row["rank"]))
        matches = groups.setdefault(key, _Matches(detail, row["ts_ns"], row["ts_ns"]))
        matches.first_ns = min(matches.first_ns, row["ts_ns"])
        matches.last_ns = max(matches.last_ns, row["ts_ns"])
        matches.lines += int(detail.get("lines", 1))
        line = str(detail["line"])[:300]
        if line not in matches.examples and len(matches.examples) < SHOWN_LINES:
            matches.examples.append(line)
    fresh = {k: m for k, m in sorted(groups.items()) if not now_ns or now_ns - m.last_ns <= FRESH_NS}
    seen = [_finding(key, matches, job, attempt) for key, matches in fresh.items()]
    return list(seen) or [Healthy(analyzer=NAME, numbers={"matches": 0})]


def _finding(key: tuple[str, str, int], matches: _Matches, job: str, attempt: int) -> Finding:
    name, node, rank = key
    subject_type: SubjectType = "rank" if rank >= 0 else "node"
    subject = str(rank) if rank >= 0 else node
    detail = matches.detail
    return Finding(
        ts_ns=matches.last_ns,
        job=job,
        attempt=attempt,
        kind=str(detail["kind"]),
        subject_type=subject_type,
        subject=subject,
        severity=cast("Severity", detail["severity"]),
        confidence=CONFIDENCE,
        summary=f"{subject_type} {subject} printed what rule {name} looks for: {matches.examples[0][:160]}",
        evidence={
            "query": "events log_rule",
            "rule": name,
            "node": node,
            "action": str(detail.get("action", "inform")),
            "response": str(detail.get("action", "inform")),
            "policy": f"log rule {name}",
            "onset_ns": matches.first_ns,
            "advice": str(detail.get("advice", "")),
            "source": str(detail.get("source", "")),
            "lines": matches.lines,
            "first_ns": matches.first_ns,
            "examples": matches.examples,
        },
    )


def _parsed(text: str) -> JsonObject | None:
    try:
        detail = json.loads(text)
    except ValueError:
        return None
    needed = ("rule", "kind", "line")
    if not isinstance(detail, dict) or not all(isinstance(detail.get(key), str) for key in needed):
        return None
    return detail if detail.get("severity") in ("info", "warning", "critical") else None


@dataclass(frozen=True, kw_only=True)
class _Error:
    """One error that a rank printed."""

    attempt: int
    ts_ns: int
    node: str
    detail: Mapping[str, JsonObject]

    @property
    def has_stack(self) -> bool:
        """Whether its call stack is known."""
        return bool(self.detail.get("message", {}).get("extraInfo", {}).get("py_callstack"))


def first_errors(table: pa.Table) -> JsonObject:
    """The first error of each rank in a job's lifetime, as DLRover's JSON, and who was first.

    `table` has the columns ts_ns, attempt, node, rank, kind (first_error, rank_exit) and detail, oldest
    first. A rank's error is the one that ended it: the last with a call stack in the earliest attempt that
    it ended with an exit code. What it printed before and survived does not count. Of a rank that no error
    ended it is the first of its earliest attempt. An error with a call stack counts before one without.
    `exitcode` is None for a rank that did not end by itself.
    `culprit` is the rank whose error came first in the earliest attempt that has one, of those that ended by
    themselves if there are any. An error that says that a peer is gone is a consequence, so it never makes a
    culprit. -1 for none.
    """
    printed: dict[int, list[_Error]] = {}
    codes: dict[tuple[int, int], int] = {}
    for row in table.to_pylist():
        detail: Mapping[str, JsonObject] = json.loads(row["detail"] or "{}")
        rank, attempt = int(row["rank"]), int(row["attempt"])
        if row["kind"] == "rank_exit":
            codes.setdefault((attempt, rank), int(cast("int", detail.get("code", 0))))
        else:
            error = _Error(attempt=attempt, ts_ns=row["ts_ns"], node=row["node"], detail=detail)
            printed.setdefault(rank, []).append(error)
    failed = {key for key, code in codes.items() if code != 0}
    errors = {rank: _error_of(rank, of_rank, failed) for rank, of_rank in sorted(printed.items())}
    return {
        "culprit": _first(errors, failed),
        "ranks": {
            str(rank): {
                "node": error.node,
                "attempt": error.attempt,
                "local_rank": error.detail.get("local_rank", -1),
                "exitcode": codes.get((error.attempt, rank)),
                "message": error.detail.get("message", {}),
                "datetime": _utc(error.ts_ns),
            }
            for rank, error in errors.items()
        },
    }


def _error_of(rank: int, printed: Sequence[_Error], failed: Collection[tuple[int, int]]) -> _Error:
    """The error of a rank that counts. `failed` are attempts and ranks that ended with an exit code."""
    fatal = [error for error in printed if (error.attempt, rank) in failed]
    attempt = min(error.attempt for error in fatal or printed)
    of_attempt = [error for error in printed if error.attempt == attempt]
    known = [error for error in of_attempt if error.has_stack] or of_attempt
    return max(known, key=lambda e: e.ts_ns) if fatal and known[0].has_stack else known[0]


def _first(errors: Mapping[int, _Error], failed: Collection[tuple[int, int]]) -> int:
    """The rank whose error came first, -1 where that cannot be told."""
    fatal = [rank for rank, error in errors.items() if (error.attempt, rank) in failed]
    earliest = min((errors[rank].attempt for rank in fatal or errors), default=-1)
    of_attempt = [r for r, e in errors.items() if e.attempt == earliest and not _blames_a_peer(e.detail)]
    causes = [rank for rank in of_attempt if rank in fatal] or of_attempt
    return min(causes, key=lambda rank: (not errors[rank].has_stack, errors[rank].ts_ns), default=-1)


def _blames_a_peer(detail: Mapping[str, JsonObject]) -> bool:
    return bool(cascade_rule([str(detail.get("message", {}).get("message", ""))]))


def _utc(ts_ns: int) -> str:
    return datetime.fromtimestamp(ts_ns / 1e9, UTC).isoformat(timespec="milliseconds")
