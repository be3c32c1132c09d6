"""Labels of the Kubernetes node that an agent is on, and which of them names its switch.

Kubernetes' own `topology.kubernetes.io/zone` and `region` are too coarse: a zone is a whole building. The
labels below name the switch that is next to the node.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import urllib3
from urllib3.exceptions import HTTPError

from pulsetrain.core.errors import ConfigError, Unavailable, UsageError
from pulsetrain.protocol import tls
from pulsetrain.protocol.kubernetes_access import SERVICE_ACCOUNT, ApiAccess, find_api

LIMIT_S = 2.0

# NVIDIA topograph, reference of node labels and annotations: `fabric` since 1.1, where tier 0 is next to the
# node, `network` before. Amazon EKS user guide, "Place distributed AI/ML workloads with network topology
# labels": the highest number is next to the node, and only some types have a fourth. GKE: a sub-block is a
# rack. CoreWeave, "InfiniBand and RoCE labels". With Kueue they are the last level above the host.
WELL_KNOWN = (
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "topology.k8s.aws/network-node-layer-4",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-subblock",
    "backend.coreweave.cloud/leafgroup",
)


def switch_of(labels: Mapping[str, str], own: str = "") -> str:
    """The switch that labels name, "" for none. With `own` only that label counts.

    >>> switch_of({"network.topology.nvidia.com/leaf": "s3", "network.topology.nvidia.com/spine": "s9"})
    's3'
    >>> switch_of({"network.topology.nvidia.com/leaf": "s3"}, "example.com/rack")
    ''
    """
    names = (own,) if own else WELL_KNOWN
    return next((labels[name] for name in names if labels.get(name)), "")


def parse(text: str) -> dict[str, str]:
    r"""Labels or annotations as a downwardAPI volume writes them: a line `key="value"` for each.

    Other lines are left out. Source: Kubernetes, "Expose Pod Information to Containers Through Files".

    >>> parse('build="2"\nnetwork.topology.nvidia.com/leaf="s 3"\n')
    {'build': '2', 'network.topology.nvidia.com/leaf': 's 3'}
    """
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): _unquoted(value) for key, equals, value in pairs if equals}


def _unquoted(value: str) -> str:
    """A quoted value. Go's notation is that of JSON, but for rare escapes."""
    try:
        return str(json.loads(value))
    except ValueError:
        return value.strip().strip('"')


def of_file(path: Path) -> dict[str, str]:
    """The labels in a file. Raises `ConfigError` where it cannot be read."""
    try:
        return parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"labels_file {path}: {getattr(error, 'strerror', None) or 'no text'}") from error


def of_api(
    node: str, environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT, *, limit_s: float = LIMIT_S
) -> dict[str, str]:
    """The labels of a node as the API of this pod's cluster has them. Nothing where it is no such pod.

    The pod's service account must be mounted and must be allowed to get nodes. Raises `Unavailable` or
    `UsageError` with one line where the API is there and does not tell.
    """
    try:
        access = find_api(environ, folder)
    except UsageError:
        return {}
    path = f"/api/v1/nodes/{quote(node, safe='')}"
    try:
        with urllib3.PoolManager(ssl_context=_context(access)) as pool:
            answer = pool.request(
                "GET",
                access.url + path,
                headers=_headers(access),
                timeout=limit_s,
                retries=False,
                redirect=False,
            )
            status, body = answer.status, answer.data
    except (HTTPError, OSError) as error:
        raise Unavailable(f"Kubernetes {access.url}: {type(error).__name__}") from error
    if status != 200:
        raise Unavailable(f"Kubernetes {access.url}: GET {path}: status {status}{_hint(status)}")
    try:
        labels = json.loads(body)["metadata"].get("labels") or {}
        return {str(key): str(value) for key, value in labels.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(f"Kubernetes {access.url}: GET {path}: the answer is no node") from error


def _context(access: ApiAccess) -> ssl.SSLContext | None:
    return tls.client_context(str(access.ca_file or "")) if access.url.startswith("https://") else None


def _headers(access: ApiAccess) -> dict[str, str]:
    token = access.token()
    return {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}


def _hint(status: int) -> str:
    hints = {403: ": its service account may not get nodes", 404: ": --node is the name of no node"}
    return hints.get(status, "")
