"""Kubernetes as the scheduler: cordons nodes, evicts pods, makes pods that replace lost ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.kubernetes.api import KubernetesApi
from pulsetrain.hub.kubernetes.errors import Conflict, NotFound, Throttled
from pulsetrain.hub.kubernetes.job_spec import job_spec
from pulsetrain.hub.kubernetes.objects import (
    JOB_LABEL,
    JOBS,
    NODES,
    PODS,
    REASON,
    SINCE,
    TAINT,
    annotations_of,
    checked_name,
    labels_of,
    name_of,
)
from pulsetrain.hub.kubernetes.plan import time_s
from pulsetrain.hub.kubernetes.pods import ending, over, pod_of
from pulsetrain.recovery.scheduler import NodeRequest, SchedulerConfig, Unanswered

REASON_CHARACTERS = 150
NUMBERS = 0xFFFFFF
"""So much of a request's number is in its pod's name. It counts seconds, so it is the same after 194 days."""
CORDON = "node.kubernetes.io/unschedulable"
"""Taint that the cluster derives from a cordon."""
SKEW_S = 300.0
"""So far the clocks of hub and cluster may be apart."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 5.0


class KubernetesScheduler:
    """See `Scheduler`. A node of a job is the Kubernetes node of that name."""

    name = "Kubernetes"

    def __init__(
        self,
        config: SchedulerConfig,
        api: KubernetesApi,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config, self._api = config, api
        self._clock, self._sleep = clock or SystemClock(), sleep

    def drain(self, node: str, reason: str, *, job: str) -> str:
        """See `Scheduler.drain`. The job's pods on the node are evicted, with respect to disruption budgets.

        One that a budget protects is tried again for `timeout_s`. Raises `UsageError` for a node without a
        pod of the job: an agent may say any name, and the cordon would take the node from others.
        """
        own = self._pods_on(checked_name(node), job)
        said = self._cordon(node, _one_line(reason))
        until_s = self._clock.monotonic_s() + self._config.timeout_s
        evicted = []
        for pod in own:
            if over(pod) or ending(pod):
                continue
            refusal = self._evict(name_of(pod), until_s)
            if refusal:
                raise Unavailable(f"{said}, but pod {name_of(pod)} is not evicted: {refusal}")
            evicted.append(name_of(pod))
        return f"{said}, evicted: {', '.join(evicted)}" if evicted else said

    def give_back(self, node: str) -> str:
        """See `Scheduler.give_back`. A cordon that somebody has put there since then stays."""
        said = ""

        def patch(item: JsonObject) -> JsonObject | None:
            nonlocal said
            said = "was not cordoned any more"
            if _is_cordoned(item):
                said = "is not cordoned any more" if _is_ours(item) else "stays cordoned: somebody else did"
            return _uncordoned(item)

        if self._api.change(NODES, checked_name(node), patch):
            return f"{node} {said}"
        return f"{node} was not cordoned by Pulsetrain"

    def replace(self, request: NodeRequest) -> str:
        """See `Scheduler.replace`. The pod is made of the PulsetrainJob's template. The job owns it."""
        item = self._api.get(JOBS, request.job)
        if item is None:
            raise UsageError(
                f"job {request.job!r} has no PulsetrainJob in namespace {self._api.namespace}: "
                "there is nothing to make a pod of"
            )
        spec = job_spec(item)
        if spec.flag != request.flag:
            raise UsageError(f"PulsetrainJob {spec.name} is of {spec.flag} nodes, the job of {request.flag}")
        name = f"{spec.name}-r{request.number & NUMBERS:06x}"
        pod = pod_of(spec, name, standby=True, replacement=True, exclude=request.exclude)
        try:
            self._api.create(PODS, pod)
        except Throttled:
            raise
        except Unavailable as error:  # no answer, or a pod of this name is there
            if not (isinstance(error, Conflict) and self._exists(name)):
                raise Unanswered(str(error)) from error
        return f"pod {name}"

    def _exists(self, pod: str) -> bool:
        return bool(self._api.list(PODS, labels=JOB_LABEL, fields=f"metadata.name={pod}").items)

    def _pods_on(self, node: str, job: str) -> list[JsonObject]:
        """The job's pods on a node, also those that are over. Raises `UsageError` where it has none there.

        Pods of a job that is no PulsetrainJob may have no label. Then any pod without one may be its own.
        """
        pods = self._api.list(PODS, fields=f"spec.nodeName={node}").items
        own = [pod for pod in pods if labels_of(pod).get(JOB_LABEL) == job]
        unnamed = any(JOB_LABEL not in labels_of(pod) for pod in pods)
        if not own and not (unnamed and not self._has_labelled(job)):
            where = f"on node {node!r} in namespace {self._api.namespace}"
            raise UsageError(f"job {job!r} has no pod {where}: the node is not cordoned")
        return own

    def _has_labelled(self, job: str) -> bool:
        labelled = self._api.list(PODS, labels=JOB_LABEL).items
        return any(labels_of(pod).get(JOB_LABEL) == job for pod in labelled)

    def _cordon(self, node: str, reason: str) -> str:
        before, now = {"text": ""}, datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)

        def patch(item: JsonObject) -> JsonObject | None:
            before["text"] = annotations_of(item)[REASON] if _is_ours(item) else "somebody else did"
            return None if _is_cordoned(item) else _cordoned(item, reason, now)

        if self._api.change(NODES, node, patch):
            return f"{node} is cordoned: {reason}"
        return f"{node} was cordoned already: {before['text']}"

    def _evict(self, pod: str, until_s: float) -> str:
        """Try until it is evicted or gone. Returns why it is not, "" where it is."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                self._api.evict(pod)
            except NotFound:
                return ""
            except Throttled as error:
                wait_s = max(wait_s, min(error.retry_after_s, LONGEST_WAIT_S))
                if self._clock.monotonic_s() + wait_s > until_s:
                    return f"{error} (tried for {self._config.timeout_s:g} s)"
                self._sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            else:
                return ""


def _is_cordoned(item: JsonObject) -> bool:
    return item.get("spec", {}).get("unschedulable") is True


def _is_ours(item: JsonObject) -> bool:
    """Whether the cordon is the one of Pulsetrain. A person may have ended that one, and put another there.

    The cluster derives a taint from each cordon, and says when.
    """
    notes = annotations_of(item)
    since_s = time_s(str(notes.get(SINCE, "")))
    began_s = max((time_s(str(t.get("timeAdded"))) for t in _taints(item, CORDON)), default=0.0)
    anew = since_s > 0 and began_s > since_s + SKEW_S
    return _is_cordoned(item) and REASON in notes and not anew


def _cordoned(item: JsonObject, reason: str, now: datetime) -> JsonObject:
    """The patch that keeps pods away from a node, and says why."""
    notes = {REASON: reason, SINCE: now.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {"metadata": {"annotations": notes}, "spec": {"unschedulable": True, **_without_ours(item)}}


def _uncordoned(item: JsonObject) -> JsonObject | None:
    """The patch that takes back what is Pulsetrain's, None where nothing is."""
    if REASON not in annotations_of(item):
        return None
    spec = _without_ours(item) | ({"unschedulable": None} if _is_ours(item) else {})
    return {"metadata": {"annotations": {REASON: None, SINCE: None}}, **({"spec": spec} if spec else {})}


def _without_ours(item: JsonObject) -> JsonObject:
    """What changes in the spec so that the taint of an older hub goes."""
    if not _taints(item, TAINT):
        return {}
    return {"taints": [t for t in item["spec"]["taints"] if t.get("key") != TAINT]}


def _taints(item: JsonObject, key: str) -> list[JsonObject]:
    return [t for t in item.get("spec", {}).get("taints") or () if t.get("key") == key]


def _one_line(text: str) -> str:
    """`text` as a reason: one line of printable characters, and not long."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:REASON_CHARACTERS]
