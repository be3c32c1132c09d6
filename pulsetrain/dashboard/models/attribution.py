"""Who is at fault and who only waits for it, as the open findings of a job say. Every page uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pulsetrain.core.json import JsonObject

_SLOW_KINDS = ("straggler", "fail_slow")
_BLAMED_AS: Mapping[str, str] = MappingProxyType({"critical": "culprit", "warning": "slow"})
_OF_AN_ATTEMPT = (*_SLOW_KINDS, "hang", "crash", "node_lost")
"""Judged for the job itself as long as they last. Their alerts go on for minutes after that."""
_PARTS = ("link", "gpu")  # of a node: their subjects begin with it, as in "node-a/mlx5_0/1"


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Who is at fault and who only waits for it. `ranks` and `nodes` hold a state each: "culprit" or
    "slow". `parts` has the nodes whose links or GPUs are at fault, with the names of those."""

    ranks: Mapping[int, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    victims: frozenset[int] = frozenset()
    unlisted: int = 0
    """Victims beyond those that a finding lists."""
    sentence: str = ""

    @property
    def culprits(self) -> frozenset[int]:
        """The ranks at fault."""
        return frozenset(rank for rank, state in self.ranks.items() if state == "culprit")

    def state(self, rank: int, node: str) -> str:
        """What is said of a rank on a node, a key of `RANK_STATES`. "" where nothing accuses it."""
        return self.ranks.get(rank) or self.nodes.get(node) or ("part" if node in self.parts else "")


@dataclass(frozen=True, kw_only=True)
class Accused:
    """One subject of a serious finding. `state` is a key of `RANK_STATES`."""

    subject_type: str
    subject: str
    state: str
    summary: str

    @property
    def name(self) -> str:
        """What it is called: "rank 5", "node-a", "link node-a/mlx5_0/1"."""
        return self.subject if self.subject_type == "node" else f"{self.subject_type} {self.subject}"

    @property
    def node(self) -> str:
        """Its node. "" for a rank, whose node a finding need not know."""
        return "" if self.subject_type == "rank" else self.subject.split("/")[0]


def with_alerts(findings: Sequence[JsonObject], alerts: Sequence[JsonObject], job: str) -> list[JsonObject]:
    """The open findings of a job, then what its firing alerts say of machines and their parts.

    A flapping link is judged for the machines and not for the job, so it is no finding of the job itself. A
    node that was lost and is back, or was slow and is not, has no finding any more, and is not accused.
    """
    known = {(row["subject_type"], row["subject"]) for row in findings}
    more = [
        {"evidence": "{}", "confidence": 0.0, **alert}
        for alert in alerts
        if alert.get("state") == "firing"
        and alert.get("job") == job
        and alert["subject_type"] in (*_PARTS, "node")
        and alert["kind"] not in _OF_AN_ATTEMPT
        and (alert["subject_type"], alert["subject"]) not in known
    ]
    return [*findings, *more]


def accused(findings: Sequence[JsonObject]) -> list[Accused]:
    """Every machine, part and rank that an open finding accuses, worst first, each once."""
    blame = attribute(findings)
    found: dict[tuple[str, str], Accused] = {}
    for row in findings:
        kind, subject = row["subject_type"], str(row["subject"])
        if row["severity"] not in _BLAMED_AS or kind not in ("rank", "node", *_PARTS):
            continue
        state = "part"
        if kind == "rank" and subject.isdigit():
            state = blame.ranks[int(subject)]
        elif kind == "node":
            state = blame.nodes[subject]
        found.setdefault(
            (kind, subject),
            Accused(subject_type=kind, subject=subject, state=state, summary=row["summary"]),
        )
    return list(found.values())


def attribute(findings: Sequence[JsonObject]) -> Attribution:
    """What the findings that are open now, worst first, say of each rank.

    The subject of a critical finding is a culprit. The subject of a warning, or of any finding of slowness,
    is slow. A link or GPU is a faulty part of its node. An "info" accuses nobody. Victims are in the evidence
    of a finding under "victims". Who is at fault is nobody's victim.
    """
    serious = [row for row in findings if row["severity"] in _BLAMED_AS]
    ranks: dict[int, str] = {}
    nodes: dict[str, str] = {}
    parts: dict[str, set[str]] = {}
    for row in reversed(serious):
        state = "slow" if row["kind"] in _SLOW_KINDS else _BLAMED_AS[row["severity"]]
        if row["subject_type"] == "rank" and row["subject"].isdigit():
            ranks[int(row["subject"])] = state
        elif row["subject_type"] == "node":
            nodes[row["subject"]] = state
        elif row["subject_type"] in _PARTS and "/" in row["subject"]:
            parts.setdefault(row["subject"].split("/")[0], set()).add(row["subject"])
    return Attribution(
        ranks=ranks,
        nodes=nodes,
        parts={node: tuple(sorted(names)) for node, names in parts.items()},
        victims=frozenset(v for row in serious for v in _victims(row["evidence"])) - ranks.keys(),
        unlisted=max((_unlisted(row["evidence"]) for row in serious), default=0),
        sentence=serious[0]["summary"] if serious else "",
    )


def _unlisted(evidence: str) -> int:
    """How many victims a finding counts and does not list."""
    try:
        told = json.loads(evidence)
        return max(0, int(told.get("victims_in_all", 0)) - len(told.get("victims", [])))
    except (ValueError, TypeError, AttributeError):
        return 0


def _victims(evidence: str) -> list[int]:
    try:
        victims = json.loads(evidence).get("victims", [])
    except (ValueError, AttributeError):
        return []
    return [v for v in victims if isinstance(v, int)] if isinstance(victims, list) else []


def node_state(node: JsonObject, blame: Attribution) -> str:
    """The state of a node of the hub's API, a key of `NODE_STATES`. A node that runs a rank at fault is the
    culprit's node, whatever else it is.
    """
    blamed = {blame.ranks.get(rank) for rank in node.get("ranks") or ()}
    blamed.add(blame.nodes.get(str(node["node"])))
    if str(node.get("state")) != "active":
        return str(node.get("state", ""))
    blamed.add("part" if node["node"] in blame.parts else None)
    return next((state for state in ("culprit", "slow", "part") if state in blamed), "active")


def reason_of(node: JsonObject, findings: Sequence[JsonObject]) -> str:
    """Why a node of the hub's API is in its state: the hub's reason, else the worst finding about it, its
    parts or its ranks. "" where there is none."""
    if node.get("reason"):
        return str(node["reason"])
    name, ranks = str(node["node"]), {str(rank) for rank in node.get("ranks") or ()}
    for each in accused(findings):
        if each.subject in ranks if each.subject_type == "rank" else each.node == name:
            return each.summary
    return ""
