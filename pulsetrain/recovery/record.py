"""One recovery from fault to first completed step, with the duration of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from pulsetrain.protocol.messages import FirstStep
from pulsetrain.recovery.agent_process import AgentProcess
from pulsetrain.recovery.move_request import Image
from pulsetrain.recovery.transitions import Event

STAGES = ("detect", "diagnose", "evict", "rendezvous", "load", "first_step")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a job has to stop. `onset_ns` is the best estimate of when it began, UTC nanoseconds.

    `exit_code` is that of the rank that failed, minus the signal's number where a signal ended it. `drain`: a
    person wants the cluster's scheduler to drain the node.
    """

    event: Event
    attempt: int
    cause: str
    reason: str
    onset_ns: int
    detected_ns: int
    node: str = ""
    rank: int = -1
    actor: str = "controller"
    exit_code: int = 1
    drain: bool = False


class _Moved(TypedDict):
    joined_nodes: list[str]
    left_nodes: list[str]


class RecoveryDetail(_Moved):
    """The detail of a `recovery` event. `stages_ns` has a duration for each of `STAGES`.

    `resumed_by` is "checkpointer", "image": its processes were restored, "script": `resumed_path` is then its
    file, if known, or "nothing": the job began anew and all its steps are lost. `lost_gpu_s`
    is `total_ns` for every rank, in GPU seconds. `joined_nodes` run the job now and did not before, and
    `left_nodes` did before.
    """

    cause: str
    culprit: str
    node: str
    rank: int
    reason: str
    actor: str
    onset_ns: int
    stages_ns: dict[str, int]
    total_ns: int
    from_step: int
    resumed_step: int
    resumed_by: str
    resumed_path: str
    lost_steps: int
    lost_gpu_s: float
    attempt: int


@dataclass(frozen=True, kw_only=True)
class _Resumed:
    """The step that a job goes on from, -1 for none."""

    step: int
    by: str
    path: str = ""


@dataclass(kw_only=True)
class Recovery:
    """Collects the moments of one recovery, all in UTC nanoseconds.

    `from_step` is the newest step before the fault, `from_nodes` are the nodes of the world then,
    `from_agents` their agents and those of standbys, and `image` the processes that are to be restored.
    `lose_progress`: where they cannot be, the job may begin anew. `by_pool`: no person has stopped it, but
    the pool. `restart_counted`: it was counted as one of the restarts that the job
    may use. `loss_counted` names the node that was counted as lost. `node_counted`: it was, as a fault of its
    node. `users_own`: an exception of the user's own code ended the first rank. `launch_at_s`: not launched
    before that, in monotonic seconds. `none_kept`: why no process of a rank was kept, "" where those could be
    that were healthy. `parked` says how many processes of each node wait to go on. `rolled_back`: an update
    of the program was at fault, and was taken back. `unexplained`: it was counted as a fault that names
    nobody, and `replayed`: training was replayed for it. `replay_named` are the nodes that go because of
    that. `state_awaited_of` are the lost nodes for whose state it waits since `state_awaited_s`, in monotonic
    seconds, until `state_given_up`, or until `steps_given_up` where not all steps would be lost.
    `state_awaited_steps` are those that would be, and `step_s` is the time that one took, 0 while unknown.
    `began_s` is when it began, in monotonic seconds. `hung`: a hang was named, and not yet acted on, or all
    ranks that ended blame a peer. torch's own timeout ends ranks that wait, then.
    """

    fault: Fault
    from_step: int
    from_nodes: tuple[str, ...] = ()
    from_agents: tuple[AgentProcess, ...] = ()
    checked_ns: int = 0
    replaced_ns: int = 0
    launched_ns: int = 0
    fetch_ns: int = 0
    resumed_step: int = -1
    restart_counted: bool = False
    loss_counted: str = ""
    launch_at_s: float = 0.0
    node_counted: bool = False
    users_own: bool = False
    none_kept: str = ""
    parked: dict[str, int] = field(default_factory=dict)
    image: Image | None = None
    lose_progress: bool = False
    by_pool: bool = False
    rolled_back: bool = False
    unexplained: bool = False
    replayed: bool = False
    replay_named: frozenset[str] = frozenset()
    hung: bool = False
    state_awaited_of: tuple[str, ...] = ()
    state_awaited_s: float = 0.0
    state_given_up: bool = False
    steps_given_up: bool = False
    state_awaited_steps: int = 0
    step_s: float = 0.0
    began_s: float = 0.0
    resumed_by: str = "checkpointer"

    def blame(self, fault: Fault) -> None:
        """A better explanation came in while the job stopped: a lost node explains its peers' exits."""
        self.fault = fault

    def launched(self, now_ns: int, *, fetch_ns: int, step: int) -> None:
        """Every node answered the launch. `fetch_ns` is the longest time a checkpoint took to arrive."""
        self.launched_ns, self.fetch_ns, self.resumed_step = now_ns, fetch_ns, step

    def finish(
        self,
        now_ns: int,
        attempt: int,
        reports: Iterable[FirstStep],
        *,
        ranks: int,
        nodes: Sequence[str] = (),
    ) -> RecoveryDetail:
        """The detail of the `recovery` event: cause, culprit, stages, steps.

        `ranks` is the size of the world, and `nodes` are its nodes. Every stage but `detect` is measured on
        the hub's clock and they add up to the whole. Within the launch, `load` and the process-group set-up
        are the slowest rank's own report.
        """
        reports = tuple(reports)
        stages = self._stages(now_ns, reports)
        fault, resumed = self.fault, self._resumed(reports)
        return {
            "cause": fault.cause,
            "culprit": fault.node if fault.rank < 0 else f"rank {fault.rank}",
            "node": fault.node,
            "rank": fault.rank,
            "reason": fault.reason,
            "actor": fault.actor,
            "onset_ns": fault.onset_ns,
            "stages_ns": stages,
            "total_ns": sum(stages.values()),
            "from_step": self.from_step,
            "resumed_step": resumed.step,
            "resumed_by": resumed.by,
            "resumed_path": resumed.path,
            "lost_steps": max(self.from_step - resumed.step, 0),
            "lost_gpu_s": round(sum(stages.values()) / 1e9 * ranks, 1),
            "attempt": attempt,
            **self._moved(nodes),
        }

    def _moved(self, nodes: Sequence[str]) -> _Moved:
        """Who joined and who left, where the nodes from before are known."""
        before = set(self.from_nodes or nodes)
        return {
            "joined_nodes": sorted(set(nodes) - before),
            "left_nodes": sorted(before.difference(nodes)),
        }

    def _resumed(self, reports: Sequence[FirstStep]) -> _Resumed:
        """From where the job goes on: from our checkpoint, else from what the script says or has read."""
        if self.resumed_step >= 0:
            return _Resumed(step=self.resumed_step, by=self.resumed_by)
        newest = max(reports, key=lambda report: report.resumed_step, default=None)
        if newest is None or newest.resumed_step < 0:
            read = next((report.resumed_path for report in reports if report.resumed_path), "")
            return _Resumed(step=-1, by="nothing", path=read)
        return _Resumed(step=newest.resumed_step, by="script", path=newest.resumed_path)

    def _stages(self, now_ns: int, reports: Iterable[FirstStep]) -> dict[str, int]:
        slowest = _slowest(reports)
        launch = now_ns - self.replaced_ns
        load = min(self.fetch_ns + slowest.get("load", 0), launch)
        set_up = slowest.get("spawn", 0) + slowest.get("init", 0)
        rendezvous = min((self.launched_ns - self.replaced_ns) - self.fetch_ns + set_up, launch - load)
        return {
            "detect": self.fault.detected_ns - self.fault.onset_ns,
            "diagnose": self.checked_ns - self.fault.detected_ns,
            "evict": self.replaced_ns - self.checked_ns,
            "rendezvous": max(rendezvous, 0),
            "load": load,
            "first_step": launch - load - max(rendezvous, 0),
        }


def _slowest(reports: Iterable[FirstStep]) -> dict[str, int]:
    """For each stage the largest duration that any node reported."""
    worst: dict[str, int] = {}
    for report in reports:
        for stage, duration in report.stages_ns.items():
            worst[stage] = max(worst.get(stage, 0), duration)
    return worst
