"""Tables of what Xids, SXids and lines of the kernel log mean. A site's own rows replace ours."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from pulsetrain.core.errors import ConfigError
from pulsetrain.records.findings import Severity

SEVERITIES = ("info", "warning", "critical")
_RULE_KEYS = ("name", "kind", "severity", "pattern", "summary", "action", "sample", "source", "user_space")


@dataclass(frozen=True, kw_only=True)
class XidPolicy:
    """One Xid or SXid. `layer` is what usually causes it: hardware, driver or application.

    `cancels` is the code that this one takes back. -1: none. `teardown`: it may come with any job that ends.
    """

    code: int
    name: str
    severity: Severity
    layer: str = "hardware"
    nvidia_action: str = ""
    gpud_action: str = ""
    cancels: int = -1
    teardown: bool = False
    source: str = ""

    @property
    def action(self) -> str:
        """NVIDIA's action where it names one, else that of gpud."""
        return self.nvidia_action or self.gpud_action

    @property
    def disputed(self) -> bool:
        """Whether one source asks for an action and the other for none."""
        idle = {"", "IGNORE", "IGNORE_NO_ACTION_REQUIRED"}
        return (self.nvidia_action in idle) != (self.gpud_action in idle) and bool(self.gpud_action)


@dataclass(frozen=True, kw_only=True)
class KernelRule:
    """One rule of kernel_rules.toml. `sample` is a line that it matches.

    `user_space`: it is also for lines that processes write into the kernel's log.
    """

    name: str
    kind: str
    severity: Severity
    pattern: re.Pattern[str]
    summary: str
    action: str
    sample: str
    source: str
    user_space: bool = False


@dataclass(frozen=True, kw_only=True)
class Policies:
    """Everything that decides what a line means."""

    xid: Mapping[int, XidPolicy]
    sxid: Mapping[int, XidPolicy]
    rules: tuple[KernelRule, ...]
    actions: Mapping[str, str]

    def text(self, action: str, *, gpu: str, node: str) -> str:
        """An action in words."""
        return self.actions.get(action, self.actions[""]).format(gpu=gpu, node=node)


def load(site: Path | None = None) -> Policies:
    """The tables of this version, with a site's own rows.

    Rows of `site`/xid.csv, sxid.csv and kernel_rules.toml replace those of the same code or name. Raises
    `ConfigError` for a site file that is not as documented.
    """
    shipped = _shipped()
    if site is None:
        return shipped
    rules = {rule.name: rule for rule in shipped.rules}
    rules |= {
        rule.name: rule for rule in _rules(site_text(site / "kernel_rules.toml"), site, user_space=True)
    }
    return Policies(
        xid={**shipped.xid, **_codes(site_text(site / "xid.csv"), f"{site}/xid.csv")},
        sxid={**shipped.sxid, **_codes(site_text(site / "sxid.csv"), f"{site}/sxid.csv")},
        rules=tuple(rules.values()),
        actions=shipped.actions,
    )


@cache
def _shipped() -> Policies:
    tables = files("pulsetrain.analytics").joinpath("tables")
    actions = _rows(tables.joinpath("repair_actions.csv").read_text())
    return Policies(
        xid=_codes(tables.joinpath("xid.csv").read_text(), "tables/xid.csv"),
        sxid=_codes(tables.joinpath("sxid.csv").read_text(), "tables/sxid.csv"),
        rules=tuple(_rules(tables.joinpath("kernel_rules.toml").read_text(), Path("tables"))),
        actions={row["action"]: row["text"] for row in actions},
    )


def site_text(path: Path) -> str:
    """Return the text of a site's own table, "" where there is none.

    Raises `ConfigError` where it cannot be read.
    """
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"policy file {path}: {error.strerror}") from error


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def _codes(text: str, path: str) -> dict[int, XidPolicy]:
    policies: dict[int, XidPolicy] = {}
    for row in _rows(text):
        try:
            code = int(row["code"])
            policies[code] = XidPolicy(
                code=code,
                name=row["name"],
                severity=_severity(row["severity"], path),
                layer=row.get("layer") or "hardware",
                nvidia_action=row.get("nvidia_action") or row.get("action") or "",
                gpud_action=row.get("gpud_action") or "",
                cancels=int(row.get("cancels") or -1),
                teardown=(row.get("teardown") or "") == "yes",
                source=row["source"],
            )
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: row {row}: {error}") from error
    return policies


def _severity(text: str, path: str) -> Severity:
    if text not in SEVERITIES:
        raise ConfigError(f"{path}: severity {text!r}; allowed: {', '.join(SEVERITIES)}")
    return cast("Severity", text)


def _rules(text: str, folder: Path, *, user_space: bool = False) -> Iterable[KernelRule]:
    """The rules of a table. `user_space` is for those that do not say it."""
    path = f"{folder}/kernel_rules.toml"
    try:
        rows: list[dict[str, Any]] = tomllib.loads(text).get("rule", [])
        for row in rows:
            if unknown := row.keys() - _RULE_KEYS:
                raise ConfigError(f"{path}: unknown key {min(unknown)}; allowed: {', '.join(_RULE_KEYS)}")
            texts = {key: row[key] for key in ("name", "kind", "summary", "action", "sample", "source")}
            severity = _severity(row["severity"], path)
            anyones = bool(row.get("user_space", user_space))
            pattern = re.compile(row["pattern"])
            yield KernelRule(**texts, severity=severity, pattern=pattern, user_space=anyones)
    except KeyError as error:
        raise ConfigError(f"{path}: a rule lacks {error.args[0]}") from error
    except (tomllib.TOMLDecodeError, TypeError, re.error) as error:
        raise ConfigError(f"{path}: {error}") from error
