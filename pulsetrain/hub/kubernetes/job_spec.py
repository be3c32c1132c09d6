"""What a PulsetrainJob asks for. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.kubernetes.objects import checked_label, name_of

HUB = "http://hub:8780"


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job. It runs on `nnodes` nodes, and cannot go on with fewer than `least`.

    `script` begins with the script, its arguments follow. `template` has metadata and spec of each pod.
    """

    name: str
    uid: str
    nnodes: int
    least: int
    standbys: int
    nproc_per_node: str
    hub: str
    agent_args: tuple[str, ...]
    script: tuple[str, ...]
    suspend: bool
    template: JsonObject

    @property
    def flag(self) -> str:
        """The agents' ``--nnodes``."""
        return f"{self.least}:{self.nnodes}" if self.least < self.nnodes else str(self.nnodes)

    @property
    def revision(self) -> str:
        """What a pod of this spec is labelled with. A change of what its processes are told changes it.

        `standbys` and `suspend` do not: they say how many pods there are.
        """
        told = [self.flag, self.nproc_per_node, self.hub, self.agent_args, self.script, self.template]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]


def job_spec(item: JsonObject) -> JobSpec:
    """Read a PulsetrainJob. Raises `UsageError` that names the field.

    The API has checked it against the schema in `deploy/kubernetes/crd.yaml`. This holds without that, too.
    """
    name, spec = checked_label(name_of(item)), item.get("spec")
    if not isinstance(spec, dict):
        raise UsageError(f"PulsetrainJob {name}: spec is missing")
    nnodes = _number(name, spec, "nnodes", None)
    template = spec.get("template")
    if not isinstance(template, dict) or not _containers(template):
        raise UsageError(
            f"PulsetrainJob {name}: spec.template.spec.containers: allowed: one or more containers"
        )
    script = _words(name, spec, "script")
    if not script:
        raise UsageError(f"PulsetrainJob {name}: spec.script: allowed: a script, then its arguments")
    return JobSpec(
        name=name,
        uid=str(item["metadata"].get("uid", "")),
        nnodes=nnodes,
        least=min(_number(name, spec, "minNodes", nnodes), nnodes),
        standbys=_number(name, spec, "standbys", 0, least=0),
        nproc_per_node=str(spec.get("nprocPerNode") or "auto"),
        hub=str(spec.get("hub") or HUB),
        agent_args=_words(name, spec, "agentArgs"),
        script=script,
        suspend=spec.get("suspend") is True,
        template=template,
    )


def _containers(template: JsonObject) -> bool:
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return isinstance(containers, list) and bool(containers) and all(isinstance(c, dict) for c in containers)


def _number(name: str, spec: Mapping[str, object], key: str, default: int | None, *, least: int = 1) -> int:
    value = spec.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"PulsetrainJob {name}: spec.{key} = {value!r}: allowed {least} or more")
    return value


def _words(name: str, spec: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = spec.get(key) or []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UsageError(f"PulsetrainJob {name}: spec.{key} = {value!r}: allowed: a list of texts")
    return tuple(value)
