"""A profile of some steps of some ranks, on request."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.profiles import Profiles
from pulsetrain.hub.routes.guard import guarded, json_body, text


def routes(profiles: Profiles, token: str) -> list[BaseRoute]:
    """``/v1/jobs/{job:path}/profile``."""

    async def take(request: Request) -> Response:
        body = await json_body(request, "ranks", "steps", "actor")
        ranks, steps = body["ranks"], body["steps"]
        if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
            raise UsageError(f"ranks = {ranks!r}: allowed: a list of numbers")
        if type(steps) is not int:
            raise UsageError(f"steps = {steps!r}: not a whole number")
        job, actor = request.path_params["job"], text(body, "actor")
        return JSONResponse(await profiles.take(job, ranks=ranks, steps=steps, actor=actor))

    return [Route("/v1/jobs/{job:path}/profile", guarded(take, token), methods=["POST"])]
