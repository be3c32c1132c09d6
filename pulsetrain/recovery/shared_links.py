"""Nodes whose ports lose their links together with those of others under the same switch. Pure.

A switch that starts anew takes the links of all its nodes down, more than once. That is no fault of a node,
and another node under the same switch would fare no better.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pulsetrain.recovery.faults import Observation
from pulsetrain.recovery.link_suspicion import SWITCH_FAULT

KIND = "link_flap"
LEAST_NODES = 2
"""of a switch, before it is the switch rather than the node"""


def shared(findings: Iterable[Observation], switch_of: Mapping[str, str]) -> dict[str, str]:
    """Map each node whose links are not its own trouble to the reason. `switch_of` names switches by node.

    A node is meant where a finding suspects its switch, or where another node of its switch has lost a link.
    """
    by_switch: dict[str, set[str]] = defaultdict(set)
    found: dict[str, str] = {}
    for finding in findings:
        if finding.kind == SWITCH_FAULT:
            found |= dict.fromkeys(_nodes(finding), "its switch is suspected, not the node")
        elif finding.kind == KIND and (node := str(finding.evidence.get("node", ""))) in switch_of:
            by_switch[switch_of[node]].add(node)
    for switch, nodes in by_switch.items():
        if switch and len(nodes) >= LEAST_NODES:
            why = f"other nodes under switch {switch} lost links too: it is suspected, not the node"
            found |= dict.fromkeys(nodes, why)
    return found


def _nodes(finding: Observation) -> list[str]:
    nodes = finding.evidence.get("nodes")
    return [str(node) for node in nodes] if isinstance(nodes, list | tuple) else []
