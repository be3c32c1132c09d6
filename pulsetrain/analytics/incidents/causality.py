"""Whether one trouble can be why there is another: by kind, by place, and by who has a part in both."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pulsetrain.analytics.incidents.locations import Location

SHARED = ("group", "stage")  # what has members on several nodes, and so no place of its own
COMMENSURATE = 0.5  # of the effect's excess time: a cause smaller than this share does not explain it
_RATIOS = {"straggler": "ratio", "fail_slow": "slow_ratio"}  # times as long as it should be
_SHARES = ("gc_pause", "data_stall")  # of the step's time


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One row of tables/causes.csv: what a kind of finding may explain and what to do about it."""

    kind: str
    depth: int
    explains: tuple[str, ...]
    action: str


@cache
def causes() -> Mapping[str, Cause]:
    """The table of causes by kind of finding. Columns: kind, depth (the larger, the nearer to the origin),
    explains (kinds, separated by spaces), action, source."""
    text = files("pulsetrain.analytics").joinpath("tables/causes.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        r["kind"]: Cause(
            kind=r["kind"], depth=int(r["depth"]), explains=tuple(r["explains"].split()), action=r["action"]
        )
        for r in rows
    }


def cause_of(kind: str) -> Cause:
    """The row of a kind, or that of kinds which the table does not name."""
    table = causes()
    return table.get(kind, table["other"])


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What is said of one subject. `ranks` and `nodes` are who has a part in it, empty where that is not
    told; `mild`: it is information only; `excess`: the time it takes more than it should, as the logarithm
    of a ratio, NaN where nothing tells."""

    kinds: frozenset[str]
    place: Location
    ranks: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    mild: bool = False
    excess: float = math.nan


def trouble(found: Iterable[tuple[str, Mapping[str, Any]]], place: Location, *, mild: bool) -> Symptom:
    """A trouble from the kinds and the evidence of what was found of it; its members stand in the evidence
    as `ranks` and `nodes`."""
    kinds: set[str] = set()
    ranks: set[int] = set()
    nodes = {place.node} - {""}
    sizes = []
    if place.scope == "rank" and place.subject.isdecimal():
        ranks.add(int(place.subject))
    for kind, told in found:
        kinds.add(kind)
        ranks |= {r for r in _listed(told.get("ranks")) if isinstance(r, int)}
        nodes |= {n for n in _listed(told.get("nodes")) if isinstance(n, str) and n}
        sizes.append(_excess(kind, told))
    return Symptom(
        kinds=frozenset(kinds),
        place=place,
        ranks=frozenset(ranks),
        nodes=frozenset(nodes),
        mild=mild,
        excess=max((size for size in sizes if not math.isnan(size)), default=math.nan),
    )


def _excess(kind: str, told: Mapping[str, Any]) -> float:
    ratio, share = told.get(_RATIOS.get(kind, "")), told.get("share") if kind in _SHARES else None
    if isinstance(ratio, int | float) and math.isfinite(ratio) and ratio > 0:
        return math.log(ratio)
    if isinstance(share, int | float) and 0 <= share < 1:
        return -math.log1p(-share)
    return math.nan


def _listed(value: object) -> Iterable[object]:
    return value if isinstance(value, list | tuple) else ()


def explains(cause: Symptom, effect: Symptom) -> bool:
    """A fault explains what stands on it, not what it stands on, and nothing that is much larger than it;
    what several share, where it has a part in that and is more than information, unless the effect is no more
    either; a symptom of the whole job has no place.

    >>> slow = trouble([("straggler", {})], Location(scope="rank", subject="3", node="n1"), mild=False)
    >>> group = Location(scope="group", subject="dp:3")
    >>> explains(slow, trouble([("slow_link", {"ranks": [3, 11]})], group, mild=False))
    True
    >>> explains(slow, trouble([("slow_link", {"ranks": [4, 12], "nodes": ["n2"]})], group, mild=False))
    False
    """
    kinds = {k for kind in cause.kinds for k in cause_of(kind).explains}
    if not effect.kinds & kinds or effect.place.contains(cause.place):
        return False
    if cause.excess < COMMENSURATE * effect.excess:  # false where either is not told
        return False
    if effect.place.scope in SHARED:
        told = effect.ranks or effect.nodes
        part = cause.ranks & effect.ranks or cause.nodes & effect.nodes
        return cause.place.scope != "job" and not (cause.mild and not effect.mild) and bool(part or not told)
    if effect.place.scope == "job":
        return True
    return cause.place.contains(effect.place) or cause.place.scope in ("rank", "gpu", "link", "node")
