"""The names under which browsers may reach the dashboard, against DNS rebinding.

A page on the internet may give its own name the address 127.0.0.1. For the browser the dashboard then belongs
to that page, which may press its buttons. Its requests still bear its name: such a name is refused.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

VARIABLE = "PULSETRAIN_DASHBOARD_HOSTS"
"""The environment variable with `[hub] dashboard_hosts`."""
_PROXY_HEADERS = (b"forwarded", b"via", b"x-real-ip")
_NOT_ON_THE_INTERNET = (".localhost", ".local", ".internal")
_HEALTH = "/_stcore/health"


class KnownHosts:
    """Refuses requests and WebSockets for names that nobody gave the dashboard.

    `names` are patterns of allowed names, separated by commas. Besides them it answers to addresses, to names
    without a dot, which nobody on the internet owns, and to `machine`. Without `names` it answers to every
    name over TLS, because no other page has its certificate, and behind a proxy that says so in a header. A
    page cannot set headers of a WebSocket.
    """

    def __init__(self, app: Asgi, names: str = "", machine: str | None = None) -> None:
        self._app = app
        self._names = [name.strip().lower() for name in names.split(",") if name.strip()]
        self._machine = (socket.gethostname() if machine is None else machine).lower()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request. See the ASGI specification."""
        if scope["type"] not in ("http", "websocket") or scope["path"] == _HEALTH or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            line = (
                f"The dashboard is not known by the name {_name(scope)[:200]!r}. Open it by localhost or an "
            )
            line += "address, or add the name to dashboard_hosts in table [hub] of the configuration.\n"
            await send({"type": "http.response.body", "body": line.encode()})

    def _knows(self, scope: Message) -> bool:
        name = _name(scope)
        if _is_local(name) or name == self._machine:
            return True
        if self._names:
            return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._names)
        return scope.get("scheme") in ("https", "wss") or any(map(_is_of_proxy, scope["headers"]))


def _name(scope: Message) -> str:
    """The name in the header Host, without its port."""
    host = next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == b"host"), "")
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:  # no address in brackets
        return host


def _is_local(name: str) -> bool:
    """Whether no page on the internet can have this name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_NOT_ON_THE_INTERNET)
    return True


def _is_of_proxy(header: tuple[bytes, bytes]) -> bool:
    name = header[0].lower()
    return name in _PROXY_HEADERS or name.startswith(b"x-forwarded-")
