"""One recovery from fault to first completed step, with the duration of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsetrain.protocol.messages import FirstStep
from pulsetrain.recovery.transitions import Event

STAGES = ("detect", "diagnose", "evict", "rendezvous", "load", "first_step")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a job has to stop. `onset_ns` is the best estimate of when it began, UTC nanoseconds."""

    event: Event
    attempt: int
    cause: str
    reason: str
    onset_ns: int
    detected_ns: int
    node: str = ""
    rank: int = -1
    actor: str = "controller"
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Recovery:
    """Collects the moments of one recovery, all in UTC nanoseconds."""

    fault: Fault
    from_step: int
    checked_ns: int = 0
    replaced_ns: int = 0
    launched_ns: int = 0
    fetch_ns: int = 0
    resumed_step: int = -1

    def blame(self, fault: Fault) -> None:
        """A better explanation came in while the job stopped: a lost node explains its peers' exits."""
        self.fault = fault

    def finish(self, now_ns: int, reports: Iterable[FirstStep]) -> dict[str, Any]:
        """The detail of the `recovery` event: cause, culprit, stages, steps.

        Every stage but `detect` is measured on the hub's clock and they add up to the whole; within the
        launch, `load` and the process-group set-up are the slowest rank's own report.
        """
        slowest = _slowest(reports)
        launch = now_ns - self.replaced_ns
        load = min(self.fetch_ns + slowest.get("load", 0), launch)
        set_up = slowest.get("spawn", 0) + slowest.get("init", 0)
        rendezvous = min((self.launched_ns - self.replaced_ns) - self.fetch_ns + set_up, launch - load)
        stages = {
            "detect": self.fault.detected_ns - self.fault.onset_ns,
            "diagnose": self.checked_ns - self.fault.detected_ns,
            "evict": self.replaced_ns - self.checked_ns,
            "rendezvous": max(rendezvous, 0),
            "load": load,
            "first_step": launch - load - max(rendezvous, 0),
        }
        return {
            "cause": self.fault.cause,
            "culprit": self.fault.node if self.fault.rank < 0 else f"rank {self.fault.rank}",
            "node": self.fault.node,
            "rank": self.fault.rank,
            "reason": self.fault.reason,
            "actor": self.fault.actor,
            "onset_ns": self.fault.onset_ns,
            "stages_ns": stages,
            "total_ns": sum(stages.values()),
            "from_step": self.from_step,
            "resumed_step": self.resumed_step,
            "lost_steps": max(self.from_step - self.resumed_step, 0),
        }


def _slowest(reports: Iterable[FirstStep]) -> dict[str, int]:
    """For each stage the largest duration that any node reported."""
    worst: dict[str, int] = {}
    for report in reports:
        for stage, duration in report.stages_ns.items():
            worst[stage] = max(worst.get(stage, 0), duration)
    return worst
