"""The operator: makes what PulsetrainJobs ask for, and says in their status how they are."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Sequence

import structlog

from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.supervisor import LoopThread
from pulsetrain.hub.kubernetes.api import KubernetesApi
from pulsetrain.hub.kubernetes.errors import Conflict, NotFound
from pulsetrain.hub.kubernetes.hub_views import HubViews
from pulsetrain.hub.kubernetes.job_spec import JobSpec, job_spec
from pulsetrain.hub.kubernetes.objects import JOB_LABEL, JOBS, PODS, SERVICES, labels_of, name_of
from pulsetrain.hub.kubernetes.plan import PENDING, Plan, plan, time_s
from pulsetrain.hub.kubernetes.pods import serves, service_of
from pulsetrain.hub.kubernetes.reflector import Reflector
from pulsetrain.protocol.kubernetes_access import find_api

log = structlog.get_logger()

LOOK_S = 2.0
STATUS_S = 15.0
STALE_S = 60.0
WATCH_STALE_S = 600.0
SOON = ("phase", "pods", "attempt", "observedGeneration")
"""What is told at once. A step is told every `STATUS_S`."""


class Operator:
    """All PulsetrainJobs of one namespace. `turn` is one look at all of them.

    Nothing is kept here: what is to be done follows from the objects. Pods have names by number, so that a
    second operator, or one that reads an old list, makes no pod twice.
    """

    def __init__(self, api: KubernetesApi, views: HubViews, clock: Clock | None = None) -> None:
        self._api, self._views, self._clock = api, views, clock or SystemClock()
        self._look = LoopThread("reconcile", self.turn, stale_after_s=STALE_S, clock=clock)
        self.jobs = Reflector(api, JOBS, self._look.wake)
        self.pods = Reflector(api, PODS, self._look.wake, labels=JOB_LABEL)
        self._watches = [
            LoopThread(name, reflector.turn, stale_after_s=WATCH_STALE_S)
            for name, reflector in (("watch of jobs", self.jobs), ("watch of pods", self.pods))
        ]
        self._told_s: dict[str, float] = {}
        self._services: set[str] = set()  # ids of jobs whose service is there

    def start(self) -> None:
        """Watch and look until the process ends."""
        for loop in (*self._watches, self._look):
            loop.start()

    def stop(self) -> None:
        """End after the present look. Watches end with their connection."""
        self._look.stop()
        for loop in self._watches:
            loop.stop(timeout_s=0)

    def turn(self) -> float:
        """Look at every job. Returns when to look again."""
        if not (self.jobs.listed.is_set() and self.pods.listed.is_set()):
            return LOOK_S
        self._views.forget()
        for item in self.jobs.items():
            if item["metadata"].get("deletionTimestamp"):
                continue
            try:
                self._reconcile(item)
            except PulsetrainError as error:
                log.warning("job_not_reconciled", job=name_of(item), error=str(error))
            except (LookupError, TypeError, ValueError, AttributeError) as error:  # somebody's odd answer
                log.warning("job_not_reconciled", job=name_of(item), error=repr(error))
        return LOOK_S

    def _reconcile(self, item: JsonObject) -> None:
        try:
            spec = job_spec(item)
        except UsageError as error:
            self._tell(item, {"phase": PENDING, "message": str(error)})
            return
        todo = self._plan(spec, item)
        if todo.create and not all(map(serves, self._pods_of(spec))):
            self._views.forget()  # the job may have ended since the hub was asked: new pods would train again
            todo = self._plan(spec, item)
        self._serve(spec)
        for pod in todo.create:
            self._make(spec, pod)
        if todo.delete:
            self._views.forget()  # a job may need by now who was too many a moment ago
            still = self._plan(spec, item).delete
            for name in todo.delete:
                if name in still and self._api.delete(PODS, name):
                    log.info("pod_deleted", job=spec.name, pod=name)
        self._tell(item, todo.status)

    def _plan(self, spec: JobSpec, item: JsonObject) -> Plan:
        made_s = time_s(str(item["metadata"].get("creationTimestamp", "")))
        known = str((item.get("status") or {}).get("phase", ""))
        view = self._views.view(spec.hub, spec.name, made_s)
        return plan(spec, self._pods_of(spec), view, known_phase=known, now_s=self._clock.wall_ns() / 1e9)

    def _pods_of(self, spec: JobSpec) -> Sequence[JsonObject]:
        pods = [p for p in self.pods.items() if labels_of(p).get(JOB_LABEL) == spec.name]
        return [
            p for p in pods if any(o.get("uid") == spec.uid for o in p["metadata"].get("ownerReferences", ()))
        ]

    def _serve(self, spec: JobSpec) -> None:
        """The headless service."""
        if spec.uid in self._services:
            return
        with contextlib.suppress(Conflict):  # it is there
            self._api.create(SERVICES, service_of(spec))
        self._services.add(spec.uid)

    def _make(self, spec: JobSpec, pod: JsonObject) -> None:
        with contextlib.suppress(Conflict):  # made by a look that this list does not show yet
            self._api.create(PODS, pod)
            log.info("pod_made", job=spec.name, pod=name_of(pod))

    def _tell(self, item: JsonObject, status: object) -> None:
        """Write the status where it has changed. What changes all the time is written seldom."""
        assert isinstance(status, dict)
        before, name = item.get("status") or {}, name_of(item)
        now = {**status, "observedGeneration": item["metadata"].get("generation", 0)}
        changed = {key for key in now if now[key] != before.get(key)}
        now_s = self._clock.monotonic_s()
        if not changed or (not changed & set(SOON) and now_s - self._told_s.get(name, 0.0) < STATUS_S):
            return
        try:
            self._api.patch(JOBS, name, {"status": now}, "status")
        except NotFound:
            return  # deleted meanwhile
        self._told_s[name] = now_s


def run_operator(environ: dict[str, str], say: Callable[[str], None]) -> None:
    """Run until SIGINT or SIGTERM. Raises `UsageError` where there is no API, or it refuses us."""
    api = KubernetesApi(find_api(environ))
    api.list(JOBS)  # a missing CRD or permission is one line, not a loop of warnings
    operator, end = Operator(api, HubViews(environ)), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    operator.start()
    say(f"operator   PulsetrainJobs of namespace {api.namespace}")
    end.wait()
    operator.stop()
    api.close()
