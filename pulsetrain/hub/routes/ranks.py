"""One rank of a running job: its groups, and what it has in flight."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes.guard import guarded
from pulsetrain.recovery.controller import Controller


def routes(controller: Controller, token: str) -> list[BaseRoute]:
    """``/v1/jobs/{job:path}/ranks/{rank}``."""

    async def show(request: Request) -> Response:
        job, named = request.path_params["job"], request.path_params["rank"]
        if not (named.isascii() and named.isdigit() and len(named) < 10):
            raise UsageError(f"rank = {named[:80]!r}: allowed: the number of a rank")
        return JSONResponse(controller.rank(job, int(named)))

    return [Route("/v1/jobs/{job:path}/ranks/{rank}", guarded(show, token), methods=["GET"])]
