"""Alerts, their history and their acknowledgement."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes.guard import guarded, json_body, text
from pulsetrain.hub.routes.kept_json import KeptJson


def routes(book: AlertBook, clock: Clock, token: str) -> list[BaseRoute]:
    """``/v1/alerts`` and what lies below it."""

    kept = KeptJson(lambda: {"alerts": list(book.list(clock.wall_ns()))}, clock)

    async def alerts(request: Request) -> Response:
        return Response(kept.text(), media_type="application/json")

    async def acknowledge(request: Request) -> Response:
        body = await json_body(request, "actor")
        alert = request.path_params["alert"]
        try:
            book.acknowledge(alert, text(body, "actor"), text(body, "note"), clock.wall_ns())
        except KeyError as error:
            raise UsageError(f"no alert {alert!r}") from error
        kept.forget()
        return JSONResponse({"acknowledged": alert})

    async def history(request: Request) -> Response:
        return JSONResponse({"history": list(book.history(request.path_params["alert"]))})

    return [
        Route("/v1/alerts", guarded(alerts, token)),
        Route("/v1/alerts/{alert}/ack", guarded(acknowledge, token), methods=["POST"]),
        Route("/v1/alerts/{alert}/history", guarded(history, token)),
    ]
