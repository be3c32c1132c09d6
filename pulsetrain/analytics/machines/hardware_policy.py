"""The policy table: what is done about an Xid, an SXid, a line of the kernel's log or a sign of a machine."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pulsetrain.analytics.machines.policies import site_text
from pulsetrain.core.errors import ConfigError
from pulsetrain.recovery.response import Response

FILE = "hardware_policy.toml"
ON = ("xid", "sxid", "kernel", "sign")
_LISTS = ("codes", "names", "actions", "severity")
_KEYS = ("name", "on", *_LISTS, "text", "response", "times", "within_s", "at_least", "for_s", "why", "source")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One trouble of one device, as the table looks at it.

    `name` is that of a kernel rule or a sign, `action` the vendor's. `times_ns` are when it happened, oldest
    first, of the newest few. `held_s` is how long it has lasted.
    """

    on: str
    code: int = 0
    name: str = ""
    action: str = ""
    severity: str = ""
    text: str = ""
    value: float = 0.0
    held_s: float = 0.0
    times_ns: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """One row of hardware_policy.toml."""

    name: str
    on: str
    response: Response
    source: str
    codes: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    actions: frozenset[str] = frozenset()
    severity: frozenset[str] = frozenset()
    text: re.Pattern[str] | None = None
    times: int = 1
    within_s: float = 0.0
    at_least: float = 0.0
    for_s: float = 0.0
    why: str = ""

    def matches(self, case: Case) -> bool:
        """Whether the row is about such trouble."""
        return (
            self.on == case.on
            and (not self.codes or case.code in self.codes)
            and (not self.names or case.name in self.names)
            and (not self.actions or case.action in self.actions)
            and (not self.severity or case.severity in self.severity)
        )

    def holds(self, case: Case) -> bool:
        """Whether its conditions hold."""
        return (
            case.value >= self.at_least
            and case.held_s >= self.for_s
            and (self.text is None or self.text.search(case.text) is not None)
            and (self.times <= 1 or _often(case.times_ns, self.times, self.within_s))
        )

    @property
    def specificity(self) -> int:
        """Rows that name more exactly what they are about come before others."""
        return 3 if self.codes or self.names else 2 if self.actions else 1 if self.severity else 0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is to be done, and the row that says so. `policy` and `source` are "" where no row does."""

    response: Response
    policy: str = ""
    source: str = ""


@dataclass(frozen=True)
class HardwarePolicy:
    """The rows of the table."""

    rows: tuple[PolicyRow, ...]

    def choose(self, case: Case) -> Choice:
        """What is to be done about `case`.

        >>> load().choose(Case(on="xid", code=79, action="RESTART_BM", severity="critical")).response.value
        'evict_now'
        """
        matching = [row for row in self.rows if row.matches(case)]
        exact = max((row.specificity for row in matching), default=0)
        holding = [row for row in matching if row.specificity == exact and row.holds(case)]
        chosen = max(holding, key=lambda row: row.response.rank, default=None)
        if chosen is None:
            return Choice(response=Response.INFORM)
        return Choice(response=chosen.response, policy=chosen.name, source=chosen.source)


def _often(times_ns: tuple[int, ...], times: int, within_s: float) -> bool:
    """Whether it happened so many times within such a time, up to the newest one."""
    if len(times_ns) < times:
        return False
    return times_ns[-1] - times_ns[-times] <= within_s * 1e9


def load(site: Path | None = None) -> HardwarePolicy:
    """The table of this version, with a site's own rows from `site`/hardware_policy.toml.

    A site's row with a known name changes the keys that it has. Raises `ConfigError` for a file that is not
    as documented.
    """
    if site is None:
        return _shipped()
    own = _read(site_text(site / FILE), f"{site}/{FILE}")
    rows = {row["name"]: row for row in _read(_shipped_text(), FILE)}
    for row in own:
        rows[row["name"]] = {**rows.get(row["name"], {}), **row}
    return HardwarePolicy(tuple(_row(row, f"{site}/{FILE}") for row in rows.values()))


@cache
def _shipped() -> HardwarePolicy:
    return HardwarePolicy(tuple(_row(row, FILE) for row in _read(_shipped_text(), FILE)))


def _shipped_text() -> str:
    return files("pulsetrain.analytics").joinpath(f"tables/{FILE}").read_text()


def _read(text: str, path: str) -> Iterable[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = tomllib.loads(text).get("policy", [])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    for row in rows:
        if unknown := row.keys() - {*_KEYS}:
            raise ConfigError(f"{path}: unknown key {min(unknown)}; allowed: {', '.join(_KEYS)}")
        if "name" not in row:
            raise ConfigError(f"{path}: a row lacks name")
    return rows


def _row(row: Mapping[str, Any], path: str) -> PolicyRow:
    name = row["name"]
    if missing := [key for key in ("on", "response", "source") if not row.get(key)]:
        raise ConfigError(f"{path}: row {name!r} lacks {missing[0]}")
    if row["on"] not in ON:
        raise ConfigError(f"{path}: row {name!r}: on = {row['on']!r}; allowed: {', '.join(ON)}")
    if row["response"] not in {*Response}:
        allowed = ", ".join(Response)
        raise ConfigError(f"{path}: row {name!r}: response = {row['response']!r}; allowed: {allowed}")
    try:
        return PolicyRow(
            name=name,
            on=row["on"],
            response=Response(row["response"]),
            source=row["source"],
            text=re.compile(row["text"]) if "text" in row else None,
            times=int(row.get("times", 1)),
            why=row.get("why", ""),
            codes=frozenset(row.get("codes", ())),
            names=frozenset(row.get("names", ())),
            actions=frozenset(row.get("actions", ())),
            severity=frozenset(row.get("severity", ())),
            within_s=float(row.get("within_s", 0)),
            at_least=float(row.get("at_least", 0)),
            for_s=float(row.get("for_s", 0)),
        )
    except (re.error, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: row {name!r}: {error}") from error
