"""What the clock says about the nodes of a job: which are lost, and whether enough of them have gathered."""

from __future__ import annotations

from collections.abc import Iterator

from pulsetrain.recovery import away_state, elasticity, returning
from pulsetrain.recovery.membership import Membership
from pulsetrain.recovery.nodes import GONE, Node
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.silence import Silence
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Event, Phase

STORAGE_WAIT_S = 300.0
"""after which a job begins without knowing what storage holds"""
MOVING_GRACE_S = 2.5
"""For a connection that closed while the job trains on: a firewall may have reset it."""


def has_launched(job: JobState) -> bool:
    """Whether the nodes of the world were told to run ranks, and not to end them."""
    return job.phase in (Phase.STARTING, Phase.RUNNING) and job.attempt.image is None


def may_hang(job: JobState) -> bool:
    """Whether a hang may still stop the job. What is open once its ranks were told to end is from before."""
    return job.phase in (Phase.STARTING, Phase.RUNNING) and not job.attempt.stopped


def is_starting(job: JobState) -> bool:
    """Whether the job forms, or its attempt has not done a step."""
    if job.phase in (Phase.STARTING, Phase.RUNNING):
        return not job.attempt.first_step_done
    return job.phase is Phase.FORMING


def overdue(
    members: Membership,
    policy: Policy,
    now_s: float,
    *,
    starting: bool = False,
    running: bool = False,
    launched: bool = False,
) -> Iterator[tuple[Node, str]]:
    """Nodes that count as lost now, each with the reason. `starting`: the job has done no step yet.

    `running`: its ranks train. While those of other nodes move, a connection that closed is no lost node yet.
    `launched`: its nodes were told to run ranks. Where nobody is heard then, it is rather the hub that is cut
    off, and a connection that closed is no lost node either.
    """
    silence = Silence(members, policy, now_s, starting=starting)
    cut_off = members.cut_off.look(nobody=launched and silence.nobody_heard, now_s=now_s)
    told_s = [n.leaving_s for n in members.present() if n.leaving is not None and n.leaving.signal]
    spreads = bool(told_s) and now_s - max(told_s) <= SPREAD_S
    for node in silence.doubtful():
        if spreads and node.leaving is not None and node.leaving.signal:
            continue
        if node.state in GONE or (cut_off and node.leaving is None and _may_return(silence)):
            continue
        reason = _overdue(node, silence, policy, now_s, running=running)
        if reason:
            yield node, reason


SPREAD_S = 5.0
"""A signal to all nodes may reach them one after the other. So long after the last one that said so, ranks of
others are not ended for a node that leaves: theirs may be to save when it comes."""


def _may_return(silence: Silence) -> bool:
    """Whether it is too early to give up nodes that went silent all together.

    They are given up at one look, though their last heartbeats did not come at the same moment. Else the
    first one that is lost would end the ranks of the others.
    """
    return not (silence.nobody_heard and silence.all_too_long)


def _overdue(node: Node, silence: Silence, policy: Policy, now_s: float, *, running: bool) -> str:
    grace_s = policy.reconnect_grace_s
    if node.leaving is not None:
        ended = f"its agent ended: {node.leaving.reason}"
        return ended if now_s - node.leaving_s > grace_s else ""
    if node.closed_s is not None:
        moves = running and silence.others_move(node)
        grace_s = max(grace_s, MOVING_GRACE_S) if moves else grace_s
        late = now_s - node.closed_s > grace_s
        return f"connection closed and not back in {grace_s:g} s" if late else ""
    return silence.verdict(node) if node.connected else ""


def waits_for_storage(job: JobState) -> bool:
    """Whether a job's first launch must wait, because its checkpoint may be in storage that was not read.

    Without it training would begin anew. A storage that never answers does not hold the job up for ever.
    """
    if job.members.world or not job.members.waits_for_storage():
        return False
    return job.in_phase_s() < STORAGE_WAIT_S


def gathered(job: JobState, *, quiet_s: float) -> Event | None:
    """Whether a job can begin: `ADOPTED` for a running attempt, `QUORUM` to launch one, None to wait.

    `quiet_s` is the time since a node joined last.
    """
    policy = job.services.policy
    if job.phase not in (Phase.FORMING, Phase.WAITING):
        return None
    if job.phase is Phase.WAITING and returning.awaited(job):
        return Event.ADOPTED if returning.all_back(job) else None
    if job.phase is Phase.FORMING and job.members.restoring():
        return None
    running = [n for n in job.members.newest_running() if n.usable]
    if job.phase is Phase.FORMING and running:
        patience_s = policy.settle_s if job.members.all_back() else policy.adopt_timeout_s
        enough = len(running) >= job.members.attempt_nodes(job.nnodes) or quiet_s > patience_s
        return Event.ADOPTED if enough else None
    if quiet_s <= policy.settle_s or (job.phase is Phase.FORMING and waits_for_storage(job)):
        return None
    if job.phase is Phase.FORMING and elasticity.awaits_world(job, quiet_s):
        return None
    if not elasticity.size_to_begin(job, quiet_s=quiet_s) or away_state.awaited(job):
        return None
    return Event.QUORUM
