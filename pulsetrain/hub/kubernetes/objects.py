"""What the Kubernetes API holds: kinds of objects, where they are, and the names of our labels. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject

GROUP = "pulsetrain.io"
JOB_LABEL = f"{GROUP}/job"
"""Label of each pod of a job. Its value is the job's name."""
REPLACEMENT_LABEL = f"{GROUP}/replacement"
"""Label of a pod that a hub has asked for, in place of one that was lost."""
REASON = f"{GROUP}/reason"
"""Annotation of a node that Pulsetrain has cordoned: why."""
SINCE = f"{GROUP}/cordoned-at"
"""Annotation of such a node: when."""
TAINT = f"{GROUP}/evicted"
"""Taint that older hubs gave such a node. Its effect is NoSchedule."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A kind of object. `group` is "" for the core."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As it stands in an object."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Where the list is, or one object, or a part of it.

        >>> LEASES.path("train", "hub")
        '/apis/coordination.k8s.io/v1/namespaces/train/leases/hub'
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{checked_name(namespace)}" if self.namespaced else ""
        one = f"/{checked_name(name)}" if name else ""
        return f"{root}{inside}/{self.plural}{one}{f'/{subresource}' if subresource else ''}"


NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)
PODS = Resource(group="", version="v1", kind="Pod", plural="pods")
SERVICES = Resource(group="", version="v1", kind="Service", plural="services")
CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps")
LEASES = Resource(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases")
JOBS = Resource(group=GROUP, version="v1alpha1", kind="PulsetrainJob", plural="pulsetrainjobs")


def checked_name(name: str) -> str:
    """The name of one object, which may stand in a path. Raises `UsageError`.

    >>> checked_name("gpu-07.example")
    'gpu-07.example'
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r}: no name of a Kubernetes object; allowed: at most 253 of a-z, 0-9, - and ., "
            "with a letter or digit first and last"
        )
    return name


def checked_label(value: str) -> str:
    """The value of a label, which may stand in a selector. Raises `UsageError`."""
    if not _LABEL.fullmatch(value):
        raise UsageError(
            f"{value!r}: no value of a Kubernetes label; allowed: at most 63 letters, digits, -, _ and ., "
            "with a letter or digit first and last"
        )
    return value


def name_of(item: JsonObject) -> str:
    """The name of an object."""
    return str(item["metadata"]["name"])


def version_of(item: JsonObject) -> str:
    """The `resourceVersion` of an object or of a list. It changes with each write."""
    return str(item.get("metadata", {}).get("resourceVersion", ""))


def labels_of(item: JsonObject) -> JsonObject:
    """The labels of an object."""
    return item.get("metadata", {}).get("labels") or {}


def annotations_of(item: JsonObject) -> JsonObject:
    """The annotations of an object."""
    return item.get("metadata", {}).get("annotations") or {}
