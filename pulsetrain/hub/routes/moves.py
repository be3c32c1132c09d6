"""Pre-empting, resuming, migrating and resizing a job."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.routes.guard import guarded, json_body, number, text
from pulsetrain.hub.routes.seen import seen_of
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.move_request import WAIT_S, MoveRequest


def routes(controller: Controller, token: str) -> list[BaseRoute]:
    """``/v1/jobs/{job:path}/moves``."""

    async def move(request: Request) -> Response:
        body = await json_body(request, "what", "reason", "actor")
        wanted = MoveRequest(
            what=text(body, "what"),
            reason=text(body, "reason"),
            actor=text(body, "actor"),
            node=text(body, "node"),
            wait_s=number(body, "wait_s", WAIT_S),
            lose_progress=bool(body.get("lose_progress")),
            devices=whole(number(body, "devices", 0.0)),
            nodes=names(body),
        )
        job, dry_run = request.path_params["job"], bool(body.get("dry_run"))
        if not dry_run:
            controller.expect(job, seen_of(body))
        if wanted.what == "resize":
            return JSONResponse(await controller.resize(job, wanted, dry_run=dry_run))
        return JSONResponse(controller.move(job, wanted, dry_run=dry_run))

    def whole(devices: float) -> int:
        if devices != int(devices):
            raise UsageError(f"devices = {devices}: allowed: whole numbers")
        return int(devices)

    def names(body: JsonObject) -> tuple[str, ...]:
        value = body.get("nodes") or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise UsageError(f"nodes = {str(value)[:80]!r}: allowed: a list of names")
        return tuple(value)

    return [Route("/v1/jobs/{job:path}/moves", guarded(move, token), methods=["POST"])]
