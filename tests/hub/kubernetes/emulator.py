"""Objects of a Kubernetes API in memory: versions, conflicts, forgotten changes, disruption budgets. No HTTP.

It does what Pulsetrain relies on, as https://kubernetes.io/docs/reference/using-api/api-concepts says it.
"""

import copy
import itertools
import threading
import time
import uuid
from dataclasses import dataclass, field

KINDS = {
    "nodes": "Node",
    "pods": "Pod",
    "services": "Service",
    "configmaps": "ConfigMap",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "leases": "Lease",
    "pulsetrainjobs": "PulsetrainJob",
}
GROUPS = {
    "poddisruptionbudgets": "policy/v1",
    "leases": "coordination.k8s.io/v1",
    "pulsetrainjobs": "pulsetrain.io/v1alpha1",
}
CLUSTER_WIDE = {"nodes"}
WITH_STATUS = {"pods", "nodes", "pulsetrainjobs"}


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Refused(Exception):
    """An answer that is an error, with the body that the API gives it."""

    def __init__(self, code, reason, message, **details):
        super().__init__(message)
        self.code, self.details = code, details
        self.status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": code, "reason": reason, "message": message, "details": details,
        }  # fmt: skip


@dataclass(frozen=True)
class Event:
    version: int
    kind: str
    namespace: str
    type: str
    item: dict


@dataclass
class Emulator:
    """`check(kind, item)` sees each object that is stored. `grace_s` is how long a pod takes to end: None for
    until a kubelet says so."""

    check: object = lambda kind, item: None
    objects: dict = field(default_factory=dict)
    events: list = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    forgotten: int = 0  # changes up to here cannot be watched
    has_kubelets: bool = False

    def __post_init__(self):
        self._versions = itertools.count(101)
        self.version = 100

    # -- reading ------------------------------------------------------------------------------------------

    def get(self, kind, namespace, name):
        with self.changed:
            found = self.objects.get((kind, namespace, name))
            if found is None:
                raise Refused(404, "NotFound", f'{kind} "{name}" not found', name=name, kind=kind)
            return copy.deepcopy(found)

    def all(self, kind, namespace=None):
        with self.changed:
            keys = sorted(k for k in self.objects if k[0] == kind and namespace in (None, k[1]))
            return [copy.deepcopy(self.objects[key]) for key in keys]

    def forget(self):
        """As a compaction of etcd: watches from older versions get 410."""
        with self.changed:
            self.forgotten = self.version
            self.changed.notify_all()

    # -- writing ------------------------------------------------------------------------------------------

    def create(self, kind, namespace, item):
        item = copy.deepcopy(item)
        metadata = item.setdefault("metadata", {})
        if "name" not in metadata:
            if "generateName" not in metadata:
                raise Refused(
                    422, "Invalid", "metadata.name: Required value: name or generateName is required"
                )
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if "resourceVersion" in metadata:
            raise Refused(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if kind not in CLUSTER_WIDE:
            metadata["namespace"] = namespace
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
        item.setdefault("apiVersion", GROUPS.get(kind, "v1"))
        item.setdefault("kind", KINDS[kind])
        if kind == "pods":
            item["status"] = {"phase": "Pending", "conditions": []}
        elif kind == "pulsetrainjobs":
            item.pop("status", None)
        key = (kind, namespace, metadata["name"])
        with self.changed:
            if key in self.objects:
                raise Refused(409, "AlreadyExists", f'{kind} "{key[2]}" already exists', name=key[2])
            stored = self._store(key, item, "ADDED")
            if self._orphan(item):  # the garbage collector
                self.remove(*key)
            return stored

    def _orphan(self, item):
        uids = {each["metadata"]["uid"] for each in self.objects.values()}
        return any(owner["uid"] not in uids for owner in item["metadata"].get("ownerReferences", ()))

    def replace(self, kind, namespace, name, item, *, status=False):
        with self.changed:
            old = self.get(kind, namespace, name)
            new = copy.deepcopy(item)
            version = new.get("metadata", {}).get("resourceVersion")
            if version is not None and version != old["metadata"]["resourceVersion"]:
                raise Refused(
                    409, "Conflict",
                    f'Operation cannot be fulfilled on {kind} "{name}": the object has been modified; please '
                    "apply your changes to the latest version and try again", name=name,
                )  # fmt: skip
            if status:
                new = {**old, "status": new.get("status", {})}
            elif kind in WITH_STATUS and kind != "nodes":
                new.pop("status", None)
                new |= {"status": old["status"]} if "status" in old else {}
            for fixed in ("uid", "creationTimestamp", "name", "generation", "resourceVersion"):
                new["metadata"][fixed] = old["metadata"][fixed]
            if new == old:
                return old
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] += 1
            return self._store((kind, namespace, name), new, "MODIFIED")

    def patch(self, kind, namespace, name, patch, *, status=False):
        with self.changed:
            merged = merge(self.get(kind, namespace, name), patch)
            return self.replace(kind, namespace, name, merged, status=status)

    def delete(self, kind, namespace, name, options=None):
        with self.changed:
            item = self.get(kind, namespace, name)
            wanted = ((options or {}).get("preconditions") or {}).get("resourceVersion")
            if wanted and wanted != item["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", f'Precondition failed: {kind} "{name}" has been modified')
            scheduled = kind == "pods" and item["spec"].get("nodeName") and not over(item)
            if scheduled and self.has_kubelets:
                if "deletionTimestamp" not in item["metadata"]:
                    item["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": 30}
                    return self._store((kind, namespace, name), item, "MODIFIED")
                return item
            return self.remove(kind, namespace, name)

    def remove(self, kind, namespace, name):
        """An object is gone, and what it owned."""
        with self.changed:
            key = (kind, namespace, name)
            item = self._store(key, self.objects[key], "DELETED")
            del self.objects[key]
            for other in list(self.objects):
                owners = self.objects.get(other, {}).get("metadata", {}).get("ownerReferences", ())
                if any(owner["uid"] == item["metadata"]["uid"] for owner in owners):
                    self.delete(*other)
            return item

    def evict(self, namespace, name):
        """A pod ends, if each budget that selects it still has enough others."""
        with self.changed:
            pod = self.get("pods", namespace, name)
            for budget in self.all("poddisruptionbudgets", namespace):
                labels = budget["spec"]["selector"]["matchLabels"]
                if over(pod) or not labels.items() <= (pod["metadata"].get("labels") or {}).items():
                    continue
                healthy = [p for p in self.all("pods", namespace) if running(p, labels)]
                if len(healthy) - 1 < budget["spec"]["minAvailable"]:
                    raise Refused(
                        429, "TooManyRequests",
                        "Cannot evict pod as it would violate the pod's disruption budget.",
                        causes=[{"reason": "DisruptionBudget", "message": budget["metadata"]["name"]}],
                        retryAfterSeconds=0,
                    )  # fmt: skip
            self.delete("pods", namespace, name)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _store(self, key, item, type):
        self.version = next(self._versions)
        item = copy.deepcopy(item)
        item["metadata"]["resourceVersion"] = str(self.version)
        self.check(key[0], item)
        self.objects[key] = item
        self.events.append(Event(self.version, key[0], key[1], type, copy.deepcopy(item)))
        self.changed.notify_all()
        return copy.deepcopy(item)


def over(pod):
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def running(pod, labels):
    has = labels.items() <= (pod["metadata"].get("labels") or {}).items()
    return has and pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def merge(target, patch):
    """RFC 7396."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged
