"""The actions of the transition table: commands to nodes, and what their replies change in the job.

An action returns the event or the fault that it leads to, or None. One that raised is carried out again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from signal import Signals

from pulsetrain.diagnostics.node_check import LEVELS
from pulsetrain.protocol.messages import DumpStacks, Leave, Profile, ReadRas, Reply, Stop
from pulsetrain.recovery import (
    another_run,
    arithmetic_checks,
    away_state,
    checks,
    elasticity,
    late_ranks,
    link_actions,
    moving,
    repeat_faults,
    replays,
    responses,
    resume_nodes,
    returning,
    scheduling,
    standby_care,
    survivors,
    updating,
)
from pulsetrain.recovery.back_off import COUNTED
from pulsetrain.recovery.launch import launch
from pulsetrain.recovery.nodes import GONE, Node, NodeState, has_answered
from pulsetrain.recovery.record import Fault, Recovery
from pulsetrain.recovery.restarts import Restarts
from pulsetrain.recovery.silence import Silence
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Action, Event, Phase

USAGE_EXIT = 2
POLL_S = 0.02
STOP_TRIES, STOP_AGAIN_S = 3, 1.0
BACK_TRIES = 3  # to check a node whose connection closes in each check. The launch tells then
STACKS_MARGIN_S = 1.0
PROFILE_MARGIN_S = 30.0  # a large trace takes long to write and to send

Outcome = Event | Fault | None


async def carry_out(action: Action, job: JobState) -> Outcome:
    """Do one action of the table."""
    return await _ACTIONS[action](job)


async def suspend(job: JobState) -> Outcome:
    """End every rank of the world. Wait until each node whose connection closed is back, lost or leaving."""
    reason = job.recovery.fault.reason if job.recovery else "stopped"
    if job.phase is Phase.PREEMPTING:
        reason = moving.stopping(job)
    await _stop(job, _to_stop(job), reason)
    await _until_settled(job, job.members.world_nodes)
    if job.phase is Phase.PREEMPTING:
        await _make_sure(job, reason)
    return Event.STOPPED


def _to_stop(job: JobState) -> list[Node]:
    """Nodes whose ranks are to end, but for one whose ranks have just been found to run after all."""
    return [node for node in job.members.active() if not late_ranks.are_on(job, node)]


async def _stop(job: JobState, nodes: Sequence[Node], reason: str) -> list[str]:
    """End the ranks of these nodes. Returns the nodes that could not."""
    wake_s = job.services.policy.reply_timeout_s + job.services.policy.survivor_wake_s
    silences = _Silences(job)

    async def stop(node: Node) -> Reply:
        await _until_heard(job, node, silences)
        reply = await job.ask(node, survivors.stop_command(job, reason), wake_s)
        job.attempt.stopped |= has_answered(reply)
        return reply

    replies = await asyncio.gather(*map(stop, nodes))
    survivors.note_parked(job, replies)
    late_ranks.note_refusals(job, replies)
    return [node.name for node, reply in zip(nodes, replies, strict=True) if reply.error]


async def _until_heard(job: JobState, node: Node, silences: _Silences) -> None:
    """Wait until a silent node is heard or lost. It would end its ranks once the network lets the command
    through, though a job that was only cut off trains on."""
    while silences.now().is_silent(node) and not job.ended_by:
        await asyncio.sleep(POLL_S)


class _Silences:
    """Who is silent. A look takes as long as there are nodes, so all that ask at one time share it."""

    def __init__(self, job: JobState) -> None:
        self._job, self._at_s = job, 0.0
        self._silence: Silence | None = None

    def now(self) -> Silence:
        services = self._job.services
        now_s = services.clock.monotonic_s()
        if self._silence is None or now_s - self._at_s >= POLL_S:
            self._silence, self._at_s = Silence(self._job.members, services.policy, now_s), now_s
        return self._silence


async def _make_sure(job: JobState, reason: str) -> None:
    """No launch follows that would end what is left, so ask again, also nodes that were away."""
    for attempt in range(STOP_TRIES):
        left = await _stop(job, _to_stop(job), reason)
        if job.move is not None:
            job.move.not_stopped = left
        if not left:
            return
        if attempt + 1 < STOP_TRIES:
            await asyncio.sleep(STOP_AGAIN_S)


async def _until_settled(job: JobState, nodes: Callable[[], Sequence[Node]]) -> None:
    """Wait until each node whose connection closed is back, lost or leaving. Who ends the job ends the wait:
    nobody is given up any more then."""
    while any(_unsettled(node) for node in nodes()) and not job.ended_by:
        await asyncio.sleep(POLL_S)


def _unsettled(node: Node) -> bool:
    return node.closed_s is not None and node.state not in GONE and node.leaving is None


async def check(job: JobState) -> Outcome:
    """Self-check on every node, pairwise all-gather where more than one process is in doubt."""
    updating.after_stop(job)
    why = _hopeless(job)
    if why:
        job.failure = why
        return Event.EXHAUSTED
    members, fault = job.members, job.recovery.fault if job.recovery else None
    going = fault.node if fault is not None and _by_policy(fault) else ""
    await resume_nodes.checked_first(job)
    active = [] if returning.awaited(job) else members.active()
    here = [n for n in active + members.standbys() if n.name != going]
    nodes = [n for n in here if resume_nodes.may_be_checked(job, n)]
    level, why_level = _check_level(job, fault)
    thorough = LEVELS[level] if level else None
    report = await checks.run(nodes, job.services.policy, job.next_id, level=thorough)
    standby_care.note_passed(job, nodes, report)
    members.failed = {**report.failed, **await _failed_once_back(job, nodes, report.unreached)}
    if members.failed:
        job.restarts.unexplained = 0
    if fault is not None and fault.event is Event.EVICT and not _stays(job, fault):
        members.failed[fault.node] = fault.reason
    members.failed |= {node: wish.reason for node, wish in job.to_evict.items() if node in members.nodes}
    members.failed |= responses.at_a_stop(job)
    for look in (arithmetic_checks.at_a_stop, link_actions.at_a_stop):
        if not returning.awaited(job):  # ranks of nodes that came back meanwhile train on
            members.failed |= await look(job)
    members.failed |= repeat_faults.at_a_stop(job)
    if fault is not None and arithmetic_checks.explains(job, fault):
        _count_unexplained(job)
    if _is_to_be_replayed(job):
        members.failed |= await replays.at_a_stop(job)
        if members.failed:
            job.restarts.unexplained = 0
    job.keep_restarts()
    job.write("self_check", {**report.detail(), "level": level, "why_this_level": why_level})
    why = _stuck(job)
    if why:
        job.failure = why
        return Event.EXHAUSTED
    if thorough is None and not returning.awaited(job):
        cut = await standby_care.check_before_promotion(job)
        await _until_settled(job, lambda: [node for node in nodes if node.name in cut])
    if resume_nodes.given_up(job):
        return await check(job)
    if job.recovery is not None:
        job.recovery.checked_ns = job.now_ns()
    await _back_off(job)
    elasticity.after_stop(job)
    if away_state.awaited(job) or returning.awaited(job):
        return Event.SHORT
    return Event.QUORUM if members.enough(job.resizing.size, forming=False) else Event.SHORT


async def _failed_once_back(
    job: JobState, nodes: Sequence[Node], unreached: Container[str]
) -> dict[str, str]:
    """Nodes that lost their connection while they were checked are lost, or they are back and checked again.

    A lost node is no failed one: its machine is not held responsible when it returns.
    """
    failed: dict[str, str] = {}
    for _ in range(BACK_TRIES):
        cut = [node for node in nodes if node.name in unreached]
        await _until_settled(job, cut.copy)
        trains = returning.still_running(job) if returning.awaited(job) else []
        back = [node for node in cut if node.usable and node.leaving is None and node not in trains]
        if not back:
            break
        report = await checks.run(back, job.services.policy, job.next_id, level=None)
        failed |= report.failed
        unreached = report.unreached
        await asyncio.sleep(POLL_S)  # a closed connection may be noted only now
    return failed


async def _back_off(job: JobState) -> None:
    """Wait before the next launch where attempts fail again and again. Who ends the job ends the wait.

    So do nodes that come back with ranks which nobody has ended: nothing may have to be launched.
    """
    _count_loss(job)
    while job.launches_in_s() > 0 and not job.ended_by and not returning.awaited(job):
        await asyncio.sleep(POLL_S)


def _count_loss(job: JobState) -> None:
    """Count a lost node, once, and let the next launch wait where nodes are lost again and again."""
    recovery = job.recovery
    if recovery is None or recovery.loss_counted or recovery.rolled_back or returning.awaited(job):
        return
    if recovery.fault.event is Event.NODE_LOST:
        recovery.loss_counted = recovery.fault.node
        wait_s = job.back_off.lost(recovery.fault.node, step=recovery.from_step, ran_s=_ran_s(job, recovery))
        recovery.launch_at_s = max(recovery.launch_at_s, recovery.began_s + wait_s)


def _stays(job: JobState, fault: Fault) -> bool:
    """Whether the node stays that the job was to be taken off: who was to take its place failed its check."""
    failed, active = job.members.failed, job.members.active()
    left = [n for n in active if n.name != fault.node and n.name not in failed]
    spare = [n for n in job.members.standbys() if n.name not in failed]
    moved = fault.cause == "migration" and fault.node not in failed
    return moved and not job.resizing.fit(len(left) + len(spare))


def _by_policy(fault: Fault) -> bool:
    """Whether the policy table wants the node of this fault to go."""
    return fault.event is Event.EVICT and fault.actor == "controller"


def _check_level(job: JobState, fault: Fault | None) -> tuple[str, str]:
    """How thoroughly nodes are checked, and why. "": each node by itself.

    The ladder is that of ByteRobust (arXiv 2509.16293, section 4): trouble that a machine is sure of evicts
    without a diagnosis. A fault that names nobody asks for checks. The second time it asks for the full ones,
    and for a replay where they find nobody.
    """
    if fault is not None and fault.event is Event.RESUME:
        return "", "the job was pre-empted, nothing was wrong"
    if fault is not None and fault.event is Event.UPDATE:
        return "", "the program is updated, nothing was wrong"
    if job.recovery is not None and job.recovery.rolled_back:
        return "", "an update of the program was at fault"
    if fault is not None and fault.event is Event.GROW:
        return "", "the job changes its size, nothing was wrong"
    if fault is None or (fault.event is Event.RANK_FAILED and job.restarts.used <= 1):
        return "", "a rank ended for the first time" if fault else ""
    if _by_policy(fault):
        return "", "the machine itself reported the trouble"
    level = job.services.policy.check_level
    if fault.node or fault.rank >= 0:
        return level, "more than one process is in doubt"
    _count_unexplained(job)
    if job.restarts.unexplained > 1:
        return "full", "again a fault that names nobody"
    return level, "a fault that names nobody"


def _count_unexplained(job: JobState) -> None:
    """Count this fault, once, as one that names nobody."""
    recovery = job.recovery
    if recovery is not None and not recovery.unexplained:
        recovery.unexplained = True
        job.restarts.count_unexplained(job.services.clock.monotonic_s())


def _is_to_be_replayed(job: JobState) -> bool:
    """Whether this is again a fault that names nobody, and checks found nobody."""
    recovery = job.recovery
    if recovery is None or not recovery.unexplained or recovery.replayed or job.members.failed:
        return False
    if returning.awaited(job):
        return False
    recovery.replayed = job.restarts.unexplained > 1
    return recovery.replayed


def _hopeless(job: JobState) -> str:
    """Why another attempt would be pointless, "" where it may help."""
    recovery, restarts = job.recovery, job.restarts
    if recovery is None or recovery.rolled_back or recovery.fault.event not in COUNTED:
        return ""
    if not recovery.restart_counted:
        recovery.restart_counted = True
        restarts.used += not elasticity.may_be_at_fault(job, recovery.fault)
        recovery.launch_at_s = job.services.clock.monotonic_s() + _wait_s(job, recovery)
    fault = recovery.fault
    if fault.exit_code == USAGE_EXIT and not elasticity.is_at_fault(job, fault):
        return fault.reason
    if restarts.used > job.max_restarts:
        return f"{fault.reason}; {_used_up(job.max_restarts)}"
    return ""


def _used_up(restarts: int) -> str:
    """Why a job that had so many restarts gets no other one.

    >>> _used_up(0), _used_up(1), _used_up(3)
    ('no restart is allowed', 'its one restart is used up', '3 restarts are used up')
    """
    if restarts < 1:
        return "no restart is allowed"
    return "its one restart is used up" if restarts == 1 else f"{restarts} restarts are used up"


def _stuck(job: JobState) -> str:
    """Why another attempt on the same nodes is pointless, "" where it may help or a node is replaced."""
    recovery, idle = job.recovery, job.restarts.idle
    if returning.awaited(job):
        return ""
    if recovery is None or not repeat_faults.counts(job, recovery.fault):
        return ""
    fault, failed = recovery.fault, job.members.failed
    if fault.node in failed or any(node.name in failed for node in job.members.active()):
        return ""
    if fault.event is Event.NODE_LOST:  # nodes that are lost one after the other are no reason to give up
        idle = job.restarts.idle_lost[fault.node]
    if idle < job.services.policy.no_progress_attempts or elasticity.is_at_fault(job, fault):
        return ""
    return f"{fault.reason}; {idle} attempts in a row completed no step"


def _wait_s(job: JobState, recovery: Recovery) -> float:
    """How long the next launch has to wait. One that loads another checkpoint than the last one need not."""
    if recovery.fault.event is Event.START_FAILED and job.restarts.unrestorable:
        return 0.0
    return job.back_off.failed(step=recovery.from_step, ran_s=_ran_s(job, recovery))


def _ran_s(job: JobState, recovery: Recovery) -> float:
    """How long the attempt ran until its fault, 0 where it did not do a step."""
    attempt = job.attempt
    return (recovery.fault.detected_ns - attempt.started_ns) / 1e9 if attempt.first_step_done else 0.0


async def replace(job: JobState) -> Outcome:
    """Evict nodes that failed a check, fill the world from the standbys."""
    members = job.members
    for name, reason in list(members.failed.items()):
        await _evict(job, members.nodes[name], reason)
    members.failed.clear()
    if not members.world and not members.survived():
        job.restarts = Restarts()
        job.first_attempt = -1
        updating.forget_another_run(job)
        job.hangs.forget_another_run()
        another_run.forget_own_checkpoints(job)
    if job.phase is Phase.STARTING:
        elasticity.take_size(job)
    if job.phase is Phase.WAITING and (away_state.awaited(job) or returning.awaited(job)):
        return None  # who comes back takes its place again, with the state that it has in memory
    before = members.active()
    for promotion in members.fill_world(job.resizing.size, job.resizing.sizes, job.back_off.losses):
        detail = {"node_rank": promotion.node_rank, "replaces": promotion.replaces}
        job.write("standby_promoted", detail, node=promotion.node)
    if not resume_nodes.awaits_image(job):
        members.chosen = None
    left_out = [node for node in before if node.state is NodeState.STANDBY]
    await _end_parked(job, left_out, "the job goes on without this node")
    if job.recovery is not None:
        job.recovery.replaced_ns = job.now_ns()
    return None


async def _end_parked(job: JobState, nodes: Iterable[Node], reason: str) -> None:
    """End processes that survived an attempt and are in none now. Their devices are free after that."""
    timeout_s = job.services.policy.reply_timeout_s
    usable = [node for node in nodes if node.usable]
    await asyncio.gather(*(job.ask(n, Stop(id=job.next_id(), reason=reason), timeout_s) for n in usable))


async def _evict(job: JobState, node: Node, reason: str) -> None:
    """Evict a node that failed a check, if the policy allows it. It always allows what a person wants."""
    fault = job.to_evict.get(node.name) or (job.recovery.fault if job.recovery else None)
    wanted = fault is not None and fault.event is Event.EVICT and fault.node == node.name
    if fault is not None and wanted and not _by_policy(fault):
        await dismiss_node(job, node, reason, fault.actor, drain=fault.drain)
        return
    present, now_s = job.members.present(), job.services.clock.monotonic_s()
    healthy = sum(n.name not in job.members.failed for n in present)  # those evicted before are in both
    refusal = job.budget.refusal(now_s=now_s, known=len(present), healthy=healthy)
    machines = {v.node for v in job.hardware.evicting()} | job.arithmetic.wrong.keys()
    replayed = job.recovery.replay_named if job.recovery is not None else frozenset()
    if job.recovery is not None and job.recovery.users_own and node.name not in machines | replayed:
        refusal = "an exception of the user's own code never evicts a node"
    if refusal:
        job.write("eviction_refused", {"reason": reason, "why_not": refusal}, node=node.name)
        return
    node.go(NodeState.EVICTED, reason, job.now_ns())
    node.evicted_by = "controller"
    job.remember(node)  # together with the budget: a new hub must neither forget it nor evict it once more
    await job.spend_eviction()
    await dismiss_node(job, node, reason, "controller", drain=not job.services.policy.observe_only)


async def dismiss_node(job: JobState, node: Node, reason: str, actor: str, *, drain: bool = False) -> None:
    """Send one node away for good and write down who wanted it and why.

    With `drain` the cluster's scheduler is told to start nothing else there.
    """
    node.go(NodeState.EVICTED, reason, job.now_ns())
    node.evicted_by = actor
    job.to_evict.pop(node.name, None)
    job.remember(node)
    job.write("evict", {"reason": reason, "dry_run": False}, node=node.name, actor=actor)
    if drain:
        scheduling.drain(job, node.name, reason)
    await job.ask(node, Leave(id=job.next_id(), reason=f"evicted: {reason}", exit_code=1))


async def clear_node(job: JobState, node: Node) -> None:
    """End ranks that a node kept running while it counted as lost. It is a standby from now on."""
    if job.services.policy.observe_only:
        job.write("would", {"event": "stop", "reason": "another node has its place"}, node=node.name)
        return
    await job.ask(node, Stop(id=job.next_id(), reason="another node has replaced it"))


async def rest(job: JobState) -> Outcome:
    """The job is pre-empted. One that waited for nodes may have parked processes.

    Where it is resumed meanwhile, what belongs to the resume stays.
    """
    move = job.move
    if job.recovery is not None and not job.recovery.none_kept:
        present = [node for node in job.members.present() if not late_ranks.are_on(job, node)]
        await _end_parked(job, present, "pre-empted")
    if job.move is move:
        await moving.rest(job)
    return None


async def ask_for_nodes(job: JobState) -> Outcome:
    """Write down how many nodes are missing."""
    job.write("waiting", {"missing_nodes": job.resizing.size - len(job.members.active())})
    return None


async def dismiss(job: JobState) -> Outcome:
    """The job is over: every agent that is still there leaves with the job's exit code."""
    kind, reason, code = ending(job)
    if not job.ended_by:
        await arithmetic_checks.at_a_stop(job)
    job.write(kind, {"reason": reason, "exit_code": code})
    if job.phase is Phase.FINISHED:
        job.own_checkpoints.finished()
    present = job.members.present()
    staying = [n for n in present if n.connected and n.leaving is None]
    unfinished = job.phase is Phase.FAILED and not job.ends_at_once
    leave = (
        job.ask(n, Leave(id=job.next_id(), reason=reason, exit_code=code, persist=unfinished))
        for n in staying
    )
    await asyncio.gather(*leave)
    for node in present:
        node.state = NodeState.LEFT
    job.services.memory.forget(job.name, code)
    return None


def ending(job: JobState) -> tuple[str, str, int]:
    """Kind of event, reason and exit code of a job that is over."""
    if job.ended_by:
        return "job_ended", f"job ended by {job.ended_by}", 128 + Signals.__members__.get(job.ended_by, 0)
    if job.phase is Phase.FAILED:
        failures = [*job.attempt.left_alone, *([job.recovery.fault] if job.recovery else [])]
        code = failures[0].exit_code if failures else 1
        return "job_failed", f"job failed: {job.failure}", code or 1
    return "job_finished", "job finished", 0


async def read_stacks(
    job: JobState, timeout_s: float, *, first_only: bool, ranks: Sequence[int] = ()
) -> list[Reply]:
    """Ask connected nodes of the world where their ranks' code stands. One reply for each node.

    With `ranks` only the nodes of these ranks are asked, and only for these.
    """

    def command() -> DumpStacks:
        return DumpStacks(id=job.next_id(), timeout_s=timeout_s, first_only=first_only, ranks=tuple(ranks))

    patience_s = timeout_s + STACKS_MARGIN_S
    return await asyncio.gather(*(job.ask(n, command(), patience_s) for n in _nodes_of(job, ranks)))


async def read_ras(job: JobState, node: str, limit_s: float) -> Reply | None:
    """Ask one node for what NCCL RAS says of the whole job, None where the node cannot be asked."""
    asked = next((n for n in job.members.active() if n.name == node), None)
    if asked is None:
        return None
    return await job.ask(asked, ReadRas(id=job.next_id(), limit_s=limit_s), limit_s + STACKS_MARGIN_S)


async def profile(
    job: JobState, *, first_step: int, steps: int, ranks: Sequence[int], timeout_s: float
) -> list[Reply]:
    """Ask the nodes of these ranks, or of all, for a profile of the same steps. One reply for each node."""

    def command() -> Profile:
        return Profile(
            id=job.next_id(),
            first_step=first_step,
            steps=steps,
            timeout_s=timeout_s,
            ranks=tuple(ranks),
        )

    patience_s = timeout_s + PROFILE_MARGIN_S
    return await asyncio.gather(*(job.ask(n, command(), patience_s) for n in _nodes_of(job, ranks)))


def _nodes_of(job: JobState, ranks: Sequence[int]) -> list[Node]:
    """Nodes of the world that can be asked and run one of these ranks, or any where `ranks` is empty."""
    wanted = {m.node for m in job.members.world if not ranks or set(ranks).intersection(m.ranks)}
    return [n for n in job.members.active() if n.name in wanted]


_ACTIONS: Mapping[Action, Callable[[JobState], Awaitable[Outcome]]] = {
    Action.SUSPEND: suspend,
    Action.CHECK: check,
    Action.REPLACE: replace,
    Action.LAUNCH: launch,
    Action.ASK_FOR_NODES: ask_for_nodes,
    Action.REST: rest,
    Action.DISMISS: dismiss,
}
