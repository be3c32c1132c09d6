"""A site's log rules tried on a log: which lines each rule matches, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TypedDict

from pulsetrain.core.errors import UsageError
from pulsetrain.records.site_rules import LineMatcher, SiteRule

BATCH_LINES = 10_000
SHOWN_CHARS = 160


class RuleRow(TypedDict):
    """One rule. `first` and `line` are the number, from 1, and the text of its first line. 0 and "": none."""

    rule: str
    action: str
    kind: str
    severity: str
    lines: int
    first: int
    line: str


class Trial(TypedDict):
    """What came out. A line counts for the first rule that it matches."""

    lines: int
    matched: int
    microseconds_per_line: float
    rules: list[RuleRow]


def try_rules(rules: Sequence[SiteRule], log: Path, *, source: str) -> Trial:
    """Try the rules on each line of a file, as lines from `source`. Raises `UsageError`."""
    rows = {rule.name: _row(rule) for rule in rules}
    matcher = LineMatcher(rules, budget_s=float("inf"))
    count, seconds = 0, 0.0
    try:
        with log.open(errors="replace") as file:
            while batch := [line.rstrip("\r\n") for line in islice(file, BATCH_LINES)]:
                began_s = time.perf_counter()
                matched = matcher.match([(source, line) for line in batch])
                seconds += time.perf_counter() - began_s
                _count(rows, matched, batch, count)
                count += len(batch)
    except OSError as error:
        raise UsageError(f"log {log}: {error.strerror}") from error
    return Trial(
        lines=count,
        matched=sum(row["lines"] for row in rows.values()),
        microseconds_per_line=round(1e6 * seconds / max(1, count), 2),
        rules=list(rows.values()),
    )


def _row(rule: SiteRule) -> RuleRow:
    return RuleRow(
        rule=rule.name,
        action=rule.action,
        kind=rule.kind,
        severity=rule.severity,
        lines=0,
        first=0,
        line="",
    )


def _count(
    rows: dict[str, RuleRow], matched: Iterable[SiteRule | None], batch: Sequence[str], before: int
) -> None:
    for number, (rule, line) in enumerate(zip(matched, batch, strict=True), before + 1):
        if rule is None:
            continue
        row = rows[rule.name]
        row["lines"] += 1
        if not row["first"]:
            row["first"], row["line"] = number, line[:SHOWN_CHARS]
