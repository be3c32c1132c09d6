"""The WebSocket of the agents: reports come in, commands go out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import MappingProxyType

import structlog
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pulsetrain.core.errors import CorruptData, Unavailable, UsageError
from pulsetrain.hub.heartbeat_inbox import HeartbeatInbox
from pulsetrain.hub.leadership import Leadership, Role
from pulsetrain.hub.node_claims import Claim, NodeClaims
from pulsetrain.hub.token_gate import GRANT, UNAUTHORIZED
from pulsetrain.protocol.access import is_authorized
from pulsetrain.protocol.messages import CONFIRM, CONFIRM_HEADER, Confirm, Confirmed, Hello, decode, encode
from pulsetrain.recovery.nodes import Node, Send

log = structlog.get_logger()

POLICY_VIOLATION = 1008
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
        "heartbeat_ns": (0, 60 * 10**9),
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
    """One agent's connection, from its hello until it closes. A hub that was deposed sends no command. One of
    several has each of its commands confirmed, so that none is carried out that comes late."""
    if not is_authorized(socket, token):
        await socket.close(UNAUTHORIZED)  # before accept: the client sees HTTP 403
        return
    confirms = leadership.role is not Role.ALONE
    await socket.accept(headers=[(CONFIRM_HEADER.lower().encode(), b"1")] if confirms else None)
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
        await inbox.look_up(hello)
        node = inbox.connected(hello, send)
        node.hub_address = (socket.scope.get("server") or ("",))[0]
    except (CorruptData, UsageError) as error:
        await socket.close(POLICY_VIOLATION, str(error)[:120])
        return
    except WebSocketDisconnect:
        return
    async with contextlib.AsyncExitStack() as stack:
        answers = Answers(leadership, send)
        stack.push_async_callback(answers.end)
        await _listen(socket, inbox, node, claim, answers)


class Answers:
    """Answers an agent that asks whether this hub leads, beside whatever else it says."""

    def __init__(self, leadership: Leadership, send: Send) -> None:
        self._leadership, self.send = leadership, send
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, text: str) -> None:
        """Answer one question, as it came. A damaged one is skipped."""
        try:
            asked = decode(text)
        except CorruptData as error:
            log.warning("bad_message", error=str(error))
            return
        if isinstance(asked, Confirm):
            task = asyncio.create_task(self._answer(asked.id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Nobody waits any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, command: int) -> None:
        leads_s = await asyncio.wrap_future(self._leadership.confirm())
        with contextlib.suppress(Unavailable):
            await self.send(encode(Confirmed(id=command, leads_s=leads_s)))


def _hello(text: str) -> Hello:
    message = decode(text)
    if not isinstance(message, Hello):
        raise CorruptData(f"first message is {type(message).__name__}, not Hello")
    for name in ("node", "job"):
        value = getattr(message, name)
        if not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
            raise CorruptData(f"{name} {value[:40]!r}: allowed: 1 to {LONGEST_NAME} printable characters")
    if len(message.agent_id) > LONGEST_NAME:
        raise CorruptData(f"agent_id {message.agent_id[:40]!r}: allowed: up to {LONGEST_NAME} characters")
    for name, (least, most) in _LIMITS.items():
        value = getattr(message, name)
        if not least <= value <= most:
            raise CorruptData(f"{name} {value}: allowed: {least} to {most}")
    return message


async def _listen(
    socket: WebSocket, inbox: HeartbeatInbox, node: Node, claim: Claim, answers: Answers
) -> None:
    send = answers.send
    try:
        while True:
            text = await socket.receive_text()
            if not node.owns(send):  # given up meanwhile: it has to say hello again
                await socket.close(POLICY_VIOLATION, "this node counted as lost")
                return
            if text.startswith(CONFIRM):
                answers.begin(text)
                continue
            inbox.take(node, send, text, claim.takes)
    except UsageError as error:
        await socket.close(POLICY_VIOLATION, str(error)[:120])
    except WebSocketDisconnect:
        pass
    finally:
        inbox.disconnected(node, send)
