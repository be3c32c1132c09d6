"""A job at one moment as a frozen value: all that analyzers, routes and the summary need to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from pulsetrain.protocol.late_rows import column
from pulsetrain.protocol.messages import Heartbeat, Held, Hello, RankExit, RankStatus, WorldNode
from pulsetrain.recovery import left_alone
from pulsetrain.recovery.arithmetic_suspicion import WrongArithmetic
from pulsetrain.recovery.hang_patience import PendingHang
from pulsetrain.recovery.link_suspicion import LinkOutcome
from pulsetrain.recovery.move_request import Move
from pulsetrain.recovery.nodes import BEING_CHECKED, GONE, USUAL_HEARTBEATS, Node, NodeState
from pulsetrain.recovery.own_checkpoints import JobCheckpoint
from pulsetrain.recovery.record import Fault, RecoveryDetail
from pulsetrain.recovery.resizing import Resizing
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.time_use import TimeUse
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.updates import Updates
from pulsetrain.recovery.world import node_of


class NodeSnapshot(NamedTuple):
    """One node. It is a tuple, because each look makes thousands of them.

    `heard_age_s` is the time since its last message, `heartbeat_age_s` since its last heartbeat. `reason`
    says why it is gone, `cordon` why it is not promoted. `gone_since_ns` (UTC) is when it was lost or
    evicted, 0 where it is neither. `unsettled`: its connection closed, and it is not decided yet whether it
    is lost.
    """

    name: str
    state: NodeState
    reason: str
    hello: Hello
    connected: bool
    unsettled: bool
    heartbeat: Heartbeat | None
    heartbeat_age_s: float
    heard_age_s: float
    cordon: str = ""
    gone_since_ns: int = 0

    @property
    def usable(self) -> bool:
        """It can be given commands: connected, and neither lost nor evicted."""
        return self.connected and self.state not in GONE


@dataclass(frozen=True, kw_only=True)
class JobSnapshot:
    """One job. `fault` is why it is recovering now, None where it is not. `history` has one entry for each
    recovery that is complete. `failure` and `ended_by` say why the job is over, "" where that is not so.
    `own_checkpoint` is the newest that the script wrote by itself. `move` is a pre-emption or migration that
    was asked for, None where nobody did. `instrumentation` says of each kind of
    record whether it is explicit or inferred. `time_use` says what the job's time went to. `step_s` is the
    time of a step lately, 0 while unknown. `launches_in_s` is above 0 while it waits because attempts failed.
    `state_awaited_of` are lost nodes whose state it waits for, and `state_awaited_steps` would be lost.
    `links` is what the last rounds over links said, None for none.
    `wrong_arithmetic` has the nodes that computed wrongly.
    `resizing` says how large its world is and may be. `updates` says how its program was changed.
    `left_alone` is a failure about which a hub that only observes does nothing, None for none.
    """

    job: str
    nnodes: int
    phase: Phase
    phase_since_ns: int
    now_ns: int
    attempt: int
    started_ns: int
    first_step_done: bool
    world: tuple[WorldNode, ...]
    nodes: tuple[NodeSnapshot, ...]
    exits: tuple[RankExit, ...]
    fault: Fault | None
    history: tuple[RecoveryDetail, ...]
    failure: str
    ended_by: str
    pending_hang: PendingHang | None = None
    own_checkpoint: JobCheckpoint | None = None
    move: Move | None = None
    instrumentation: Mapping[str, str] = field(default_factory=dict)
    time_use: TimeUse | None = None
    step_s: float = 0.0
    launches_in_s: float = 0.0
    state_awaited_of: tuple[str, ...] = ()
    state_awaited_steps: int = 0
    links: LinkOutcome | None = None
    wrong_arithmetic: Mapping[str, WrongArithmetic] = field(default_factory=dict)
    resizing: Resizing | None = None
    updates: Updates = field(default_factory=Updates)
    left_alone: Fault | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(member.nproc for member in self.world)

    @property
    def last_step(self) -> int:
        """The newest step that any rank of this attempt completed, -1 for none."""
        beats = (heartbeat for _, heartbeat in self.reporting())
        return max((step for beat in beats for step in column(beat.ranks, "last_step")), default=-1)

    @property
    def silent_s(self) -> float:
        """Age of the newest heartbeat of the world's nodes that are not gone, 0 where there is none."""
        ages = [n.heartbeat_age_s for n in self._kept() if n.heartbeat is not None]
        return min(ages, default=0.0)

    @property
    def usual_silence_s(self) -> float:
        """How old that may be by what the agents say: they report each second unless they are told else."""
        return USUAL_HEARTBEATS * max((n.hello.heartbeat_ns for n in self._kept()), default=0) / 1e9

    def node_of(self, rank: int) -> str:
        """The node that runs `rank`, "" where none does."""
        return node_of(self.world, rank)

    def world_nodes(self) -> Sequence[NodeSnapshot]:
        """Nodes of the world that have ever joined, lost ones included, by node rank."""
        return self._world_nodes

    @cached_property
    def _world_nodes(self) -> Sequence[NodeSnapshot]:
        by_name = {n.name: n for n in self.nodes}
        return tuple(by_name[m.node] for m in self.world if m.node in by_name)

    def _kept(self) -> list[NodeSnapshot]:
        return [n for n in self.world_nodes() if n.state not in GONE]

    def active(self) -> list[NodeSnapshot]:
        """Nodes of the world that can be given commands."""
        return [n for n in self.world_nodes() if n.usable]

    def standbys(self) -> list[NodeSnapshot]:
        """Nodes outside the world that could join it."""
        return [n for n in self.nodes if n.usable and n.state is NodeState.STANDBY and not n.cordon]

    def lost_nodes(self) -> tuple[str, ...]:
        """Nodes of the world that are lost."""
        return tuple(n.name for n in self.world_nodes() if n.state is NodeState.LOST)

    def reporting(self) -> Sequence[tuple[NodeSnapshot, Heartbeat]]:
        """Nodes of the world with their last heartbeat of this attempt, lost nodes included."""
        return self._reporting

    @cached_property
    def _reporting(self) -> Sequence[tuple[NodeSnapshot, Heartbeat]]:
        return tuple(
            (n, n.heartbeat)
            for n in self._world_nodes
            if n.heartbeat is not None and n.heartbeat.attempt == self.attempt
        )

    def statuses(self) -> list[RankStatus]:
        """The last status of every rank of the present attempt, those of lost nodes included."""
        return [status for _, heartbeat in self.reporting() for status in heartbeat.ranks]

    def held(self, without: str = "") -> dict[str, Sequence[Held]]:
        """What each reachable node could restore, by its last heartbeat. `without` leaves one node out."""
        return {
            n.name: n.heartbeat.held
            for n in self.nodes
            if n.usable and n.heartbeat is not None and n.name != without
        }


def snapshot(job: JobState) -> JobSnapshot:
    """The job as it is now."""
    now_s, attempt = job.services.clock.monotonic_s(), job.attempt
    hang = job.hangs.pending
    return JobSnapshot(
        job=job.name,
        nnodes=job.nnodes,
        phase=job.phase,
        phase_since_ns=job.phase_since_ns,
        now_ns=job.now_ns(),
        attempt=attempt.number,
        started_ns=attempt.started_ns,
        first_step_done=attempt.first_step_done,
        world=job.members.world,
        nodes=tuple(_node(node, now_s) for node in job.members.nodes.values()),
        exits=tuple(attempt.exits),
        fault=job.recovery.fault if job.recovery else None,
        history=tuple(job.history),
        failure=job.failure,
        ended_by=job.ended_by,
        pending_hang=hang,
        own_checkpoint=job.own_checkpoints.newest(),
        move=replace(job.move) if job.move else None,
        instrumentation=job.instrumentation.combined(),
        time_use=job.time.use(job.now_ns(), hang.since_ns if hang is not None else None),
        links=job.links.outcome,
        wrong_arithmetic=dict(job.arithmetic.wrong),
        resizing=replace(job.resizing),
        updates=job.updates.copy(),
        left_alone=left_alone.present(job),
        step_s=1 / job.rate.per_s if job.rate.per_s else 0.0,
        launches_in_s=job.launches_in_s(),
        state_awaited_of=job.recovery.state_awaited_of if job.recovery is not None else (),
        state_awaited_steps=job.recovery.state_awaited_steps if job.recovery is not None else 0,
    )


def _node(node: Node, now_s: float) -> NodeSnapshot:
    return NodeSnapshot(
        name=node.name,
        state=node.state,
        reason=node.reason,
        hello=node.hello,
        connected=node.connected,
        unsettled=node.closed_s is not None and node.state not in GONE,
        heartbeat=node.heartbeat,
        heartbeat_age_s=now_s - node.heartbeat_s,
        heard_age_s=now_s - node.heard_s,
        cordon=node.cordon or (BEING_CHECKED if node.set_apart else ""),
        gone_since_ns=node.gone_since_ns if node.state in GONE else 0,
    )
