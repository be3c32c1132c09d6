"""The hang of a job that is named and not acted on, and what a person decides."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.hub.routes.guard import guarded, json_body, number, text
from pulsetrain.hub.routes.seen import seen_of
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.hang_decision import HangDecision


def routes(controller: Controller, token: str) -> list[BaseRoute]:
    """``/v1/jobs/{job:path}/pending_hang``."""

    async def show(request: Request) -> Response:
        return JSONResponse(controller.pending_hang(request.path_params["job"]))

    async def decide(request: Request) -> Response:
        body = await json_body(request, "decision", "reason", "actor")
        decision = HangDecision(
            what=text(body, "decision"),
            reason=text(body, "reason"),
            actor=text(body, "actor"),
            seconds=number(body, "seconds", 0.0),
        )
        job, dry_run = request.path_params["job"], bool(body.get("dry_run"))
        if not dry_run:
            controller.expect(job, seen_of(body))
        return JSONResponse(controller.decide_hang(job, decision, dry_run=dry_run))

    path = "/v1/jobs/{job:path}/pending_hang"
    return [
        Route(path, guarded(show, token), methods=["GET"]),
        Route(path, guarded(decide, token), methods=["POST"]),
    ]
