"""Rounds over the links of a job, on request."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.hub.links import Links
from pulsetrain.hub.routes.guard import guarded, json_body, number, text


def routes(links: Links, token: str) -> list[BaseRoute]:
    """``/v1/jobs/{job:path}/links``."""

    async def measure(request: Request) -> Response:
        body = await json_body(request, "actor")
        job, actor = request.path_params["job"], text(body, "actor")
        limit_mbit = number(body, "limit_mbit", 0.0)
        return JSONResponse(await links.measure(job, actor=actor, limit_mbit=limit_mbit))

    return [Route("/v1/jobs/{job:path}/links", guarded(measure, token), methods=["POST"])]
