"""Who is likely to blame for an exit, as a distribution over infrastructure, framework and user code.

A symptom is not its cause: a third of illegal memory accesses are faults of the hardware. So every rule has
weights, and the deepest rules that match decide together. A line that only says that a peer died decides
nothing. Sources are in tables/log_rules.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, TypedDict

from pulsetrain.analytics.crash import cascade_rule, searched

CLASSES = ("infrastructure", "framework", "user")
# When nothing else is known: ByteRobust (arXiv 2509.16293) table 1, without the users' own restarts.
PRIOR: Mapping[str, float] = MappingProxyType({"infrastructure": 0.55, "framework": 0.15, "user": 0.30})
FRAMEWORK_PATHS = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python3", "<frozen ")
_FRAME = re.compile(r'File "([^"]+)", line \d+')


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table. `weights` are shares that sum to 1."""

    name: str
    pattern: re.Pattern[str]
    weights: Mapping[str, float]
    depth: int
    sample: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Shares of the classes, which sum to 1. `reasons` are the rules that decided, each with its line."""

    shares: Mapping[str, float]
    reasons: tuple[tuple[str, str], ...] = ()
    consequence: bool = False
    """the lines only say that another process died, so its log has the cause"""

    @property
    def likeliest(self) -> str:
        """The class with the largest share."""
        return max(self.shares, key=lambda c: self.shares[c])


@cache
def rules() -> tuple[Rule, ...]:
    """The rules for lines, in the order of the table."""
    return tuple(
        Rule(
            name=r["name"],
            pattern=re.compile(r["pattern"], re.IGNORECASE),
            weights=_shares(r["weights"]),
            depth=int(r["depth"]),
            sample=r["sample"],
            source=r["source"],
        )
        for r in _table("rule")
    )


@cache
def _exits() -> Mapping[int, Rule]:
    never = re.compile(r"(?!)")
    return {
        int(r["code"]): Rule(
            name=r["name"], pattern=never, weights=_shares(r["weights"]), depth=0, source=r["source"]
        )
        for r in _table("exit")
    }


class _Row(TypedDict):
    """A rule for lines (`pattern`, `depth`, `sample`) or for exit codes (`code`) in log_rules.toml."""

    name: str
    weights: dict[str, float]
    source: str
    pattern: str
    depth: int
    sample: str
    code: int


def _table(kind: Literal["rule", "exit"]) -> list[_Row]:
    text = files("pulsetrain.analytics").joinpath("tables/log_rules.toml").read_text()
    rows: list[_Row] = tomllib.loads(text)[kind]
    return rows


def _shares(weights: Mapping[str, float]) -> Mapping[str, float]:
    total = sum(weights[c] for c in CLASSES)
    return MappingProxyType({c: weights[c] / total for c in CLASSES})


def classify(lines: Iterable[str], code: int | None = None) -> Attribution:
    """Who is likely to blame for a process that left these lines and ended with `code`.

    A negative code is a signal.

    >>> likely = classify(["RuntimeError: CUDA error: an illegal memory access was encountered"])
    >>> {name: round(share, 2) for name, share in likely.shares.items()}
    {'infrastructure': 0.29, 'framework': 0.14, 'user': 0.57}
    """
    kept = [line for line in lines if line.strip()]
    matched = _matched([line for line in kept if not cascade_rule([line])])
    consequence = not matched and bool(cascade_rule(kept))
    matched = matched or _matched(kept)
    if matched:
        deepest = max(rule.depth for rule, _ in matched)
        deciding = {rule.name: (rule, line) for rule, line in matched if rule.depth == deepest}
        evidence = [rule for rule, _ in deciding.values()]
        reasons = tuple((name, line.strip()[:300]) for name, (_, line) in deciding.items())
        return Attribution(
            shares=_mean_shares(evidence, _innermost(kept)), reasons=reasons, consequence=consequence
        )
    ended = _exits().get(code) if code is not None else None
    if ended is not None and not consequence:
        return Attribution(shares=dict(ended.weights), reasons=((f"exit: {ended.name}", ""),))
    return Attribution(shares=dict(PRIOR), consequence=consequence)


def rule_of(line: str) -> str:
    """The name of the deepest rule that a line matches. Empty where none does."""
    matched = _matched([line])
    return max(matched, key=lambda m: m[0].depth)[0].name if matched else ""


def _matched(lines: Sequence[str]) -> list[tuple[Rule, str]]:
    parts = [(line, searched(line)) for line in lines]
    return [(rule, line) for line, part in parts for rule in rules() if rule.pattern.search(part)]


def _innermost(lines: Sequence[str]) -> str:
    """Where the last traceback ends: framework or user code. Empty without one."""
    frames = [m[1] for line in lines if (m := _FRAME.search(line))]
    if not frames:
        return ""
    return "framework" if any(part in frames[-1] for part in FRAMEWORK_PATHS) else "user"


def _mean_shares(evidence: Sequence[Rule], innermost: str) -> dict[str, float]:
    """The mean of the rules' shares.

    `innermost` is where the last traceback ends: framework or user code gets a part of the other's share.
    """
    shares = {c: sum(rule.weights[c] for rule in evidence) / len(evidence) for c in CLASSES}
    if innermost:
        software = shares["framework"] + shares["user"]
        other = "user" if innermost == "framework" else "framework"
        moved = shares[other] * (0.25 if innermost == "framework" else 0.5)
        shares[innermost] += moved
        shares[other] = software - shares[innermost]
    return shares
