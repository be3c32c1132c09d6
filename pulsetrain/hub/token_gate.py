"""Who may do what with a token that is not the hub's own.

Routes know one token, the hub's own. A request with another one that the token file knows, and whose role
allows it, goes on as if it had that. Everything else goes on as it is, and routes refuse what they do not
know.
"""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsetrain.core.clock import Clock
from pulsetrain.hub.refusal_log import RefusalLog
from pulsetrain.hub.token_file import Grant, KnownTokens, Role
from pulsetrain.protocol.access import given_token

GRANT = "pulsetrain.grant"
"""Where routes find the `Grant` of a request in its scope. Without one it had the hub's own token."""
_TOKEN_HEADERS = (b"authorization", b"x-clickhouse-key")
UNAUTHORIZED = 4401
"""The code with which a WebSocket without a known token is closed."""
EXPIRED, ROLE, UNKNOWN = "expired", "role", "unknown"
_READS = ("GET", "HEAD")
_AGENTS_READ = ("/v1/status", "/ping")


class TokenGate:
    """Checks tokens of `tokens`, and passes requests on with the token `own`.

    `refusals` hears of what is refused, here or by the routes for a token that nobody knows.
    """

    def __init__(
        self, app: ASGIApp, tokens: KnownTokens, own: str, clock: Clock, refusals: RefusalLog
    ) -> None:
        self._app, self._tokens, self._own, self._clock = app, tokens, own, clock
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one WebSocket, or the application's life."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        grant = self._tokens.grant(given_token(HTTPConnection(scope)))
        if grant is None:
            await self._app(scope, receive, self._watched(scope, send))
        elif refusal := self._refusal(grant, scope):
            await refusal(scope, receive, send)
        else:
            await self._app(self._passed(scope, grant), receive, send)

    def _refusal(self, grant: Grant, scope: Scope) -> JSONResponse | None:
        if grant.has_expired(self._clock.wall_ns()):
            ended = datetime.fromtimestamp(grant.expires_ns / 1e9, UTC)
            return self._refused(
                EXPIRED, f"token {grant.name!r} expired at {ended:%Y-%m-%d %H:%M:%S} UTC", 401, grant, scope
            )
        if not may(grant, scope):
            what = f"{scope.get('method', 'connect to')} {scope['path'][:200]}"
            return self._refused(
                ROLE, f"token {grant.name!r} of role {grant.role} may not {what}", 403, grant, scope
            )
        return None

    def _refused(self, reason: str, why: str, status: int, grant: Grant, scope: Scope) -> JSONResponse:
        sender = _sender(scope)
        self._refusals.write(reason, why, token=grant.name, job=grant.job, node=grant.node, sender=sender)
        return JSONResponse({"error": why}, status)

    def _watched(self, scope: Scope, send: Send) -> Send:
        """`send` of a request whose token is the hub's own, or one that nobody knows, or none."""

        async def watched(message: Message) -> None:
            if message.get("status") == 401 or message.get("code") == UNAUTHORIZED:
                why = f"missing or wrong token for {scope['path'][:200]}"
                self._refusals.write(UNKNOWN, why, token="", sender=_sender(scope))
            await send(message)

        return watched

    def _passed(self, scope: Scope, grant: Grant) -> Scope:
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _TOKEN_HEADERS]
        headers.append((b"authorization", f"Bearer {self._own}".encode()))
        return {**scope, "headers": headers, GRANT: grant}


def _sender(scope: Scope) -> str:
    """The address that a request comes from."""
    return str((scope.get("client") or ("",))[0])


def may(grant: Grant, scope: Scope) -> bool:
    """Whether the role allows this request. Statements to ``/`` only read, whatever their method."""
    path, method = scope["path"], scope.get("method", "")
    if grant.role is Role.OPERATOR:
        return True
    if grant.role is Role.VIEWER:
        return scope["type"] == "http" and (method in _READS or path == "/")
    if scope["type"] == "websocket":
        return bool(path == "/v1/agent")
    if method in _READS:
        return path in _AGENTS_READ
    return bool(path == "/v1/records" or path.startswith("/v1/records/"))
