"""What every route of the hub shares: the token, usage errors as one JSON line, and a request's JSON body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.access import is_authorized

Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint, token: str) -> Endpoint:
    """The endpoint behind the token: 401 without it. A usage error is 400 with one JSON line."""

    async def guard(request: Request) -> Response:
        if not is_authorized(request, token):
            return JSONResponse({"error": "missing or wrong token"}, 401)
        try:
            return await endpoint(request)
        except UsageError as error:
            return JSONResponse({"error": str(error)}, 400)

    return guard


async def json_body(request: Request, *required: str) -> JsonObject:
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


def number(body: JsonObject, name: str, default: float) -> float:
    """A number of a request's body, `default` where it is missing or empty. Raises `UsageError`."""
    value = body.get(name)
    if value in (None, ""):
        return default
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} = {str(value)[:80]!r}: not a number") from None
