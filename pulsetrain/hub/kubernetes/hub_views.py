"""What hubs say of the jobs that the operator cares for."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import structlog

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.kubernetes.plan import HubView
from pulsetrain.protocol.client import HubClient, find_hub, leading

log = structlog.get_logger()

TIMEOUT_S = 3.0


class HubViews:
    """Asks each hub once, until `forget`."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._jobs: dict[str, Mapping[str, JsonObject]] = {}
        self._clients: dict[str, HubClient] = {}

    def forget(self) -> None:
        """Ask again from now on."""
        self._jobs.clear()

    def view(self, hub: str, job: str, since_s: float) -> HubView | None:
        """A job of that name that ended after `since_s`, or that goes on. None where the hub does not say."""
        if hub not in self._jobs:
            self._jobs[hub] = self._ask(hub)
        row = self._jobs[hub].get(job)
        return None if row is None else view_of(row, since_s)

    def _ask(self, hub: str) -> Mapping[str, JsonObject]:
        try:
            if hub not in self._clients:
                address = leading(find_hub(hub, environ=self._environ), TIMEOUT_S)
                self._clients[hub] = HubClient(address, timeout_s=TIMEOUT_S)
            return {str(row["job"]): row for row in self._clients[hub].status()["jobs"]}
        except PulsetrainError as error:
            self._clients.pop(hub, None)  # another hub may lead by now
            log.info("hub_not_asked", hub=hub, error=str(error))
            return {}


def view_of(row: JsonObject, since_s: float) -> HubView | None:
    """The view in one row of the hub's status. None for a job of that name that had ended before. Pure."""
    verdict = row.get("verdict") or {}
    ended = str(verdict.get("state", "")) if row["state"] in ("finished", "failed") else ""
    if ended and float(row["since_ns"]) / 1e9 < since_s:
        return None
    connected = [node for node in row["nodes"] if node.get("connected")]
    over = row["state"] in ("finished", "failed")
    trains = row["state"] == "running"  # else a standby may be on its way into the world
    gone = [node for node in row["nodes"] if node["state"] in ("lost", "evicted") and not over]
    return HubView(
        ended=ended if ended in ("finished", "failed") else "",
        step=int(row["step"]),
        attempt=int(row["attempt"]),
        sentence=str(verdict.get("sentence", "")),
        standbys=frozenset(
            str(node["node"]) for node in row["nodes"] if trains and node["state"] == "standby"
        ),
        is_served=bool(connected) and not over,
        gone={str(node["node"]): float(node.get("gone_since_ns") or math.inf) / 1e9 for node in gone},
    )
