"""The status of hub, jobs and loops."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.hub.routes.guard import guarded
from pulsetrain.hub.status import Status


def routes(status: Callable[[], Status], token: str) -> list[BaseRoute]:
    """``/v1/status``."""

    async def show(request: Request) -> Response:
        return JSONResponse(status())

    return [Route("/v1/status", guarded(show, token))]
