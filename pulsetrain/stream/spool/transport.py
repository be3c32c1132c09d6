"""Carries spooled batches to where they are stored: the interface, and its implementation over HTTP."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsetrain.core.errors import AuthError, Unavailable
from pulsetrain.protocol.http import HubHttp, Reply
from pulsetrain.stream.spool import segment
from pulsetrain.stream.spool.queue import Entry

_ENTRIES_A_POST = 512
_CONNECT_S = 3.0
_CONTENT_TYPE = {"Content-Type": "application/octet-stream"}  # the batches themselves say their form


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """An entry that the other side will never take, and why."""

    entry: Entry
    why: str


class Transport(Protocol):
    """Carries encoded batches. A batch may be sent twice; the other side stores it once."""

    def send(self, entries: Sequence[Entry]) -> list[Rejection]:
        """Deliver all of `entries`, in order, and return when they are stored.

        Returns those that were refused for good; all others are delivered. Raises `Unavailable`, or
        `AuthError`, where some may not have been.
        """
        ...

    def close(self) -> None:
        """Let connections go. Idempotent."""
        ...


class HttpTransport:
    """Posts batches to the hub at `url`, many at once. After a failure it goes on to the next of `others`.

    Raises `UsageError` for an address that is none.
    """

    def __init__(
        self, url: str, token: str, *, others: Sequence[str] = (), timeout_s: float = 30.0, ca: str = ""
    ) -> None:
        self._hubs = deque(
            HubHttp(u, token, timeout_s=timeout_s, connect_s=_CONNECT_S, ca=ca) for u in (url, *others)
        )

    @property
    def _http(self) -> HubHttp:
        return self._hubs[0]

    def send(self, entries: Sequence[Entry]) -> list[Rejection]:
        """See `Transport`."""
        rejections: list[Rejection] = []
        try:
            for start in range(0, len(entries), _ENTRIES_A_POST):
                rejections += self._post(entries[start : start + _ENTRIES_A_POST])
        except Unavailable:
            self._hubs.rotate(-1)
            raise
        return rejections

    def close(self) -> None:
        """See `Transport`."""
        for hub in self._hubs:
            hub.close()

    def _post(self, entries: Sequence[Entry]) -> list[Rejection]:
        body = b"".join(segment.frame(entry.data, entry.rows) for entry in entries)
        reply = self._http.request("POST", "/v1/records", body, _CONTENT_TYPE)
        if reply.status in (401, 403):
            raise AuthError(f"hub {self._http.url} refuses the token")
        if reply.status == 413 and len(entries) == 1:
            return [Rejection(entry=entries[0], why=reply.text[:300])]
        if reply.status == 413:
            return [rejection for entry in entries for rejection in self._post([entry])]
        if reply.status != 200:
            raise Unavailable(f"hub {self._http.url} answers {reply.status}")
        return _rejections(entries, reply)


def _rejections(entries: Sequence[Entry], reply: Reply) -> list[Rejection]:
    """The entries that the hub refused, from its answer: one result per entry, in their order."""
    results = json.loads(reply.body)["results"]
    outcomes = zip(entries, results, strict=True)
    return [Rejection(entry=e, why=str(r["error"])) for e, r in outcomes if "error" in r]
