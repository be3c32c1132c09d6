"""What every route of the hub shares: the token, usage errors as one JSON line, and a request's JSON body."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject, refuse_half_pairs
from pulsetrain.hub.token_file import Grant
from pulsetrain.hub.token_gate import GRANT
from pulsetrain.protocol.access import is_authorized
from pulsetrain.stream.store.body import read_body

Endpoint = Callable[[Request], Awaitable[Response]]

MAX_BODY_BYTES = 1 << 20
MAX_TEXT = 4096


def guarded(endpoint: Endpoint, token: str) -> Endpoint:
    """The endpoint behind the token: 401 without it. A usage error is 400 with one JSON line."""

    async def guard(request: Request) -> Response:
        if not is_authorized(request, token):
            return JSONResponse({"error": "missing or wrong token"}, 401)
        try:
            return await endpoint(request)
        except UsageError as error:
            return JSONResponse({"error": str(error)}, 400)
        except ClientDisconnect:
            return Response(status_code=400)

    return guard


async def json_body(request: Request, *required: str) -> JsonObject:
    """The JSON object of a request. Its actor, who can say any name, gets the name of the token that it had.

    Raises `UsageError` for anything else, and where a key is missing.
    """
    raw = await read_body(request, MAX_BODY_BYTES)
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
        refuse_half_pairs(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"body is not JSON: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(body, dict):
        raise UsageError("body is not a JSON object")
    for key in required:
        value = body.get(key)
        if not (value.strip() if isinstance(value, str) else value):
            raise UsageError(f"{key!r} is missing or empty")
    grant: Grant | None = request.scope.get(GRANT)
    if grant is not None and isinstance(body.get("actor"), str):
        body["actor"] = f"{body['actor']} (token {grant.name})"
    return body


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def text(body: JsonObject, name: str) -> str:
    """A text of a request's body, "" where it is missing. Raises `UsageError` for anything else."""
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise UsageError(f"{name} = {str(value)[:80]!r}: allowed: a text of at most {MAX_TEXT} characters")
    return value


def texts(body: JsonObject, name: str) -> list[str]:
    """A list of texts of a request's body, empty where it is missing. Raises `UsageError` for another one."""
    values = body.get(name) or []
    if not isinstance(values, list):
        raise UsageError(f"{name} = {str(values)[:80]!r}: allowed: a list of texts")
    return [text({name: value}, name) for value in values]


def number(body: JsonObject, name: str, default: float) -> float:
    """A number of a request's body, `default` where it is missing or empty. Raises `UsageError`."""
    value = body.get(name)
    if value in (None, ""):
        return default
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise UsageError(f"{name} = {str(value)[:80]!r}: not a number")
    return found
