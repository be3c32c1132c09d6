"""Where the code of a job's ranks stands: the last report, or a new one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.hub.routes.guard import guarded, json_body, text
from pulsetrain.hub.stacks import Stacks


def routes(stacks: Stacks, token: str) -> list[BaseRoute]:
    """``/v1/jobs/{job:path}/stacks``."""

    async def latest(request: Request) -> Response:
        return JSONResponse(stacks.latest(request.path_params["job"]))

    async def take(request: Request) -> Response:
        body = await json_body(request, "actor")
        return JSONResponse(await stacks.take(request.path_params["job"], text(body, "actor")))

    return [
        Route("/v1/jobs/{job:path}/stacks", guarded(latest, token), methods=["GET"]),
        Route("/v1/jobs/{job:path}/stacks", guarded(take, token), methods=["POST"]),
    ]
