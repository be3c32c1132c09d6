"""One job of a pool: what it wants and holds, and how it takes up what the pool gives it.

A job that gets other nodes changes over at a saved step, as a job that grows does. One that gets none is
pre-empted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Protocol

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.late_rows import column
from pulsetrain.recovery import elasticity, faults, liveness, moving, resume_nodes, standby_care, unsaved_work
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.new_share import NewShare
from pulsetrain.recovery.nodes import GONE, Node, NodeState
from pulsetrain.recovery.pool.demand import JobDemand, Tier, tier_of
from pulsetrain.recovery.record import Fault
from pulsetrain.recovery.saves import (
    TORN_S,
    ask_for_saves,
    end_saves,
    has_checkpointer,
    is_writing,
    proven_without,
    restorable_without,
    saves_every_step,
)
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.time_use import Use
from pulsetrain.recovery.transitions import PREEMPTED, TERMINAL, Event, Phase

ACTOR = moving.POOL
HELD = moving.SHARE
ENDED = "gone"  # the state of a rank without a process
LOST_S = 60.0  # so long after a node was lost, its ranks may run on where only its connection broke


class Loop(Protocol):
    """Takes what stops the job, or lets it go on."""

    def post(self, event: Event) -> None: ...
    def report(self, fault: Fault) -> None: ...


def machine(node: Node) -> str:
    """The host of a node's agent. An older agent says none: its node counts as a machine."""
    return node.hello.host or node.name


def _runs_ranks(node: Node) -> bool:
    """Whether a rank of its last heartbeat has not ended, or is being restored."""
    beat = node.heartbeat
    if beat is not None and beat.restoring >= 0:
        return True
    return beat is not None and any(state != ENDED for state in column(beat.ranks, "state"))


def _is_awaited(node: Node) -> bool:
    """Whether a node has no connection just now. It is lost if it does not come back."""
    return not node.connected and node.state not in GONE


def _could_run(node: Node) -> bool:
    """Whether a node could run ranks. One that is only unchecked is checked once the job has it."""
    return node.usable and node.cordon in ("", standby_care.NEW)


class JobShare:
    """What the pool may ask one job, and do to it."""

    def __init__(self, state: JobState, loop: Loop) -> None:
        self._state, self._loop = state, loop

    @property
    def tier(self) -> Tier:
        """The tier that its first agent said."""
        nodes = self._state.members.nodes.values()
        return tier_of(next((node.hello.tier for node in nodes), Tier.STANDARD))

    @property
    def unit(self) -> int:
        """Devices that it holds on each of its nodes."""
        return next(node.hello.nproc_per_node for node in self._state.members.nodes.values())

    @property
    def wanted(self) -> bool:
        """Whether it wants devices: not over, not stopped by a person, and enough of its agents are here."""
        state = self._state
        if (
            state.phase in TERMINAL
            or state.ended_by
            or self.kept_stopped
            or liveness.waits_for_storage(state)
        ):
            return False
        return bool(self.holds()) or sum(self.reachable().values()) >= state.resizing.sizes.smallest

    @property
    def resting(self) -> bool:
        """Whether it holds no devices. One that is about to go on holds what it was given."""
        waits = self._state.phase is Phase.PREEMPTED and self._state.move is not None
        return waits or self._state.phase in TERMINAL

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: it trains, waits for nodes, or is pre-empted."""
        state = self._state
        if state.phase is Phase.RUNNING:
            idle = state.move is None and (state.new_share is None or self.waits_for_step)
            trains = state.recovery is None and state.attempt.first_step_done
            return idle and (trains or self._starts_long())
        return self.resting or (state.phase is Phase.WAITING and state.new_share is None)

    @property
    def waits_for_step(self) -> bool:
        """Whether it is to change over, but only once a newer step is saved. It may be changed otherwise."""
        state = self._state
        share = state.new_share if state.phase is Phase.RUNNING and state.move is None else None
        return share is not None and share.only_waits

    @property
    def kept_stopped(self) -> bool:
        """Whether a person has stopped it."""
        state = self._state
        theirs = state.move is not None and state.move.request.actor != ACTOR
        return state.phase in PREEMPTED and theirs

    def _starts_long(self) -> bool:
        """Whether its first step does not come, so that nothing is lost by stopping it.

        After `stepless_s` a script that names no steps counts as training.
        """
        state, attempt = self._state, self._state.attempt
        if attempt.first_step_done or state.last_step > attempt.restore_step or attempt.image is not None:
            return False
        started = state.recovery is None or state.recovery.fault.event is Event.RESUME
        patience_s = max(state.services.pool.pause_s, state.services.policy.stepless_s)
        return started and (state.now_ns() - attempt.started_ns) / 1e9 > patience_s

    def reachable(self) -> Counter[str]:
        """How many of its nodes could run ranks on each machine."""
        return Counter(map(machine, self._usable()))

    def _usable(self) -> list[Node]:
        """Its nodes that could run ranks. Processes that were dumped go on on their own node alone.

        A node of its world trains on under a cordon, which only bars nodes that would be taken anew.
        """
        trains = frozenset() if self.resting else {m.node for m in self._state.members.world}
        nodes = self._state.members.nodes.values()
        usable = [node for node in nodes if _could_run(node) or (node.usable and node.name in trains)]
        image = resume_nodes.waiting_image(self._state, self._state.move)
        own = [node for node in usable if image is not None and node.name == image.node]
        return own or (usable if image is None or self._may_lose() or self._state.can_resume() else [])

    def _may_lose(self) -> bool:
        """Whether a person has let it begin anew where its processes cannot be restored."""
        return self._state.move is not None and self._state.move.request.lose_progress

    def holds(self) -> Counter[str]:
        """How many of its nodes hold devices on each machine, those that it changes over to included."""
        return self._on_machines(self._held())

    def _on_machines(self, names: frozenset[str]) -> Counter[str]:
        nodes = [n for n in self._state.members.nodes.values() if n.name in names]
        return Counter(machine(n) for n in nodes if n.usable or _is_awaited(n))

    def _held(self) -> frozenset[str]:
        """The names of these nodes, also where they are lost."""
        state = self._state
        if self.resting or (state.phase is Phase.FORMING and state.move is not None):
            return frozenset()
        world, allowed = self._world(), state.members.allowed
        if allowed is None:
            return world
        return allowed | world if state.new_share else allowed

    def _world(self) -> frozenset[str]:
        return frozenset(member.node for member in self._state.members.world)

    def ending(self) -> Counter[str]:
        """How many devices on each machine are not free yet, because ranks there have not ended.

        The job does not hold them any more. A rank may hang in the kernel, or its agent may answer late. Or
        the node is lost, and nobody knows for a while whether its ranks run on.
        """
        held = self._held() if self.wanted else frozenset()
        devices: Counter[str] = Counter()
        for node in self._state.members.nodes.values():
            holds = (node.usable or _is_awaited(node)) and node.name in held
            if (node.connected or self._may_run_on(node)) and not holds and _runs_ranks(node):
                devices[machine(node)] += node.hello.nproc_per_node
        return devices

    def _may_run_on(self, node: Node) -> bool:
        """Whether ranks of a lost node may run. Nobody has said that they or their agent ended."""
        lost = node.state is NodeState.LOST or _is_awaited(node)
        if not lost or node.leaving is not None or node.closed_s is None:
            return False
        return self._state.services.clock.monotonic_s() - node.closed_s < LOST_S

    def speed(self) -> float:
        """The present share of its full speed. Steps that are done again are no work."""
        state = self._state
        redoes = state.time.present is Use.RECOMPUTE
        runs = state.phase is Phase.RUNNING and state.attempt.first_step_done and not redoes
        return len(state.members.world) / state.resizing.sizes.largest if runs else 0.0

    def demand(self, order: int) -> JobDemand:
        """What it wants. One that cannot be stopped now is busy, as is one that something is done to.

        Nodes of a change that waits for a newer step are not its own yet.
        """
        state, sizes = self._state, self._state.resizing.sizes
        world = len(state.members.world)
        other = sizes.largest if world == sizes.smallest else sizes.smallest
        largest = sizes.fit(state.resizing.cap) or sizes.largest  # a person may want fewer
        rigid = bool(world and elasticity.why_not_size(state, other))
        may_lose_all = bool(world) and _may_lose_all(state)
        if may_lose_all:
            largest = max(world, sizes.smallest)  # it would stop to grow
        return JobDemand(
            name=state.name,
            tier=self.tier,
            unit=self.unit,
            least=world if rigid else sizes.smallest,
            most=world if rigid else largest,
            step=1 if rigid else sizes.unit,
            order=order,
            placed=dict(self._on_machines(self._world()) if self.waits_for_step else self.holds()),
            nodes=dict(self.reachable()),
            failing=self._failing(),
            busy=not self.settled or self._awaits_node() or bool(self._refusal()),
            may_lose_all=may_lose_all,
        )

    def _failing(self) -> frozenset[str]:
        """Machines that it is to be taken off at a saved step. What is urgent does not wait for the pool.

        None where the budget of evictions is used up: a detector may be wrong on machine after machine.
        """
        state, evicting = self._state, self._state.hardware.evicting()
        if state.services.policy.observe_only or not evicting:
            return frozenset()
        known, now_s = len(state.members.present()), state.services.clock.monotonic_s()
        if state.budget.refusal(now_s=now_s, known=known, healthy=known):
            return frozenset()
        nodes = (state.members.nodes.get(verdict.node) for verdict in evicting)
        return frozenset(machine(node) for node in nodes if node is not None)

    def _awaits_node(self) -> bool:
        """Whether one of its nodes has no connection just now."""
        return any(_is_awaited(node) for node in self._state.members.world_nodes())

    def _refusal(self) -> str:
        state = self._state
        if state.phase is not Phase.RUNNING:
            return ""
        if unsaved_work.lost_now(state):
            return "it has no checkpoint"  # what is dumped goes on only where it was
        return moving.refusal(self._state, MoveRequest(what="preempt", reason=HELD, actor=ACTOR))

    # -- what the pool does -------------------------------------------------------------------------------

    def hold(self) -> None:
        """A job that has just come waits until the pool gives it devices."""
        request = MoveRequest(what="preempt", reason=HELD, actor=ACTOR, wait_s=0.0)
        if not moving.refusal(self._state, request):
            moving.begin(self._state, request, self._loop)

    def stop(self, reason: str, wait_s: float) -> None:
        """Pre-empt the job. Raises `UsageError` where that cannot be done now."""
        request = MoveRequest(what="preempt", reason=reason, actor=ACTOR, wait_s=wait_s)
        changes = self.waits_for_step
        moving.begin(self._state, request, self._loop)
        if changes:
            _take_back(self._state)

    def awaits(self, blocks: Mapping[str, int]) -> bool:
        """Whether it is to change over to so many nodes of each machine already, once a step is saved."""
        return self.waits_for_step and self._on_machines(self._state.members.allowed or frozenset()) == blocks

    def give_way(self, hosts: Collection[str]) -> bool:
        """Give up a change that only waits for a newer step, if its new nodes are on one of these machines.

        Returns whether it was given up.
        """
        new = (self._state.members.allowed or frozenset()) - self._world()
        gives_way = self.waits_for_step and any(host in hosts for host in self._on_machines(new))
        if gives_way:
            _take_back(self._state)
        return gives_way

    def give(self, blocks: Mapping[str, int], reason: str, wait_s: float, *, optional: bool = False) -> None:
        """Let the job use so many nodes of each machine, and no others.

        It never does steps again for a change that is `optional`.
        """
        state = self._state
        state.members.allowed = self._choose(blocks)
        if state.phase is Phase.PREEMPTED:
            state.resizing.size = state.resizing.sizes.fit(sum(blocks.values())) or state.resizing.size
            request = MoveRequest(what="resume", reason=reason, actor=ACTOR, lose_progress=self._may_lose())
            moving.begin(state, request, self._loop)
        elif state.phase is Phase.RUNNING and self._world() != state.members.allowed:
            state.new_share = NewShare(
                reason=reason,
                asked_s=state.services.clock.monotonic_s(),
                wait_s=wait_s,
                newer_than=state.last_step,
                optional=optional,
            )

    def _choose(self, blocks: Mapping[str, int]) -> frozenset[str]:
        """Nodes of these machines. Those that run ranks are taken first."""
        members, left = self._state.members, Counter(blocks)
        world = {member.node for member in members.world}
        chosen = set()
        for node in sorted(self._usable(), key=lambda n: (n.name not in world, n.name)):
            if left[machine(node)] > 0:
                left[machine(node)] -= 1
                chosen.add(node.name)
        return frozenset(chosen)

    def write(self, kind: str, detail: Mapping[str, object]) -> None:
        """Write an event of this job in the pool's name."""
        self._state.write(kind, detail, actor=ACTOR)


def check_tier(said: str, of_job: str, node: str) -> None:
    """All agents of a job must say the same tier. Raises `UsageError`."""
    tier_of(said)
    if said != of_job:
        raise UsageError(f"node {node!r} says --tier={said}, its job has {of_job}")


def look(job: JobState, loop: Loop) -> None:
    """Stop a job that is to go on with other nodes, once its step is saved.

    Where nodes are lost meanwhile, the pool decides anew. So it does after half an hour (`horizon_s`) without
    the newer step that an optional change waits for.
    """
    share, members = job.new_share, job.members
    if share is None:
        return
    if job.phase is Phase.WAITING or share.acted_in not in (None, job.attempt.number):
        _drop(job)
    elif share.acted_in is not None or job.phase is not Phase.RUNNING:
        return
    elif _has_lost(job):
        _take_back(job)
    elif frozenset(member.node for member in members.world) == members.allowed:
        _drop(job)  # a recovery came first, and took it up
    elif job.move is None and _saved(job, share):
        share.acted_in = job.attempt.number
        _change_size(job)
        loop.report(faults.shared(share.reason, job.attempt.number, job.now_ns()))
    elif share.optional and job.move is None and _waited_s(job, share) > job.services.pool.horizon_s:
        _take_back(job)


def _waited_s(job: JobState, share: NewShare) -> float:
    return job.services.clock.monotonic_s() - share.asked_s


def _take_back(job: JobState) -> None:
    """The job stays on the nodes that it has."""
    job.members.allowed = frozenset(member.node for member in job.members.world)
    _drop(job)


def _drop(job: JobState) -> None:
    job.new_share = None
    end_saves(job)


def _has_lost(job: JobState) -> bool:
    """Whether a node that the job was given, and does not run on yet, is gone."""
    new = (job.members.allowed or frozenset()) - {member.node for member in job.members.world}
    nodes = [job.members.nodes.get(name) for name in new]
    return any(node is None or node.state in GONE for node in nodes)


def _may_lose_all(job: JobState) -> bool:
    """Whether a stop may cost all steps: nobody knows that the script reads what it has saved."""
    own = job.own_checkpoints
    if job.phase is not Phase.RUNNING or own.proven or not own.can_resume() or not unsaved_work.done(job):
        return False
    return proven_without(job, "") < 0


def take_up(job: JobState) -> bool:
    """The hub is new, and none of the job's ranks runs. It goes on with the nodes that it had, until the pool
    gives it others. Returns False where too few of them are here: others may be in use by another job."""
    before, members = job.members.before, job.members
    if before is None or members.allowed is not None:
        return True
    mine = frozenset(node.name for node in members.present() if node.name in before.nodes)
    size = job.resizing.sizes.fit(len(mine))
    if size:
        members.allowed, job.resizing.size = mine, size
    return bool(size)


def _change_size(job: JobState) -> None:
    size = job.resizing.sizes.fit(len(job.members.allowed or ()))
    if size and size != job.resizing.size:
        elasticity.change_size(job, size)


def _saved(job: JobState, share: NewShare) -> bool:
    """Whether the step is saved that was waited for. No steps are done again for what is optional."""
    if not unsaved_work.done(job):
        return True  # there is nothing to save
    if share.asked_in != job.attempt.number:
        share.asked_in = job.attempt.number
        if has_checkpointer(job) and not saves_every_step(job):
            share.newer_than = ask_for_saves(job)
    waited_s = _waited_s(job, share)
    if is_writing(job) and waited_s < share.wait_s + TORN_S:
        return False
    if share.optional:
        return proven_without(job, "") >= max(share.newer_than, 0)
    saved = restorable_without(job, "")
    return saved >= 0 and (saved >= share.newer_than or waited_s >= share.wait_s)
