"""Whether one finding can be the cause of another: by kind, by location, by members, and by size."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pulsetrain.analytics.incidents.locations import Location

SHARED = ("group", "stage")  # subjects with members on several nodes, and so without a location of their own
OWN_WORK = frozenset({"straggler"})  # kinds that tell of a rank's own work, without what it waited for others
MIN_EXCESS_SHARE = 0.5  # share of the effect's slowdown that a cause must have
_RATIO_FIELDS = {"straggler": "ratio", "fail_slow": "slow_ratio"}  # evidence: time over expected time
_SHARE_KINDS = ("gc_pause", "data_stall")  # evidence `share`: part of the step's time


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One row of tables/causes.csv: what a kind of finding may explain, and what to do about it."""

    kind: str
    depth: int
    explains: tuple[str, ...]
    action: str


@cache
def causes() -> Mapping[str, Cause]:
    """Return the table of causes by kind of finding.

    Columns: kind, depth (the larger, the nearer to the origin), explains (kinds, separated by spaces),
    action, source.
    """
    text = files("pulsetrain.analytics").joinpath("tables/causes.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        r["kind"]: Cause(
            kind=r["kind"], depth=int(r["depth"]), explains=tuple(r["explains"].split()), action=r["action"]
        )
        for r in rows
    }


def cause_of(kind: str) -> Cause:
    """Return the row of a kind. Kinds that the table does not have share the row "other".

    >>> cause_of("hang").depth, cause_of("unheard_of").kind
    (2, 'other')
    """
    table = causes()
    return table.get(kind, table["other"])


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What findings say of one subject.

    `ranks` and `nodes` are the members, empty where the findings do not name them. `mild`: all findings are
    of severity "info". `excess` is the slowdown as the logarithm of actual over expected time, NaN where no
    finding measures it.
    """

    kinds: frozenset[str]
    location: Location
    ranks: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    mild: bool = False
    excess: float = math.nan


def symptom_of(
    findings: Iterable[tuple[str, Mapping[str, object]]], location: Location, *, mild: bool
) -> Symptom:
    """Return the symptom of one subject from (kind, evidence) of its findings.

    The members are `ranks` and `nodes` of the evidence. The slowdown is the largest that any finding
    measures.
    """
    kinds: set[str] = set()
    ranks: set[int] = set()
    nodes = {location.node} - {""}
    sizes = []
    if location.scope == "rank" and location.subject.isdecimal():
        ranks.add(int(location.subject))
    for kind, evidence in findings:
        kinds.add(kind)
        ranks |= {r for r in _listed(evidence.get("ranks")) if isinstance(r, int)}
        nodes |= {n for n in _listed(evidence.get("nodes")) if isinstance(n, str) and n}
        sizes.append(_excess(kind, evidence))
    return Symptom(
        kinds=frozenset(kinds),
        location=location,
        ranks=frozenset(ranks),
        nodes=frozenset(nodes),
        mild=mild,
        excess=max((size for size in sizes if not math.isnan(size)), default=math.nan),
    )


def _excess(kind: str, evidence: Mapping[str, object]) -> float:
    ratio = evidence.get(_RATIO_FIELDS.get(kind, ""))
    share = evidence.get("share") if kind in _SHARE_KINDS else None
    if isinstance(ratio, int | float) and math.isfinite(ratio) and ratio > 0:
        return math.log(ratio)
    if isinstance(share, int | float) and 0 <= share < 1:
        return -math.log1p(-share)
    return math.nan


def _listed(value: object) -> Iterable[object]:
    return value if isinstance(value, list | tuple) else ()


def explains(cause: Symptom, effect: Symptom) -> bool:
    """Return whether `cause` can explain `effect`.

    All of these are required:

    - tables/causes.csv links a kind of the cause to a kind of the effect.
    - The location of the effect does not contain that of the cause.
    - The slowdown of the cause is at least half of the effect's, if both are known.
    - A rank that is slow in its own work is slow by something on its own node: nobody works more slowly
      because a link or a rank of another node does.
    - The location fits. An effect on the whole job fits any cause. An effect on a group or stage needs a
      member in common, and a cause that is not mild, unless the effect is mild too.

    >>> slow = symptom_of([("straggler", {})], Location(scope="rank", subject="3", node="n1"), mild=False)
    >>> group = Location(scope="group", subject="dp:3")
    >>> explains(slow, symptom_of([("slow_link", {"ranks": [3, 11]})], group, mild=False))
    True
    >>> explains(slow, symptom_of([("slow_link", {"ranks": [4, 12]})], group, mild=False))
    False
    """
    linked = {kind for own in cause.kinds for kind in cause_of(own).explains}
    explained = effect.kinds & linked
    if not explained or effect.location.contains(cause.location):
        return False
    if explained <= OWN_WORK and _elsewhere(cause.location, effect.location):
        return False
    if cause.excess < MIN_EXCESS_SHARE * effect.excess:  # false where either is NaN
        return False
    if effect.location.scope in SHARED:
        return _has_part_in(cause, effect)
    if effect.location.scope == "job":
        return True
    return cause.location.contains(effect.location) or cause.location.scope in ("rank", "gpu", "link", "node")


def _elsewhere(one: Location, other: Location) -> bool:
    """Whether both are on nodes that are known, and not on the same one."""
    return bool(one.node and other.node) and one.node != other.node


def _has_part_in(cause: Symptom, effect: Symptom) -> bool:
    """Whether `cause` is on a member of the group or stage of `effect`. True where no member is known."""
    if cause.location.scope == "job" or (cause.mild and not effect.mild):
        return False
    if not effect.ranks and not effect.nodes:
        return True
    return bool(cause.ranks & effect.ranks or cause.nodes & effect.nodes)
