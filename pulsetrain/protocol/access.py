"""Who may speak to the hub: one token, sent in any of the ways that ClickHouse's clients send a password."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Protocol


class Request(Protocol):
    """The part of an HTTP request that can carry a token. Starlette's requests and WebSockets have it.

    This module does not import a web framework, because agents import it too.
    """

    @property
    def headers(self) -> Mapping[str, str]:
        """Header values. Lookups ignore the case of names."""
        ...

    @property
    def query_params(self) -> Mapping[str, str]:
        """Parameters of the URL."""
        ...


def given_token(request: Request) -> str:
    """The token in Authorization (Bearer or Basic's password), X-ClickHouse-Key or ?password=, else ""."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return request.headers.get("x-clickhouse-key", "") or request.query_params.get("password", "")


def is_authorized(request: Request, token: str) -> bool:
    """Whether the request carries `token`, compared in constant time. An empty `token` lets nobody in."""
    return bool(token) and hmac.compare_digest(given_token(request).encode(), token.encode())


def peer_key(token: str, job: str) -> str:
    """The key by which the agents of `job` know each other.

    It follows from the hub's own token, so that a new hub gives the same. Nobody else can tell it.

    >>> peer_key("a", "llama") == peer_key("b", "llama")
    False
    """
    return hmac.new(token.encode(), f"peers of job {job}".encode(), "sha256").hexdigest()
