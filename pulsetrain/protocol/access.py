"""Who may speak to the hub: one token, given in any of the ways that ClickHouse's clients give a password."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.requests import HTTPConnection


def given_token(request: HTTPConnection) -> str:
    """The token in Authorization (Bearer, or Basic's password), X-ClickHouse-Key or ?password=; "": none."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return request.headers.get("x-clickhouse-key", "") or request.query_params.get("password", "")


def may(request: HTTPConnection, token: str) -> bool:
    """Whether the request carries `token`; compared in constant time. An empty `token` lets nobody in."""
    return bool(token) and hmac.compare_digest(given_token(request).encode(), token.encode())
