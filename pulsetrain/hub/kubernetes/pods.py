"""Pods of a PulsetrainJob: how one is made, and what one says of itself. Pure."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from pulsetrain.core.json import JsonObject
from pulsetrain.hub.kubernetes.job_spec import JobSpec
from pulsetrain.hub.kubernetes.objects import (
    GROUP,
    JOB_LABEL,
    JOBS,
    REPLACEMENT_LABEL,
    SERVICES,
    TAINT,
    labels_of,
)

APP = "agent"
"""Value of ``app.kubernetes.io/name``, by which network policies know agents."""
REVISION_LABEL = f"{GROUP}/revision"
HOST = "kubernetes.io/hostname"


def pod_of(
    spec: JobSpec, name: str, *, standby: bool = False, replacement: bool = False, exclude: Sequence[str] = ()
) -> JsonObject:
    """A pod with one agent of the job. No two pods of a job share a node, and none is on one of `exclude`."""
    template = copy.deepcopy(spec.template)
    metadata, pod = template.get("metadata") or {}, template["spec"]
    labels = {**(metadata.get("labels") or {}), JOB_LABEL: spec.name, REVISION_LABEL: spec.revision}
    labels["app.kubernetes.io/name"] = APP
    if replacement:
        labels[REPLACEMENT_LABEL] = "true"
    _tell(spec, agent_container(pod), standby=standby)
    affinity = pod.setdefault("affinity", {})
    _apart(affinity, spec.name)
    _elsewhere(affinity, exclude)
    # A person who uncordons a machine leaves the taint of an older hub there.
    evicted = {"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}
    pod["tolerations"] = [*(pod.get("tolerations") or ()), evicted]
    pod |= {"restartPolicy": "Never", "hostname": name, "subdomain": spec.name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owner(spec)],
        },
        "spec": pod,
    }


def service_of(spec: JobSpec) -> JsonObject:
    """The headless service that gives each pod of the job a name: ``POD.JOB``."""
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": {"name": spec.name, "labels": {JOB_LABEL: spec.name}, "ownerReferences": [owner(spec)]},
        "spec": {
            "clusterIP": "None",
            "selector": {JOB_LABEL: spec.name},
            "publishNotReadyAddresses": True,
        },
    }


def owner(spec: JobSpec) -> JsonObject:
    """What is deleted with the job refers to it."""
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "name": spec.name,
        "uid": spec.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def agent_container(pod: JsonObject) -> JsonObject:
    """The container named ``agent``, else the first."""
    containers: list[JsonObject] = pod["containers"]
    return next((c for c in containers if c.get("name") == APP), containers[0])


def over(pod: JsonObject) -> bool:
    """Whether its containers have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def ending(pod: JsonObject) -> bool:
    """Whether it was told to end."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def serves(pod: JsonObject) -> bool:
    """Whether it runs an agent, or will. One on a node that is lost does until the cluster deletes it."""
    return not (over(pod) or ending(pod))


def is_replacement(pod: JsonObject) -> bool:
    """Whether a hub has asked for it."""
    return REPLACEMENT_LABEL in labels_of(pod)


def node_of(pod: JsonObject) -> str:
    """The node that it is on, "" before one was found."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def _tell(spec: JobSpec, container: JsonObject, *, standby: bool) -> None:
    """Arguments and environment of the agent."""
    container["args"] = [
        "agent",
        f"--hub={spec.hub}",
        f"--job={spec.name}",
        f"--nnodes={spec.flag}",
        f"--nproc-per-node={spec.nproc_per_node}",
        "--node=$(PULSETRAIN_NODE)",
        "--address=$(PULSETRAIN_ADDRESS)",
        *(["--standby"] if standby else []),
        *spec.agent_args,
        *spec.script,
    ]
    own = {"PULSETRAIN_NODE": "spec.nodeName", "PULSETRAIN_ADDRESS": "status.podIP"}
    kept = [e for e in container.get("env") or () if e.get("name") not in own]
    told = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in own.items()]
    container["env"] = [*told, *kept]


def _apart(affinity: JsonObject, job: str) -> None:
    """One agent of the job on each node: a node is known by its name."""
    others = affinity.setdefault("podAntiAffinity", {})
    term = {"labelSelector": {"matchLabels": {JOB_LABEL: job}}, "topologyKey": HOST}
    others.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)


def _elsewhere(affinity: JsonObject, exclude: Sequence[str]) -> None:
    """Not on these nodes. Terms are alternatives, so it stands in each of them."""
    if not exclude:
        return
    not_there = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in exclude]
    required = affinity.setdefault("nodeAffinity", {}).setdefault(
        "requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": []}
    )
    terms = required["nodeSelectorTerms"] or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), *not_there]} for term in terms
    ]
