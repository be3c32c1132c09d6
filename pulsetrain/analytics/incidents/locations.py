"""Where a subject stands: rank, GPU and port on a node, node under a switch; the larger holds the smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsetrain.records.findings import Finding

SWITCH = "switch/"  # prefix of a `link` subject that is a whole switch

# From the largest to the smallest; what is larger and contains the other explains it.
SCOPES = ("switch", "node", "link", "gpu", "rank")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """`node_of` maps (job, rank) to its node, `switch_of` a node to its access switch; both may be empty."""

    node_of: Mapping[tuple[str, int], str] = field(default_factory=dict)
    switch_of: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Location:
    """A subject with everything that contains it; an empty string where that is not known."""

    scope: str
    subject: str
    node: str = ""
    switch: str = ""

    def contains(self, other: Location) -> bool:
        """Whether trouble here can be why there is trouble at `other`, by position alone.

        >>> rail = Location(scope="switch", subject="sw1", switch="sw1")
        >>> rail.contains(Location(scope="rank", subject="3", node="a", switch="sw1"))
        True
        >>> rail.contains(Location(scope="rank", subject="9", node="b", switch="sw2"))
        False
        """
        if self.scope not in SCOPES or other.scope not in SCOPES:
            return False
        if SCOPES.index(self.scope) >= SCOPES.index(other.scope):
            return False
        if self.scope == "switch":
            return bool(self.switch) and self.switch == other.switch
        return bool(self.node) and self.node == other.node


def place_of(
    *, subject_type: str, subject: str, job: str = "", node: str = "", topology: Topology | None = None
) -> Location:
    """The place of a finding's subject. `node` is what its evidence says, if anything.

    Subjects of links and GPUs begin with their node: "node-a/mlx5_0/1", "node-a/GPU-5096".
    """
    known = topology or Topology()
    if subject_type == "link" and subject.startswith(SWITCH):
        name = subject.removeprefix(SWITCH)
        return Location(scope="switch", subject=subject, switch=name)
    if subject_type == "node":
        node = subject
    elif subject_type in ("link", "gpu") and "/" in subject:
        node = subject.split("/")[0]
    elif subject_type == "rank" and not node and subject.lstrip("-").isdecimal():
        node = known.node_of.get((job, int(subject)), "")
    return Location(scope=subject_type, subject=subject, node=node, switch=known.switch_of.get(node, ""))


def place_of_finding(finding: Finding, topology: Topology | None = None) -> Location:
    """`place_of` for a finding; its evidence may hold `node`."""
    return place_of(
        subject_type=finding.subject_type,
        subject=finding.subject,
        job=finding.job,
        node=str(finding.evidence.get("node", "")),
        topology=topology,
    )
