"""The status of hub, jobs and loops."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.clock import Clock
from pulsetrain.hub.routes.guard import guarded
from pulsetrain.hub.routes.kept_json import KeptJson
from pulsetrain.hub.status import Status


def routes(status: Callable[[], Status], clock: Clock, token: str) -> list[BaseRoute]:
    """``/v1/status``."""
    kept = KeptJson(status, clock)

    async def show(request: Request) -> Response:
        return Response(kept.text(), media_type="application/json")

    return [Route("/v1/status", guarded(show, token))]
