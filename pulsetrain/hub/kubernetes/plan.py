"""What is to be done for a PulsetrainJob: which pods to make and to delete, and its status. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pulsetrain.core.json import JsonObject
from pulsetrain.hub.kubernetes.job_spec import JobSpec
from pulsetrain.hub.kubernetes.objects import labels_of, name_of
from pulsetrain.hub.kubernetes.pods import (
    REVISION_LABEL,
    agent_container,
    ending,
    is_replacement,
    node_of,
    over,
    pod_of,
    serves,
)

PENDING, RUNNING, SUSPENDED, FINISHED, FAILED = "Pending", "Running", "Suspended", "Finished", "Failed"
KEPT = 10
"""Ended pods beyond the size of a job that are kept for their output."""
TAKEN = (
    "hub {hub} has a job {job!r} already, with agents that are no pods of this PulsetrainJob; if another "
    "namespace has a PulsetrainJob of that name, rename one"
)
BRIEF_S = 600.0
STAMP_S = 1.0
"""Times of the API are of whole seconds, rounded down."""
FIRST_DELAY_S, LONGEST_DELAY_S = 10.0, 300.0


@dataclass(frozen=True, kw_only=True)
class HubView:
    """What the hub says of a job. `ended` is "finished", "failed", or "" while it goes on.

    `standbys` are nodes that nobody would miss: there are none unless it trains. `gone` are those that are
    lost or evicted, with the time since 1970. Their agents have not come back, but a newer pod may be on the
    same machine. `is_served`: agents of the job are connected, and it is not over.
    """

    ended: str = ""
    step: int = -1
    attempt: int = 0
    sentence: str = ""
    standbys: Collection[str] = ()
    is_served: bool = False
    gone: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Pods to make, names of pods to delete, and the status. After `wait_s` more is to be done, 0: no."""

    create: Sequence[JsonObject] = ()
    delete: Sequence[str] = ()
    status: Mapping[str, object] = field(default_factory=dict)
    wait_s: float = 0.0


def plan(
    spec: JobSpec, pods: Sequence[JsonObject], hub: HubView | None, *, known_phase: str, now_s: float
) -> Plan:
    """The plan for a job with these pods. `hub` is None where it does not know the job or does not answer.

    `known_phase` is that of the status. A job that has ended stays so. `now_s` is the time since 1970.
    """
    view = hub or HubView()
    phase = _phase(spec, pods, hub, known_phase)
    alive = [p for p in pods if serves(p)]
    ghosts = [p for p in alive if _is_ghost(p, view)]
    serving = [p for p in alive if p not in ghosts]
    create: list[JsonObject] = []
    wait_s = 0.0
    if phase in (FINISHED, FAILED, SUSPENDED):
        delete = [name_of(p) for p in alive if phase == SUSPENDED or not node_of(p)]
    else:
        delete = _surplus(spec, serving, view)
        if len(serving) >= spec.nnodes + spec.standbys:  # a hub that starts anew does not know who was lost
            delete += [name_of(p) for p in ghosts]
        wait_s = _delay_s(spec, pods, now_s)
        if wait_s <= 0 and not (hub is None and _may_have_finished(pods)):
            create = _missing(spec, pods, serving)
    delete += _old(spec, pods)
    status = _status(spec, pods, view, phase)
    if create and view.is_served and not pods:  # ours would join the job of somebody else
        create, status["message"] = [], TAKEN.format(hub=spec.hub, job=spec.name)
    return Plan(create=create, delete=delete, status=status, wait_s=max(0.0, wait_s))


def _phase(spec: JobSpec, pods: Sequence[JsonObject], hub: HubView | None, known: str) -> str:
    if known in (FINISHED, FAILED):
        return known
    if hub is not None and hub.ended:
        return FINISHED if hub.ended == "finished" else FAILED
    if hub is None and _all_succeeded(spec, pods):
        return FINISHED
    if spec.suspend:
        return SUSPENDED
    running = [p for p in pods if serves(p) and p.get("status", {}).get("phase") == "Running"]
    return RUNNING if len(running) >= spec.least else PENDING


def _all_succeeded(spec: JobSpec, pods: Sequence[JsonObject]) -> bool:
    """Whether the job has finished by its pods alone: as many as it needs succeeded, and none runs."""
    succeeded = sum(1 for p in pods if _succeeded(p))
    return succeeded >= spec.least and not any(serves(p) and node_of(p) for p in pods)


def _may_have_finished(pods: Sequence[JsonObject]) -> bool:
    """Whether some succeeded, and the rest may be about to."""
    return any(_succeeded(p) for p in pods) and any(serves(p) and node_of(p) for p in pods)


def _succeeded(pod: JsonObject) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Succeeded")


def _is_ghost(pod: JsonObject, view: HubView) -> bool:
    """Whether its agent is one that the hub lost or evicted. A pod that came to the node later is another."""
    return _bound_s(pod) + STAMP_S < view.gone.get(node_of(pod), 0.0)


def _missing(spec: JobSpec, pods: Sequence[JsonObject], serving: Sequence[JsonObject]) -> list[JsonObject]:
    """Pods to make. A job needs `nnodes` that do not stand by, or it would never form."""
    used, made = {name_of(p) for p in pods}, []
    names = (f"{spec.name}-{number}" for number in range(len(pods) + spec.nnodes + spec.standbys))
    free = [name for name in names if name not in used]
    workers = sum(1 for p in serving if "--standby" not in agent_container(p["spec"]).get("args", ()))
    for name in free[: max(0, spec.nnodes + spec.standbys - len(serving))]:
        made.append(pod_of(spec, name, standby=workers >= spec.nnodes))
        workers += 1
    return made


def _surplus(spec: JobSpec, serving: Sequence[JsonObject], view: HubView) -> list[str]:
    """Pods that are no longer needed: first those without a node, then those that stand by."""
    count = len(serving) - spec.nnodes - spec.standbys
    idle = [p for p in serving if not node_of(p) or node_of(p) in view.standbys]
    idle.sort(key=lambda p: (bool(node_of(p)), not is_replacement(p), name_of(p)))
    return [name_of(p) for p in idle[: max(0, count)]]


def _delay_s(spec: JobSpec, pods: Sequence[JsonObject], now_s: float) -> float:
    """For how long no pod is made, since as many as a whole job ended soon after they began."""
    began_s = [_created_s(p) for p in pods if over(p) and p["status"]["phase"] == "Failed"]
    brief_s = [time_s for time_s in began_s if now_s - time_s < BRIEF_S]
    rounds = len(brief_s) // (spec.nnodes + spec.standbys)
    if not rounds:
        return 0.0
    return max(brief_s) + min(FIRST_DELAY_S * 2.0**rounds, LONGEST_DELAY_S) - now_s


def _old(spec: JobSpec, pods: Sequence[JsonObject]) -> list[str]:
    """The oldest ended pods, where there are many."""
    ended = sorted((p for p in pods if over(p) and not ending(p)), key=lambda p: (_created_s(p), name_of(p)))
    return [name_of(p) for p in ended[: max(0, len(ended) - spec.nnodes - spec.standbys - KEPT)]]


def _status(spec: JobSpec, pods: Sequence[JsonObject], view: HubView, phase: str) -> dict[str, object]:
    serving = [p for p in pods if serves(p)]
    running = sum(1 for p in serving if p.get("status", {}).get("phase") == "Running")
    status: dict[str, object] = {
        "phase": phase,
        "message": view.sentence,
        "pods": {
            "running": running,
            "pending": len(serving) - running,
            "ended": sum(1 for p in pods if over(p)),
            "outdated": sum(1 for p in serving if labels_of(p).get(REVISION_LABEL) != spec.revision),
        },
    }
    return status | ({"step": view.step, "attempt": view.attempt} if view.step >= 0 else {})


def _created_s(pod: JsonObject) -> float:
    """When it was made, 0 where that is not known."""
    return time_s(str(pod["metadata"].get("creationTimestamp", "")))


def _bound_s(pod: JsonObject) -> float:
    """When it was given its node. It may have waited for one long after it was made."""
    conditions = pod.get("status", {}).get("conditions") or ()
    bound = [c.get("lastTransitionTime") for c in conditions if c.get("type") == "PodScheduled"]
    return max(_created_s(pod), *(time_s(str(text)) for text in bound), 0.0)


def time_s(text: str) -> float:
    """A time of the API in seconds since 1970, 0 for none.

    >>> time_s("1970-01-01T00:01:00Z")
    60.0
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
