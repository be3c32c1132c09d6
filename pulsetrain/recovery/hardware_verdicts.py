"""What open findings ask for about the machines of one job, by the `response` in their evidence.

What only informs asks for nothing: it neither keeps a node under a cordon nor holds anything against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pulsetrain.recovery import shared_links
from pulsetrain.recovery.faults import Observation
from pulsetrain.recovery.response import Response


@dataclass(frozen=True, kw_only=True)
class HardwareVerdict:
    """The strictest response that open findings ask for about one node."""

    node: str
    response: Response
    kind: str
    reason: str
    policy: str
    onset_ns: int

    def detail(self) -> dict[str, object]:
        """The verdict as the detail of an event."""
        return {
            "reason": self.reason,
            "response": str(self.response),
            "policy": self.policy,
            "kind": self.kind,
        }


@dataclass(frozen=True, kw_only=True)
class CheckpointWait:
    """An eviction that waits for a checkpoint of step `newer_than` or later."""

    since_s: float
    newer_than: int


class HardwareVerdicts:
    """The verdicts of one job, and what was said and done about them."""

    def __init__(self) -> None:
        self.open: dict[str, HardwareVerdict] = {}
        self._shared: Mapping[str, str] = {}
        self.waiting: dict[str, CheckpointWait] = {}
        self._wait_ended = False
        self._done: set[tuple[str, ...]] = set()

    def take(self, findings: Iterable[Observation], shared: Mapping[str, str] = MappingProxyType({})) -> None:
        """The findings that are open now, of all kinds. `shared` are nodes not to blame for lost links."""
        self._shared = shared
        worst: dict[str, HardwareVerdict] = {}
        for finding in findings:
            verdict = _verdict(finding)
            before = worst.get(verdict.node) if verdict else None
            if verdict and (before is None or verdict.response.rank > before.response.rank):
                worst[verdict.node] = verdict
        self.open = worst
        for node in set(self.waiting) - set(worst):
            self.stop_waiting(node)

    def not_its_own(self, verdict: HardwareVerdict) -> str:
        """Why a node is not to blame for the links that it lost. "": it is, or it lost none.

        What asks for an eviction at once is not questioned.
        """
        at_step = verdict.response is Response.EVICT_AT_STEP and verdict.kind == shared_links.KIND
        return self._shared.get(verdict.node, "") if at_step else ""

    def stop_waiting(self, node: str) -> None:
        """Nothing waits for a checkpoint on behalf of `node` any more."""
        if self.waiting.pop(node, None) is not None:
            self._wait_ended = True

    def take_ended_wait(self) -> bool:
        """Whether the last wait for a checkpoint has ended since the last call."""
        if not self._wait_ended or self.waiting:
            return False
        self._wait_ended = False
        return True

    def evicting(self) -> list[HardwareVerdict]:
        """Verdicts that take their node out of the job, the strictest first."""
        evicting = [v for v in self.open.values() if v.response.evicts]
        return sorted(evicting, key=lambda v: (-v.response.rank, v.node))

    def first(self, *key: str) -> bool:
        """Whether this is said or done for the first time."""
        new = key not in self._done
        self._done.add(key)
        return new


def _verdict(finding: Observation) -> HardwareVerdict | None:
    evidence = finding.evidence
    response, node = evidence.get("response"), evidence.get("node")
    if response not in {*Response} - {Response.INFORM} or not node:
        return None
    onset_ns = evidence.get("onset_ns", 0)
    return HardwareVerdict(
        node=str(node),
        response=Response(str(response)),
        kind=finding.kind,
        reason=finding.summary,
        policy=str(evidence.get("policy", "")),
        onset_ns=onset_ns if isinstance(onset_ns, int) else 0,
    )
