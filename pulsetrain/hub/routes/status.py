"""The status of hub, jobs and loops."""

from __future__ import annotations

import json
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.clock import Clock
from pulsetrain.hub.routes.guard import guarded
from pulsetrain.hub.status import Status

SHARE = 10
"""Putting the status together may take a tenth of the hub's time, however many ask for it."""


class KeptStatus:
    """The status as JSON. One that took long is given out for nine times as long."""

    def __init__(self, status: Callable[[], Status], clock: Clock) -> None:
        self._status, self._clock = status, clock
        self._text = b""
        self._until_s = clock.monotonic_s()

    def text(self) -> bytes:
        """The status now, or as it was a moment ago."""
        began_s = self._clock.monotonic_s()
        if not self._text or began_s >= self._until_s:
            self._text = json.dumps(
                self._status(), ensure_ascii=False, allow_nan=False, separators=(",", ":")
            ).encode()
            ended_s = self._clock.monotonic_s()
            self._until_s = ended_s + (SHARE - 1) * (ended_s - began_s)
        return self._text


def routes(status: Callable[[], Status], clock: Clock, token: str) -> list[BaseRoute]:
    """``/v1/status``."""
    kept = KeptStatus(status, clock)

    async def show(request: Request) -> Response:
        return Response(kept.text(), media_type="application/json")

    return [Route("/v1/status", guarded(show, token))]
