"""Who is at fault and who only waits for it, as the open findings of a job say. Every page uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pulsetrain.core.json import JsonObject

_SLOW_KINDS = ("straggler", "fail_slow")
_BLAMED_AS: Mapping[str, str] = MappingProxyType({"critical": "culprit", "warning": "slow"})


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Who is at fault and who only waits for it. `ranks` and `nodes` hold a state each: "culprit" or
    "slow"."""

    ranks: Mapping[int, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    victims: frozenset[int] = frozenset()
    sentence: str = ""

    @property
    def culprits(self) -> frozenset[int]:
        """The ranks at fault."""
        return frozenset(rank for rank, state in self.ranks.items() if state == "culprit")


def attribute(findings: Sequence[JsonObject]) -> Attribution:
    """What the findings that are open now, worst first, say of each rank.

    The subject of a critical finding is a culprit. The subject of a warning, or of any finding of slowness,
    is slow. An "info" accuses nobody. Victims are in the evidence of a finding under "victims". Who is at
    fault is nobody's victim.
    """
    serious = [row for row in findings if row["severity"] in _BLAMED_AS]
    ranks: dict[int, str] = {}
    nodes: dict[str, str] = {}
    for row in reversed(serious):
        state = "slow" if row["kind"] in _SLOW_KINDS else _BLAMED_AS[row["severity"]]
        if row["subject_type"] == "rank" and row["subject"].isdigit():
            ranks[int(row["subject"])] = state
        elif row["subject_type"] == "node":
            nodes[row["subject"]] = state
    return Attribution(
        ranks=ranks,
        nodes=nodes,
        victims=frozenset(v for row in serious for v in _victims(row["evidence"])) - ranks.keys(),
        sentence=serious[0]["summary"] if serious else "",
    )


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
    return "culprit" if "culprit" in blamed else "slow" if "slow" in blamed else "active"
