"""Updating what the ranks of a job run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.routes.guard import guarded, json_body, number, text
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.update_request import UpdateRequest


def routes(controller: Controller, token: str) -> list[BaseRoute]:
    """``/v1/jobs/{job:path}/updates``."""

    async def update(request: Request) -> Response:
        body = await json_body(request, "what", "reason", "actor")
        within_s = None if body.get("within_s") in (None, "") else number(body, "within_s", 0.0)
        wanted = UpdateRequest(
            what=text(body, "what"),
            reason=text(body, "reason"),
            actor=text(body, "actor"),
            argv=_arguments(body),
            environment=_variables(body),
            within_s=within_s,
        )
        job, dry_run = request.path_params["job"], bool(body.get("dry_run"))
        return JSONResponse(controller.update(job, wanted, dry_run=dry_run))

    return [Route("/v1/jobs/{job:path}/updates", guarded(update, token), methods=["POST"])]


def _arguments(body: JsonObject) -> Sequence[str]:
    value = body.get("argv") or []
    if not isinstance(value, list) or not all(isinstance(argument, str) for argument in value):
        raise UsageError("argv: allowed: a list of texts")
    return value


def _variables(body: JsonObject) -> Mapping[str, str]:
    """No message holds a value, because it may be secret."""
    value = body.get("environment") or {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise UsageError("environment: allowed: texts by the names of variables")
    return value
