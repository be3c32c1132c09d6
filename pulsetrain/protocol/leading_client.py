"""The questions of a screen that stays open, asked of whichever of several hubs leads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.client import HubAddress, HubClient, leading, leading_url

_WAITS = ("waiting", "deposed")
Answer = TypeVar("Answer")


class LeadingClient:
    """Asks the hub that leads, and looks for another leader where that one is away or leads no longer.

    Each call raises as `HubClient` does. One hub alone is asked as it is.
    """

    def __init__(self, address: HubAddress, timeout_s: float = 10.0) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._url = leading(address).url
        self._client = self._connect(self._url)

    def status(self) -> JsonObject:
        """See `HubClient`. That of a hub that waits only where none is known to lead."""
        status = self._ask(HubClient.status)
        waits = (status.get("hub") or {}).get("role") in _WAITS
        return self._client.status() if waits and self._moved() else status

    def alerts(self) -> list[JsonObject]:
        """See `HubClient`."""
        return self._ask(HubClient.alerts)

    def incidents(self) -> list[JsonObject]:
        """See `HubClient`."""
        return self._ask(HubClient.incidents)

    def _ask(self, question: Callable[[HubClient], Answer]) -> Answer:
        try:
            return question(self._client)
        except UsageError:
            raise
        except PulsetrainError:
            if not self._moved():
                raise
            return question(self._client)

    def _moved(self) -> bool:
        """Whether another hub leads by now. It is asked from here on."""
        url = leading_url(self._address.urls, self._address.ca) if self._address.others else ""
        if url in ("", self._url):
            return False
        self._url, self._client = url, self._connect(url)
        return True

    def _connect(self, url: str) -> HubClient:
        return HubClient(replace(self._address, url=url, others=()), self._timeout_s)
