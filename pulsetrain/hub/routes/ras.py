"""What NCCL's RAS says of a job's ranks: the last report, or a new one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.hub.ras_reports import RasReports
from pulsetrain.hub.routes.guard import guarded, json_body, text


def routes(reports: RasReports, token: str) -> list[BaseRoute]:
    """``/v1/jobs/{job:path}/ras``."""

    async def latest(request: Request) -> Response:
        return JSONResponse(reports.latest(request.path_params["job"]))

    async def take(request: Request) -> Response:
        body = await json_body(request, "actor")
        return JSONResponse(await reports.take(request.path_params["job"], text(body, "actor")))

    return [
        Route("/v1/jobs/{job:path}/ras", guarded(latest, token), methods=["GET"]),
        Route("/v1/jobs/{job:path}/ras", guarded(take, token), methods=["POST"]),
    ]
