"""The nodes on which a person wants a pre-empted job to go on.

They are chosen for one launch. Where one of them fails its check, the job goes on where it can, as after any
fault. What its ranks have saved is in the memory of the nodes that they leave, so these stay and give it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pulsetrain.recovery import standby_care
from pulsetrain.recovery.agent_process import AgentProcess
from pulsetrain.recovery.move_request import Image, Move, MoveRequest
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase


def refusal(job: JobState, request: MoveRequest) -> str:
    """Why a job cannot go on as asked for, "" where it can. It names all nodes that are at fault."""
    names, image = request.nodes, waiting_image(job, job.move)
    away = image is not None and _is_away(job, image.node)
    if image is not None and away and not (job.can_resume() or request.lose_progress):
        why = f"node {image.node!r} is not connected: nothing else has its state"
        return f"{_dumped(job, image)}, and {why} (begin anew: --lose-progress)"
    if not names:
        return ""
    if job.phase is not Phase.PREEMPTED:
        return f"job {job.name!r} is {job.phase}: only a job that is pre-empted goes on on other nodes"
    if job.services.pooled:
        return f"the pool chooses the nodes of job {job.name!r}: leave the nodes out"
    missing = [why for name in names if (why := _why_away(job, name))]
    if missing:
        here = sorted(name for name in job.members.nodes if not _why_away(job, name))
        return f"{'; '.join(missing)}; job {job.name!r} can use: {', '.join(here) or 'none'}"
    size = job.resizing.size
    if len(names) != size:
        return f"job {job.name!r} needs {size} nodes, and {len(names)} are named: {', '.join(names)}"
    return "" if away and request.lose_progress else _image_elsewhere(job, names)


def _why_away(job: JobState, name: str) -> str:
    node = job.members.nodes.get(name)
    if node is None:
        return f"node {name!r} has not joined"
    if node.state is NodeState.EVICTED:
        return f"node {name!r} was evicted: {node.reason}"
    if not node.usable or node.leaving is not None:
        return f"node {name!r} is not connected"
    if node.cordon not in ("", standby_care.NEW):
        return f"node {name!r} is under a cordon: {node.cordon}"
    return ""


def _image_elsewhere(job: JobState, names: Sequence[str]) -> str:
    """Processes are restored on the host that has dumped them."""
    image = waiting_image(job, job.move)
    if image is None or list(names) == [image.node]:
        return ""
    return f"{_dumped(job, image)}, and can go on only there, not on: {', '.join(names)}"


def _dumped(job: JobState, image: Image) -> str:
    return f"the processes of job {job.name!r} were dumped on node {image.node!r} after step {image.step}"


def _is_away(job: JobState, name: str) -> bool:
    node = job.members.nodes.get(name)
    return node is None or not node.usable or node.leaving is not None


def world_before(job: JobState) -> tuple[str, ...]:
    """The nodes that ran the job last, by node rank. () for a job that was not launched yet."""
    if job.members.world:
        return tuple(member.node for member in job.members.world)
    return tuple(job.members.before.nodes) if job.members.before is not None else ()


def agents_before(job: JobState) -> tuple[AgentProcess, ...]:
    """The agents of the newest attempt when it was launched. Those of its nodes may be others by now."""
    world = job.services.memory.recall(job.name).world
    return tuple(agent for _, agent in world.agents()) if world is not None else ()


def waiting_image(job: JobState, move: Move | None) -> Image | None:
    """The processes in which a pre-empted job is to go on, None where it has none."""
    image = move.image if move is not None and job.phase is Phase.PREEMPTED else None
    return image if image is not None and image.state == "taken" else None


def choose(job: JobState, names: Sequence[str], image: Image | None) -> None:
    """The next launch is on these nodes. Without names, on those that the job has, and on standbys.

    Processes that were dumped go on on their node alone, also where the job could use others by now.
    """
    if image is not None and not _is_away(job, image.node):
        names, job.resizing.size = (image.node,), 1
    job.members.chosen = frozenset(names) or None


async def checked_first(job: JobState) -> None:
    """Run the light check on chosen nodes that have not passed one since they joined."""
    chosen = job.members.chosen or ()
    new = [n for n in job.members.reserves() if n.name in chosen and n.cordon == standby_care.NEW]
    if new:
        await standby_care.check(job, new)


def may_be_checked(job: JobState, node: Node) -> bool:
    """Whether the check before a launch may use a node. The devices of one that was not chosen,
    or that the pool has not given, may be somebody else's by now."""
    return job.members.may_use(node)


def has_only_image(job: JobState) -> bool:
    """Whether a job that is resumed would lose all its steps without the processes that were dumped."""
    recovery = job.recovery
    return recovery is not None and not (job.can_resume() or recovery.lose_progress)


def awaits_image(job: JobState) -> bool:
    """Whether the next launch waits for the node on which the job's processes were dumped."""
    return job.recovery is not None and job.recovery.image is not None and has_only_image(job)


def given_up(job: JobState) -> bool:
    """Whether the chosen nodes do not suffice any more. Then the choice is dropped, and written down.

    It is not where nothing but processes that were dumped has the job's state: the job waits for their node.
    """
    members = job.members
    if members.chosen is None or members.enough(job.resizing.size, forming=False):
        return False
    why_not = {name: why for name in sorted(members.chosen) if (why := _why_failed(job, name))}
    if awaits_image(job):
        job.write("resume_waits", {"nodes": sorted(members.chosen), "why_not": why_not})
        return False
    job.write("resume_elsewhere", {"nodes": sorted(members.chosen), "why_not": why_not})
    members.chosen = None
    if job.recovery is None or job.recovery.image is None:  # else it still waits to go on from that
        job.services.memory.preemption(job.name, None)
    return True


def _why_failed(job: JobState, name: str) -> str:
    return job.members.failed.get(name, "") or _why_away(job, name)
