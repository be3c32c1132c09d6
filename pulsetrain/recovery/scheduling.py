"""What a job asks of the cluster's scheduler: to drain nodes that it evicted, and for nodes that it lacks.

Nothing here waits: a scheduler that is slow, or that refuses, never stops a recovery.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pulsetrain.recovery import returning
from pulsetrain.recovery.nodes import GONE, Node
from pulsetrain.recovery.scheduler import Answer, NodeRequest, Scheduler, What
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase


def drain(job: JobState, node: str, reason: str) -> None:
    """Nothing new is to be started on a node that was evicted."""
    scheduler = job.services.scheduler.scheduler
    _begin(job, What.DRAIN, partial(scheduler.drain, node, reason, job=job.name), node)


def give_back(job: JobState, node: str) -> None:
    """A node that was evicted has served its probation."""
    scheduler = job.services.scheduler.scheduler
    _begin(job, What.GIVE_BACK, partial(scheduler.give_back, node), node)


def look(job: JobState) -> None:
    """Ask for the nodes that the job lacks, and that were not asked for yet."""
    requests, asked = job.services.scheduler, job.replacements
    if not requests.replaces or job.members.any_leaving():
        return
    if job.phase is Phase.WAITING and not job.members.present():
        return  # all agents went at once, or ended with the job, and the hub did not hear why
    now_s = job.services.clock.monotonic_s()
    asked.expire(now_s, requests.config.patience_s)
    missing = _missing(job)
    for number in asked.again(now_s, missing):
        _replace(job, number, again=True)
    for _ in range(missing - len(asked.pending_s)):
        if now_s < asked.not_before_s or _refused(job):
            return
        number = asked.asked(now_s, job.now_ns())
        job.keep_replacements()
        _replace(job, number)


def _replace(job: JobState, number: int, *, again: bool = False) -> None:
    scheduler, sizes = job.services.scheduler.scheduler, job.resizing.sizes
    evicted = sorted(name for name, memory in job.remembered.items() if memory.evicted)
    request = NodeRequest(
        job=job.name,
        nnodes=sizes.most,
        least=sizes.least,
        exclude=tuple(evicted),
        number=number,
        again=again,
    )
    job.services.background.once(f"scheduler {What.REPLACE}", _ask_for_node(job, scheduler, request))


def would(job: JobState, node: str, *, drained: bool) -> list[str]:
    """What the scheduler would be asked for if `node` went."""
    requests = job.services.scheduler
    name = requests.scheduler.name
    lines = [f"drain {node} in {name}"] if name and drained and node else []
    wanted = 1 + requests.config.standbys
    if requests.replaces and len([n for n in _spare(job) if n.name != node]) < wanted:
        lines.append(f"submit a replacement to {name}")
    return lines


def _missing(job: JobState) -> int:
    """How many nodes the job lacks: those it cannot run without, after a recovery also its standbys."""
    if job.phase is not Phase.WAITING and not (job.phase is Phase.RUNNING and job.history):
        return 0
    if returning.may_come(job):
        return 0
    there = {node.name for node in job.members.world_nodes() if node.state not in GONE}
    working = [m for m in job.members.world if m.node in there or job.has_finished(m.node)]
    standbys = job.services.scheduler.config.standbys
    wanted = job.resizing.fit(job.nnodes) or job.nnodes
    return wanted + standbys - len(working) - len(_spare(job))


def _spare(job: JobState) -> list[Node]:
    """Standbys that can be promoted, or that have only just joined."""
    reserves = job.members.reserves()
    return [n for n in reserves if not n.cordon or not n.probation_s]


def _refused(job: JobState) -> bool:
    """Whether no more may be asked for in this hour, or nothing may be done. It is told once an attempt."""
    config, asked = job.services.scheduler.config, job.replacements
    observing = job.services.policy.observe_only
    if not observing and len(asked.hour_s) < config.replacements_per_hour:
        return False
    if asked.told_in != job.attempt.number:
        asked.told_in = job.attempt.number
        why_not = f"{config.replacements_per_hour} replacements an hour are used up"
        if observing:
            job.write("would", {"event": "replacement", "scheduler": would(job, "", drained=False)})
        else:
            job.write("replacement_refused", {"why_not": why_not})
    return True


_EVENTS = {What.DRAIN: "drained", What.GIVE_BACK: "given_back", What.REPLACE: "replacement_requested"}


def _begin(job: JobState, what: What, call: Callable[[], str], node: str) -> None:
    if job.services.scheduler.scheduler.name:
        job.services.background.once(f"scheduler {what}", _ask_of_node(job, what, call, node))


async def _ask_for_node(job: JobState, scheduler: Scheduler, request: NodeRequest) -> None:
    answer = await _ask(job, What.REPLACE, partial(scheduler.replace, request))
    asked = job.replacements
    retry_s = job.services.clock.monotonic_s() + job.services.scheduler.config.retry_s
    if not answer.error:
        asked.done(request.number)
    elif answer.may_be_done:
        asked.unanswered(request.number, retry_s)
    else:
        asked.failed(request.number, retry_s)
    if job.phase not in (Phase.FINISHED, Phase.FAILED):  # else nothing of it is kept any more
        job.keep_replacements()


async def _ask_of_node(job: JobState, what: What, call: Callable[[], str], node: str) -> None:
    await _ask(job, what, call, node)


async def _ask(job: JobState, what: What, call: Callable[[], str], node: str = "") -> Answer:
    """Ask, and write down what became of it."""
    requests = job.services.scheduler
    answer = await requests.ask(what, call)
    detail = {"scheduler": requests.scheduler.name}
    if not answer.error:
        job.write(_EVENTS[what], {**detail, "answer": answer.said}, node=node)
    else:
        job.write("scheduler_failed", {**detail, "what": str(what), "error": answer.error}, node=node)
    return answer
