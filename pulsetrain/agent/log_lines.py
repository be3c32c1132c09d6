"""What the agent reads in log lines on their way to the spool: the site's rules, and each rank's first error.

Both become rows of `events`: `log_rule` for lines that a rule with an action matched, `first_error` with the
call stack. The lines themselves get the name of their rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from pulsetrain.agent.sources import Sink, SinkAround
from pulsetrain.core.json import JsonObject
from pulsetrain.records.columns import Columns
from pulsetrain.records.site_rules import LineMatcher, SiteRule

log = structlog.get_logger()

AGAIN_NS = 10 * 10**9
"""A rule that matches again on the same rank is one event in so many seconds, with the number of lines."""
STACK_LINES = 200
MESSAGE_CHARS = 2000
MOST_STACKS = 8
"""Tracebacks of one rank and stream that are told of at once: a script may print some and go on."""
STACK_AGAIN_NS = 600 * 10**9
"""After so many, one more is told of each time that so long has passed."""
TRACEBACK = "Traceback (most recent call last):"
_BEFORE_THE_SAME = ("During handling of the above exception", "The above exception was the direct cause")
_BEFORE_A_HARMLESS = ("Exception ignored in",)
"""How the line before a traceback begins that is of the same error, or that ends nothing."""
_ERRORS = ("error", "critical")
_PROFILER = re.compile(r"ERROR:\d{4}-\d\d-\d\d [\d:]+ \d+:\d+ \w+\.cpp:\d+\] ")
"""How torch's profiler logs, as `gpuGetDeviceCount failed` on a machine without a GPU. No rank ends of it."""


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One row of `logs`."""

    ts: int
    node: str
    job: str
    attempt: int
    rank: int
    source: str
    severity: str
    message: str


@dataclass(kw_only=True)
class _Matches:
    """Lines that one rule matched on one rank since the last event of it."""

    told_ns: int
    waiting: int = 0


@dataclass(kw_only=True)
class _Errors:
    """What was seen of one rank's errors on one stream.

    `stack` is an unfinished traceback, and `counts` whether it will be told of. `prefix` is what stood before
    it on its first line. `before` is the line before.
    """

    told: bool = False
    stacks_told: int = 0
    stack_told_ns: int = 0
    began_ns: int = 0
    stack: list[str] = field(default_factory=list)
    counts: bool = True
    prefix: str = ""
    before: str = ""

    def begin(self, line: _Line, at: int) -> None:
        """A traceback begins at this character of a line."""
        again = bool(self.stacks_told) and self.before.startswith(_BEFORE_THE_SAME)
        due = self.stacks_told < MOST_STACKS or line.ts - self.stack_told_ns >= STACK_AGAIN_NS
        self.counts = due and not again and not self.before.startswith(_BEFORE_A_HARMLESS)
        self.prefix, self.began_ns = line.message[:at], line.ts
        self.stack = [line.message[at:]]


class RuleEvents:
    """Makes events of the lines that rules matched, few however many lines there are."""

    def __init__(self) -> None:
        self._matches: dict[tuple[str, str, int, int], _Matches] = {}

    def rows(self, matched: Iterable[tuple[_Line, SiteRule]]) -> list[JsonObject]:
        """The events of these lines. A rule that goes on is told again after `AGAIN_NS`."""
        rows = []
        for line, rule in matched:
            key = (rule.name, line.node, line.attempt, line.rank)
            before = self._matches.get(key)
            if before is not None and line.ts - before.told_ns < AGAIN_NS:
                before.waiting += 1
                continue
            count = 1 + (before.waiting if before else 0)
            self._matches[key] = _Matches(told_ns=line.ts)
            detail = {
                "rule": rule.name,
                "kind": rule.kind,
                "severity": rule.severity,
                "action": rule.action,
                "advice": rule.advice,
                "source": line.source,
                "line": line.message[:MESSAGE_CHARS],
                "lines": count,
            }
            rows.append(_event(line, "log_rule", line.ts, detail))
        return rows


class FirstErrors:
    """Finds the errors of each rank in an attempt, in the form of DLRover's agents.

    A traceback is told when its last line is there. Later ones are told as well, since what was printed first
    may have done no harm. So is the first error that is only printed, if it comes before all of them. Of a
    chain of exceptions the first one is told, which is the origin.
    """

    def __init__(self, nproc_per_node: int) -> None:
        self._nproc = max(1, nproc_per_node)
        self._ranks: dict[tuple[int, int, str], _Errors] = {}

    def rows(self, lines: Iterable[_Line]) -> list[JsonObject]:
        """The events of these lines."""
        return [row for line in lines if line.rank >= 0 for row in self._line(line)]

    def _line(self, line: _Line) -> list[JsonObject]:
        errors = self._ranks.setdefault((line.attempt, line.rank, line.source), _Errors())
        if line.message.endswith(TRACEBACK):  # a progress bar may stand before it
            errors.begin(line, len(line.message) - len(TRACEBACK))
            return []
        errors.before = line.message
        if errors.stack:
            return self._traceback(errors, line)
        if errors.told or line.severity not in _ERRORS or _PROFILER.match(line.message):
            return []
        errors.told = True
        return [self._event(line, line.message, "", line.ts)]

    def _traceback(self, errors: _Errors, line: _Line) -> list[JsonObject]:
        """Take one more line of a traceback, which ends with the first that is not indented."""
        text = line.message.removeprefix(errors.prefix)
        errors.stack = [*errors.stack[: STACK_LINES - 1], text]
        if text.startswith((" ", "\t")):
            return []
        stack, errors.stack = errors.stack, []
        if not errors.counts:
            return []
        errors.told = True
        errors.stacks_told += 1
        errors.stack_told_ns = line.ts
        return [self._event(line, text, "\n".join(stack), errors.began_ns)]

    def _event(self, line: _Line, message: str, stack: str, ts_ns: int) -> JsonObject:
        detail = {
            "local_rank": line.rank % self._nproc,
            "source": line.source,
            "message": {
                "message": message[:MESSAGE_CHARS],
                "extraInfo": {"py_callstack": stack, "timestamp": str(ts_ns // 10**9)},
            },
        }
        return _event(line, "first_error", ts_ns, detail)


class LogLineSink(SinkAround):
    """A sink that fills `logs.rule` and adds events. What fails here never costs a line."""

    def __init__(self, sink: Sink, rules: Sequence[SiteRule], nproc_per_node: int) -> None:
        super().__init__(sink)
        self._matcher = LineMatcher(rules) if rules else None
        self._events, self._first_errors = RuleEvents(), FirstErrors(nproc_per_node)

    @property
    def gauges(self) -> Mapping[str, float]:
        """How many lines no rule was tried on, because rules had used up their time. Empty without rules."""
        return {} if self._matcher is None else {"log_rules_skipped_lines": self._matcher.skipped_lines}

    def append(self, batch: Columns) -> bool:
        """See `Sink`."""
        if batch.record != "logs":
            return self._sink.append(batch)
        events: list[JsonObject] = []
        try:
            batch, events = self._read(batch)
        except Exception:
            log.exception("log_lines_unread")
        kept = self._sink.append(batch)
        if events:
            self._sink.append(Columns.from_rows("events", events))
        return kept

    def _read(self, batch: Columns) -> tuple[Columns, list[JsonObject]]:
        events: list[JsonObject] = []
        lines = _lines(batch)
        if self._matcher is not None:
            rules = self._matcher.match([(line.source, line.message) for line in lines])
            names = [rule.name if rule else "" for rule in rules]
            values = {**batch.columns, "rule": names}
            batch = Columns.from_values("logs", batch.num_rows, values)
            told = [(line, rule) for line, rule in zip(lines, rules, strict=True) if rule is not None]
            events += self._events.rows((line, rule) for line, rule in told if rule.action != "mark")
        return batch, events + self._first_errors.rows(lines)


def _lines(batch: Columns) -> list[_Line]:
    names = tuple(_Line.__dataclass_fields__)
    columns = [batch.column(name).to_list() for name in names]
    return [_Line(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _event(line: _Line, kind: str, ts_ns: int, detail: Mapping[str, object]) -> JsonObject:
    return {
        "ts": ts_ns,
        "node": line.node,
        "job": line.job,
        "attempt": line.attempt,
        "rank": line.rank,
        "kind": kind,
        "actor": "agent",
        "detail": json.dumps(detail),
    }
