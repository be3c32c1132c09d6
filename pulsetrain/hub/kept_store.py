"""Opens the key-value store that a hub's settings name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pulsetrain.hub.kubernetes.state_store import SCHEME, open_state
from pulsetrain.kv.address import parse
from pulsetrain.kv.etcd import EtcdStore
from pulsetrain.kv.files import FileStore
from pulsetrain.kv.store import KeyValueStore

PREFIX = "/pulsetrain/"


def open_kept(url: str, data: Path, environ: Mapping[str, str]) -> KeyValueStore:
    """etcd for ``etcd://``, a ConfigMap for ``kubernetes://``, without a URL the files in the data folder.

    Raises `UsageError`.
    """
    if url.startswith(f"{SCHEME}:"):
        return open_state(url, environ)
    return EtcdStore(parse(url, environ), prefix=PREFIX) if url else FileStore(data / "kv")
