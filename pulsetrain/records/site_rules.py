"""A site's own rules for log lines: a TOML file of patterns, and the first rule that a line matches.

A rule can never slow an agent down for long: patterns are searched in linear time (`core.linear_regex`), only
the beginning of a line is looked at, and a batch of lines has a budget of time. What does not fit is counted.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from pulsetrain.core.errors import ConfigError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.linear_regex import PatternSet, UnsupportedPattern, check
from pulsetrain.records.findings import Severity

ACTIONS = ("mark", "inform", "cordon", "evict_at_step", "evict_now")
"""What a rule may do, from the mildest to the strictest. `mark` only names the rule in the line's `rule`."""
RESERVED = ("crash", "hang", "node_lost")
SOURCES = ("stdout", "stderr", "kmsg")
LINE_CHARS = 2048
"""So much of a line is looked at."""
BUDGET_S = 0.05
"""Time that one batch of lines may take. Agents make a batch about every second: 5 % of a core at most."""
MOST_RULES = 500

_KEYS = ("name", "pattern", "severity", "kind", "action", "sources", "advice")


@dataclass(frozen=True, kw_only=True)
class SiteRule:
    """One rule. Raises `ValueError` with one line for what cannot be used."""

    name: str
    """What `logs.rule` holds."""
    pattern: str
    """A regular expression in Python's syntax, searched anywhere in the line."""
    severity: Severity = "warning"
    """Of the finding: info, warning or critical."""
    kind: str = "log_rule"
    """Of the finding."""
    action: str = "inform"
    """mark: only fill `logs.rule`. inform: a finding too, which raises an alert. The others also say what the
    controller does with the node of the line."""
    sources: tuple[str, ...] = SOURCES
    """Lines of which sources are tried."""
    advice: str = ""
    """What a person should do. It is in the finding's evidence."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]{1,64}", self.name):
            raise ValueError(f"name = {self.name!r}: allowed: up to 64 letters, digits, _ . -")
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", self.kind):
            raise ValueError(f"kind = {self.kind!r}: allowed: small letters, digits and _")
        if self.kind in RESERVED:
            raise ValueError(f"kind = {self.kind!r}: a finding of that kind may stop a job; give another")
        for key, value, allowed in (
            ("severity", self.severity, get_args(Severity)),
            ("action", self.action, ACTIONS),
        ):
            if value not in allowed:
                raise ValueError(f"{key} = {value!r}: allowed: {', '.join(allowed)}")
        unknown = [source for source in self.sources if source not in SOURCES]
        if unknown or not self.sources:
            raise ValueError(f"sources = {list(self.sources)}: allowed: {', '.join(SOURCES)}")
        try:
            check(self.pattern)
        except UnsupportedPattern as error:
            raise ValueError(f"pattern {self.pattern!r}: {error}") from error


def read(path: Path) -> tuple[SiteRule, ...]:
    """The rules of a TOML file with tables ``[[rule]]``, in order.

    Raises `ConfigError` with one line that names the file, and the rule that is wrong.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"log rules {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"log rules {path}: {error}") from error
    unknown = sorted(tables.keys() - {"rule", "version"})
    if unknown:
        raise ConfigError(f"log rules {path}: unknown key {unknown[0]!r}; allowed: rule, version")
    rows = tables.get("rule", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"log rules {path}: rule is no list of tables; write [[rule]]")
    if len(rows) > MOST_RULES:
        raise ConfigError(f"log rules {path}: {len(rows)} rules; at most {MOST_RULES}")
    rules = tuple(_rule(path, number, row) for number, row in enumerate(rows, 1))
    names = [rule.name for rule in rules]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ConfigError(f"log rules {path}: rule {double!r} is there twice")
    return rules


def _rule(path: Path, number: int, row: JsonObject) -> SiteRule:
    where = f"log rules {path}: rule {row.get('name', number)!r}"
    unknown = sorted(row.keys() - set(_KEYS))
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; allowed: {', '.join(_KEYS)}")
    for key in ("name", "pattern"):
        if key not in row:
            raise ConfigError(f"{where}: {key} is missing")
    texts = [key for key, value in row.items() if key != "sources" and not isinstance(value, str)]
    if texts:
        raise ConfigError(f"{where}: {texts[0]} = {row[texts[0]]!r}: not a text")
    sources = row.get("sources", list(SOURCES))
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        raise ConfigError(f"{where}: sources = {sources!r}: not a list of texts")
    values = cast("dict[str, str]", {key: value for key, value in row.items() if key != "sources"})
    try:
        return SiteRule(**values, sources=tuple(sources))  # type: ignore[arg-type]  # checked on creation
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


class LineMatcher:
    """Finds the rule of each line. `skipped_lines` counts those for which there was no time."""

    def __init__(
        self,
        rules: Sequence[SiteRule],
        *,
        budget_s: float = BUDGET_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.skipped_lines = 0
        self._budget_s, self._monotonic_s = budget_s, monotonic_s
        self._by_source = {source: [r for r in rules if source in r.sources] for source in SOURCES}
        self._sets = {
            source: PatternSet([rule.pattern for rule in chosen], monotonic_s=monotonic_s)
            for source, chosen in self._by_source.items()
        }

    def match(self, lines: Sequence[tuple[str, str]]) -> list[SiteRule | None]:
        """For each (source, line) the first rule in the file's order that it matches, or None."""
        until_s = self._monotonic_s() + self._budget_s
        matched: list[SiteRule | None] = []
        try:
            for source, line in lines:
                matched.append(self._rule(source, line, until_s))
        except TimeoutError:
            self.skipped_lines += len(lines) - len(matched)
            matched += [None] * (len(lines) - len(matched))
        return matched

    def _rule(self, source: str, line: str, until_s: float) -> SiteRule | None:
        if source not in self._sets:
            return None
        if self._monotonic_s() > until_s:
            raise TimeoutError
        number = self._sets[source].first(line[:LINE_CHARS], until_s=until_s)
        return self._by_source[source][number] if number >= 0 else None
