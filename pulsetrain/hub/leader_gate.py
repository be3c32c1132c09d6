"""What a hub that does not lead answers: only the leader takes agents, records and orders."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsetrain.hub.leadership import Leadership, Role

LEADER_PATH = "/v1/leader"
ANSWERED = ("/ping", "/metrics", "/v1/status")  # by a hub that waits as well
DECIDES = (Role.ALONE, Role.LEADER)


class LeaderGate:
    """Passes requests on while this hub leads. Otherwise they get status 503 and the leader's URL.

    ``/v1/leader`` needs no token: 200 where this hub leads, 503 elsewhere. It is what a load balancer asks.
    """

    def __init__(self, app: ASGIApp, leadership: Leadership) -> None:
        self._app, self._leadership = app, leadership

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one WebSocket, or the application's life."""
        path = scope.get("path", "")
        role, leader = self._leadership.role, self._leadership.leader()
        if scope["type"] == "http" and path == LEADER_PATH:
            response = JSONResponse({"role": role, "leader": leader}, 200 if role in DECIDES else 503)
            await response(scope, receive, send)
        elif scope["type"] == "lifespan" or role in DECIDES or path in ANSWERED:
            await self._app(scope, receive, send)
        else:
            error = f"this hub is {role}; the leader is {leader or 'not known'}"
            await JSONResponse({"error": error, "leader": leader}, 503)(scope, receive, send)
