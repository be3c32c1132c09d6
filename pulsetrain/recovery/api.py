"""Control routes of the hub: the agents' WebSocket, nodes, eviction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import CorruptData, Unavailable, UsageError
from pulsetrain.protocol.access import is_authorized
from pulsetrain.protocol.messages import Hello, decode
from pulsetrain.recovery import view
from pulsetrain.recovery.controller import Controller

log = structlog.get_logger()

POLICY_VIOLATION = 1008
UNAUTHORIZED = 4401

Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint, token: str) -> Endpoint:
    """The endpoint behind the token, with usage errors as 400 and one JSON line."""

    async def guard(request: Request) -> Response:
        if not is_authorized(request, token):
            return JSONResponse({"error": "missing or wrong token"}, 401)
        try:
            return await endpoint(request)
        except UsageError as error:
            return JSONResponse({"error": str(error)}, 400)

    return guard


async def json_body(request: Request, *required: str) -> dict[str, Any]:
    """The request's JSON object. Raises `UsageError` where it is none or lacks a required key."""
    try:
        body = await request.json()
    except ValueError as error:
        raise UsageError(f"body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("body is not a JSON object")
    for key in required:
        if not body.get(key):
            raise UsageError(f"{key!r} is missing or empty")
    return body


def routes(controller: Controller, clock: Clock, token: str) -> list[BaseRoute]:
    """The control routes, all behind the token."""

    async def nodes(request: Request) -> Response:
        now = clock.monotonic_s()
        rows = [view.node_row(job, n, now) for job in controller.jobs.values() for n in job.nodes.values()]
        return JSONResponse({"nodes": rows})

    async def evict(request: Request) -> Response:
        body = await json_body(request, "node", "reason", "actor")
        if body.get("dry_run"):
            return JSONResponse(controller.preview_eviction(str(body["node"])))
        return JSONResponse(
            await controller.evict(str(body["node"]), str(body["reason"]), str(body["actor"]))
        )

    async def agent(socket: WebSocket) -> None:
        await serve_agent(socket, controller, token)

    return [
        WebSocketRoute("/v1/agent", agent),
        Route("/v1/nodes", guarded(nodes, token)),
        Route("/v1/evict", guarded(evict, token), methods=["POST"]),
    ]


async def serve_agent(socket: WebSocket, controller: Controller, token: str) -> None:
    """One agent's connection, from its hello until it closes."""
    if not is_authorized(socket, token):
        await socket.close(UNAUTHORIZED)  # before accept: the client sees HTTP 403
        return
    await socket.accept()
    lock = asyncio.Lock()

    async def send(text: str) -> None:
        try:
            async with lock:
                await socket.send_text(text)
        except (RuntimeError, WebSocketDisconnect) as error:
            raise Unavailable(f"connection closed: {error}") from error

    try:
        node = controller.connected(_hello(await socket.receive_text()), send)
    except (CorruptData, UsageError) as error:
        await socket.close(POLICY_VIOLATION, str(error)[:120])
        return
    except WebSocketDisconnect:
        return
    await _listen(socket, controller, node, send)


def _hello(text: str) -> Hello:
    message = decode(text)
    if not isinstance(message, Hello):
        raise CorruptData(f"first message is {type(message).__name__}, not Hello")
    return message


async def _listen(socket: WebSocket, controller: Controller, node: Any, send: Any) -> None:
    try:
        while True:
            try:
                message = decode(await socket.receive_text())
            except CorruptData as error:
                log.warning("bad_message", node=node.name, error=str(error))
                continue
            if not node.owns(send):  # given up meanwhile: it has to say hello again
                await socket.close(POLICY_VIOLATION, "this node counted as lost")
                return
            controller.received(node, message)  # type: ignore[arg-type]  # commands are logged as unexpected
    except WebSocketDisconnect:
        pass
    finally:
        controller.disconnected(node, send)
