"""The WebSocket of the agents: reports come in, commands go out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pulsetrain.core.errors import CorruptData, Unavailable, UsageError
from pulsetrain.hub.heartbeat_inbox import HeartbeatInbox
from pulsetrain.hub.leadership import Leadership, Role
from pulsetrain.hub.node_claims import Claim, NodeClaims
from pulsetrain.hub.token_gate import GRANT
from pulsetrain.protocol.access import is_authorized
from pulsetrain.protocol.messages import Hello, decode
from pulsetrain.recovery.nodes import Node, Send

POLICY_VIOLATION = 1008
UNAUTHORIZED = 4401
LONGEST_NAME = 255
_LIMITS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "nproc_per_node": (1, 1 << 12),
        "nnodes": (1, 1 << 20),
        "min_nnodes": (0, 1 << 20),
        "node_unit": (1, 1 << 20),
        "node_unit_min": (0, 1 << 20),
        "world_nodes": (0, 1 << 20),
        "peer_port": (0, 65535),
    }
)


def routes(inbox: HeartbeatInbox, token: str, leadership: Leadership, claims: NodeClaims) -> list[BaseRoute]:
    """``/v1/agent``, behind the token."""

    async def agent(socket: WebSocket) -> None:
        claim = claims.connection(socket.scope.get(GRANT))
        await serve_agent(socket, inbox, token, leadership, claim)

    return [WebSocketRoute("/v1/agent", agent)]


async def serve_agent(
    socket: WebSocket, inbox: HeartbeatInbox, token: str, leadership: Leadership, claim: Claim
) -> None:
    """One agent's connection, from its hello until it closes. A hub that was deposed sends no command."""
    if not is_authorized(socket, token):
        await socket.close(UNAUTHORIZED)  # before accept: the client sees HTTP 403
        return
    await socket.accept()
    lock = asyncio.Lock()

    async def send(text: str) -> None:
        if leadership.role is Role.DEPOSED:
            raise Unavailable("this hub does not lead any more")
        try:
            async with lock:
                await socket.send_text(text)
        except (RuntimeError, WebSocketDisconnect) as error:
            raise Unavailable(f"connection closed: {error}") from error

    try:
        hello = _hello(await socket.receive_text())
        await claim.take(hello)
        node = inbox.connected(hello, send)
        node.hub_address = (socket.scope.get("server") or ("",))[0]
    except (CorruptData, UsageError) as error:
        await socket.close(POLICY_VIOLATION, str(error)[:120])
        return
    except WebSocketDisconnect:
        return
    await _listen(socket, inbox, node, send, claim)


def _hello(text: str) -> Hello:
    message = decode(text)
    if not isinstance(message, Hello):
        raise CorruptData(f"first message is {type(message).__name__}, not Hello")
    for name in ("node", "job"):
        value = getattr(message, name)
        if not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
            raise CorruptData(f"{name} {value[:40]!r}: allowed: 1 to {LONGEST_NAME} printable characters")
    for name, (least, most) in _LIMITS.items():
        value = getattr(message, name)
        if not least <= value <= most:
            raise CorruptData(f"{name} {value}: allowed: {least} to {most}")
    return message


async def _listen(socket: WebSocket, inbox: HeartbeatInbox, node: Node, send: Send, claim: Claim) -> None:
    try:
        while True:
            text = await socket.receive_text()
            if not node.owns(send):  # given up meanwhile: it has to say hello again
                await socket.close(POLICY_VIOLATION, "this node counted as lost")
                return
            inbox.take(node, send, text, claim.takes)
    except UsageError as error:
        await socket.close(POLICY_VIOLATION, str(error)[:120])
    except WebSocketDisconnect:
        pass
    finally:
        inbox.disconnected(node, send)
