"""Leases that end when nobody keeps them alive, as objects of the kind Lease.

The API does not end a lease by itself. Whoever looks at one notes, by its own clock, when it last changed.
One that did not change for its duration is deleted, on condition that it did not change meanwhile. So clocks
of machines need not agree. Whoever held it learns that it is gone when it wants to keep it alive.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

from pulsetrain.core.clock import Clock
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.kubernetes.api import KubernetesApi
from pulsetrain.hub.kubernetes.errors import Conflict, NotFound
from pulsetrain.hub.kubernetes.objects import GROUP, LEASES, name_of, version_of

LABEL = f"{GROUP}/state"
UNUSED = timedelta(minutes=10)


class KubernetesLeases:
    """Leases of one state. `holder` is what people see: the pod."""

    def __init__(self, api: KubernetesApi, state: str, holder: str, clock: Clock) -> None:
        self._api, self._state, self._holder, self._clock = api, state, holder, clock
        self._seen: dict[int, tuple[str, float]] = {}

    def grant(self, ttl_s: int) -> int:
        """A new lease."""
        lease, now = secrets.randbits(48) | 1, self._now()
        self._api.create(
            LEASES,
            {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name(lease), "labels": {LABEL: self._state}},
                "spec": {
                    "holderIdentity": self._holder,
                    "leaseDurationSeconds": ttl_s,
                    "acquireTime": _text(now),
                    "renewTime": _text(now),
                },
            },
        )
        return lease

    def keep_alive(self, lease: int) -> float:
        """See `Leases.keep_alive`."""
        try:
            patch = {"spec": {"renewTime": _text(self._now())}}
            item = self._api.patch(LEASES, self._name(lease), patch)
        except NotFound:
            return 0.0
        return float(item["spec"]["leaseDurationSeconds"])

    def revoke(self, lease: int) -> None:
        """End a lease. Its keys are somebody else's concern."""
        self._api.delete(LEASES, self._name(lease))

    def lives(self, lease: int) -> bool:
        """Whether a lease is there. One that nobody keeps alive is ended first."""
        item = self._api.get(LEASES, self._name(lease))
        if item is None:
            self._seen.pop(lease, None)
            return False
        version, now_s = version_of(item), self._clock.monotonic_s()
        if self._seen.get(lease, ("", 0.0))[0] != version:
            self._seen[lease] = (version, now_s)
        if now_s - self._seen[lease][1] <= float(item["spec"].get("leaseDurationSeconds") or 0):
            return True
        try:
            self._api.delete(LEASES, self._name(lease), version=version)
        except Conflict:
            return True
        self._seen.pop(lease, None)
        return False

    def sweep(self, used: set[int]) -> None:
        """Delete leases that no key was ever bound to: their candidates were not elected."""
        names = {self._name(lease) for lease in used}
        for item in self._api.list(LEASES, labels=f"{LABEL}={self._state}").items:
            if name_of(item) not in names and self._old(item):
                self._api.delete(LEASES, name_of(item))

    def _old(self, item: JsonObject) -> bool:
        try:
            renewed = datetime.fromisoformat(str(item["spec"]["renewTime"]))
            return self._now() - renewed > UNUSED
        except (KeyError, ValueError, TypeError):
            return True

    def _name(self, lease: int) -> str:
        return f"{self._state}-{lease:x}"

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)


def _text(time: datetime) -> str:
    """A MicroTime of the API.

    >>> _text(datetime(2026, 1, 1, tzinfo=UTC))
    '2026-01-01T00:00:00.000000Z'
    """
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
