"""Nodes, checks of standbys, and eviction."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.clock import Clock
from pulsetrain.hub.routes.guard import guarded, json_body, text, texts
from pulsetrain.hub.routes.kept_json import KeptJson
from pulsetrain.hub.routes.seen import seen_of
from pulsetrain.recovery import view
from pulsetrain.recovery.controller import Controller


def routes(controller: Controller, clock: Clock, token: str) -> list[BaseRoute]:
    """``/v1/nodes``, ``/v1/checks`` and ``/v1/evict``."""

    def rows() -> object:
        return {"nodes": [row for job in controller.snapshots() for row in view.node_rows(job)]}

    kept = KeptJson(rows, clock)

    async def nodes(request: Request) -> Response:
        return Response(kept.text(), media_type="application/json")

    async def evict(request: Request) -> Response:
        body = await json_body(request, "node", "reason", "actor")
        node, job = text(body, "node"), text(body, "job")
        drain = bool(body.get("drain"))
        if body.get("dry_run"):
            return JSONResponse(controller.preview_eviction(node, job=job, drain=drain))
        reason, actor = text(body, "reason"), text(body, "actor")
        controller.expect(job, seen_of(body), node)
        cost = await controller.evict(node, reason, actor, job=job, drain=drain)
        kept.forget()
        return JSONResponse(cost)

    async def check(request: Request) -> Response:
        body = await json_body(request, "nodes", "actor")
        level, job, actor = text(body, "level") or "light", text(body, "job"), text(body, "actor")
        answer = await controller.check_nodes(texts(body, "nodes"), level, actor, job=job)
        kept.forget()
        return JSONResponse(answer)

    return [
        Route("/v1/nodes", guarded(nodes, token)),
        Route("/v1/checks", guarded(check, token), methods=["POST"]),
        Route("/v1/evict", guarded(evict, token), methods=["POST"]),
    ]
