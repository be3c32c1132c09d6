"""Where the subject of a finding is: a rank, GPU or port is on a node, and a node is under a switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsetrain.records.findings import Finding

SWITCH = "switch/"  # prefix of a `link` subject that is a whole switch

# From the largest to the smallest. A fault of the larger one can explain a fault of what it contains.
SCOPES = ("switch", "node", "link", "gpu", "rank")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """`node_of` maps (job, rank) to its node, `switch_of` a node to its access switch. Both may be empty."""

    node_of: Mapping[tuple[str, int], str] = field(default_factory=dict)
    switch_of: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Location:
    """A subject with its node and switch. An empty string means that it is not known."""

    scope: str
    subject: str
    node: str = ""
    switch: str = ""

    def contains(self, other: Location) -> bool:
        """Whether `other` is inside this location.

        >>> switch = Location(scope="switch", subject="sw1", switch="sw1")
        >>> switch.contains(Location(scope="rank", subject="3", node="a", switch="sw1"))
        True
        >>> switch.contains(Location(scope="rank", subject="9", node="b", switch="sw2"))
        False
        """
        if self.scope not in SCOPES or other.scope not in SCOPES:
            return False
        if SCOPES.index(self.scope) >= SCOPES.index(other.scope):
            return False
        if self.scope == "switch":
            return bool(self.switch) and self.switch == other.switch
        return bool(self.node) and self.node == other.node


def location_of(
    *, subject_type: str, subject: str, job: str = "", node: str = "", topology: Topology | None = None
) -> Location:
    """Return the location of a finding's subject. `node` is what its evidence says, if anything.

    The subject of a link or GPU begins with its node: "node-a/mlx5_0/1", "node-a/GPU-5096".
    """
    known = topology or Topology()
    if subject_type == "link" and subject.startswith(SWITCH):
        return Location(scope="switch", subject=subject, switch=subject.removeprefix(SWITCH))
    if subject_type == "node":
        node = subject
    elif subject_type in ("link", "gpu") and "/" in subject:
        node = subject.split("/")[0]
    elif subject_type == "rank" and not node and subject.lstrip("-").isdecimal():
        node = known.node_of.get((job, int(subject)), "")
    return Location(scope=subject_type, subject=subject, node=node, switch=known.switch_of.get(node, ""))


def location_of_finding(finding: Finding, topology: Topology | None = None) -> Location:
    """Return the location of a finding's subject. Its evidence may have `node`.

    A rank was where its evidence says, if that names one node: it may run elsewhere by now.
    """
    nodes = finding.evidence.get("nodes") if finding.subject_type == "rank" else None
    known = nodes if isinstance(nodes, list) and len(nodes) == 1 else [""]
    return location_of(
        subject_type=finding.subject_type,
        subject=finding.subject,
        job=finding.job,
        node=str(finding.evidence.get("node") or known[0]),
        topology=topology,
    )
