"""Keeps a copy of a list of objects, by a watch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from pulsetrain.core.errors import Unavailable
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.kubernetes.api import BOOKMARK, DELETED, KubernetesApi, WatchEvent
from pulsetrain.hub.kubernetes.errors import Expired
from pulsetrain.hub.kubernetes.objects import Resource, name_of, version_of

log = structlog.get_logger()

WATCH_S = 240.0
SILENT_WAIT_S = 0.5  # after a watch that ended at once
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0


class Reflector:
    """The objects of one kind in our namespace. `turn` belongs to a loop, `items` to any thread.

    A watch that ends goes on at the last version that it told. Where the API no longer knows that version,
    the list is read anew. While the API is away, each turn waits twice as long as the one before.
    """

    def __init__(
        self, api: KubernetesApi, resource: Resource, changed: Callable[[], None], *, labels: str = ""
    ) -> None:
        self._api, self._resource, self._changed, self._labels = api, resource, changed, labels
        self._lock = threading.Lock()
        self._items: dict[str, JsonObject] = {}
        self.version = ""  # of the newest event, "" before the list is read
        self._failures = 0
        self.listed = threading.Event()

    def items(self) -> list[JsonObject]:
        """The objects as they are now, by name."""
        with self._lock:
            return [self._items[name] for name in sorted(self._items)]

    def turn(self) -> float:
        """List where that is needed, then watch until the watch ends. Returns the seconds to wait."""
        try:
            if not self.version:
                self._list()
            if not self._watch():
                return SILENT_WAIT_S
        except Expired:
            log.info("watch_expired", kind=self._resource.plural)
            self.version = ""
        except Unavailable as error:
            wait_s = min(FIRST_WAIT_S * float(2**self._failures), LONGEST_WAIT_S)
            self._failures = min(self._failures + 1, 10)
            log.warning("watch_failed", kind=self._resource.plural, error=str(error), wait_s=wait_s)
            return wait_s
        return 0.0

    def _list(self) -> None:
        found = self._api.list(self._resource, labels=self._labels)
        with self._lock:
            self._items = {name_of(item): item for item in found.items}
        self.version, self._failures = found.version, 0
        self.listed.set()
        self._changed()

    def _watch(self) -> int:
        """Returns how much the watch told."""
        told = 0
        for event in self._api.watch(self._resource, self.version, labels=self._labels, timeout_s=WATCH_S):
            self._failures = 0
            self._take(event)
            told += 1
        self._failures = 0
        return told

    def _take(self, event: WatchEvent) -> None:
        self.version = version_of(event.item) or self.version
        if event.type == BOOKMARK:
            return
        name = name_of(event.item)
        with self._lock:
            if event.type == DELETED:
                self._items.pop(name, None)
            else:
                self._items[name] = event.item
        self._changed()
