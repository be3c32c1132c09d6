"""A key-value store in Kubernetes: all keys in one ConfigMap, leases as Leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.urls import split_url
from pulsetrain.hub.kubernetes.api import BOOKMARK, KubernetesApi
from pulsetrain.hub.kubernetes.errors import Conflict, Expired
from pulsetrain.hub.kubernetes.kept_state import KeptState
from pulsetrain.hub.kubernetes.leases import KubernetesLeases
from pulsetrain.hub.kubernetes.objects import CONFIG_MAPS, checked_label, checked_name, version_of
from pulsetrain.kv.store import Change, Committed, Compare, Entry, Listing, Write
from pulsetrain.protocol.kubernetes_access import find_api

SCHEME = "kubernetes"
NAME = "pulsetrain-state"
KEY = "state.json"
TIMEOUT_S = 2.0
TRIES = 10  # of a commit that others are in the way of
POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The state as it was read, with the object that holds it, None where there is none."""

    state: KeptState
    item: JsonObject | None


class ConfigMapStore:
    """See `KeyValueStore`. A transaction over several keys is one write.

    Every commit reads the ConfigMap and writes it whole, on condition that nobody has written it meanwhile.
    """

    def __init__(
        self,
        api: KubernetesApi,
        *,
        name: str = NAME,
        holder: str = "",
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api, self._name, self._clock, self._sleep = api, name, clock or SystemClock(), sleep
        self._leases = KubernetesLeases(api, name, holder, self._clock)

    def get(self, key: str) -> Entry | None:
        """See `Entries.get`."""
        return self._current().state.table.entries.get(key)

    def entries(self, prefix: str) -> Listing:
        """See `Entries.entries`."""
        table = self._current().state.table
        keys = sorted(key for key in table.entries if key.startswith(prefix))
        return Listing(entries=tuple(table.entries[k] for k in keys), revision=table.revision)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Committed:
        """See `Entries.commit`. A lease that has ended counts as a condition that does not hold."""
        for again in range(TRIES):
            read = self._read()
            before = read.state.table.revision
            if not all(self._leases.lives(lease) for lease in {w.lease for w in writes if w.lease}):
                return Committed(ok=False, revision=before)
            result = read.state.commit(compares, writes)
            if not result.ok or result.revision == before or self._wrote(read):
                return result
            self._sleep(0.02 * 2 ** min(again, 5))
        raise Unavailable(f"ConfigMap {self._name}: others wrote it {TRIES} times in between")

    def changes(self, prefix: str, *, after: int, timeout_s: float) -> tuple[Change, ...]:
        """See `Watch.changes`."""
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            read = self._current()
            found = read.state.changes(prefix, after)
            left_s = until_s - self._clock.monotonic_s()
            if found or left_s <= 0:
                return found
            self._wait(read.item, left_s)

    def grant(self, ttl_s: int) -> int:
        """See `Leases.grant`."""
        self._leases.sweep(self._read().state.leased())
        return self._leases.grant(ttl_s)

    def keep_alive(self, lease: int) -> float:
        """See `Leases.keep_alive`."""
        return self._leases.keep_alive(lease)

    def revoke(self, lease: int) -> None:
        """See `Leases.revoke`."""
        self._leases.revoke(lease)
        self._current()

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def _current(self) -> _Read:
        """The state without keys of leases that have ended. Such keys are deleted first."""
        for _ in range(TRIES):
            read = self._read()
            ended = {lease for lease in read.state.leased() if not self._leases.lives(lease)}
            if not ended:
                return read
            gone = [
                Write(key=e.key, value=None) for e in read.state.table.entries.values() if e.lease in ended
            ]
            read.state.commit((), gone)
            self._wrote(read)
        raise Unavailable(f"ConfigMap {self._name}: leases end faster than their keys can be deleted")

    def _read(self) -> _Read:
        item = self._api.get(CONFIG_MAPS, self._name)
        text = (item or {}).get("data", {}).get(KEY)
        if text is None:  # a revision of a state that somebody has deleted must not come again
            return _Read(state=KeptState.empty(self._clock.wall_ns() // 1_000_000), item=item)
        return _Read(state=KeptState.decode(text, f"ConfigMap {self._name}"), item=item)

    def _wrote(self, read: _Read) -> bool:
        """Write the state. Returns whether nobody else has written since it was read."""
        data = {"data": {KEY: read.state.encode()}}
        try:
            if read.item is None:
                head = {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind}
                self._api.create(CONFIG_MAPS, {**head, "metadata": {"name": self._name}, **data})
            else:
                self._api.replace(CONFIG_MAPS, self._name, {**read.item, **data})
        except Conflict:
            return False
        return True

    def _wait(self, item: JsonObject | None, left_s: float) -> None:
        """Wait for a change of the ConfigMap. The API counts a watch's time in whole seconds."""
        if item is None or left_s < 1.0:
            self._sleep(min(left_s, POLL_S))
            return
        named, version = f"metadata.name={self._name}", version_of(item)
        try:
            for event in self._api.watch(CONFIG_MAPS, version, fields=named, timeout_s=1.0):
                if event.type != BOOKMARK:
                    return
        except Expired:
            return


def open_state(url: str, environ: Mapping[str, str]) -> ConfigMapStore:
    """The store of ``kubernetes://NAMESPACE/NAME``. Without them, in our own namespace and `NAME`.

    Raises `UsageError`.
    """
    parts = split_url(url, "--kv", one_host=False)
    name = parts.path.strip("/") or NAME
    if "@" in parts.netloc or parts.query or "/" in name:
        raise UsageError(f"--kv {SCHEME}://...: allowed {SCHEME}://NAMESPACE and {SCHEME}://NAMESPACE/NAME")
    access = find_api(environ)
    if parts.netloc:
        access = replace(access, namespace=checked_name(parts.netloc))
    api = KubernetesApi(access, timeout_s=TIMEOUT_S)
    return ConfigMapStore(api, name=checked_label(checked_name(name)), holder=environ.get("HOSTNAME", ""))
