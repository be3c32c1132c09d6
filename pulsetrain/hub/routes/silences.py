"""Silences: alerts that somebody muted for a time."""

from __future__ import annotations

import dataclasses

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.muting import Silence
from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.hub.routes.guard import guarded, json_body, text

LONGEST_SILENCE_S = 30 * 86_400


def routes(book: AlertBook, clock: Clock, token: str) -> list[BaseRoute]:
    """``/v1/silences`` and what lies below it."""

    async def silences(request: Request) -> Response:
        now_ns = clock.wall_ns()
        return JSONResponse({"silences": [row(silence, now_ns) for silence in book.silences(now_ns)]})

    def row(silence: Silence, now_ns: int) -> JsonObject:
        return {**dataclasses.asdict(silence), "covers": book.covered(silence, now_ns)}

    async def begin(request: Request) -> Response:
        body = await json_body(request, "actor", "matchers", "seconds")
        now_ns = clock.wall_ns()
        silence = book.silence(
            _matchers(body["matchers"]),
            actor=text(body, "actor"),
            comment=text(body, "comment"),
            now_ns=now_ns,
            expires_ns=now_ns + _duration_ns(body["seconds"]),
        )
        return JSONResponse(row(silence, now_ns))

    async def end(request: Request) -> Response:
        body = await json_body(request, "actor")
        name = request.path_params["silence"]
        try:
            book.expire_silence(name, text(body, "actor"), clock.wall_ns())
        except KeyError as error:
            raise UsageError(f"no silence {name!r}") from error
        return JSONResponse({"ended": name})

    return [
        Route("/v1/silences", guarded(silences, token), methods=["GET"]),
        Route("/v1/silences", guarded(begin, token), methods=["POST"]),
        Route("/v1/silences/{silence}/end", guarded(end, token), methods=["POST"]),
    ]


def _matchers(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        raise UsageError(f"silence matchers = {given!r}: allowed: an object of field and value")
    return {str(name): str(value) for name, value in given.items()}


def _duration_ns(seconds: object) -> int:
    if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_SILENCE_S:
        raise UsageError(f"silence seconds = {seconds!r}: allowed: above 0, at most {LONGEST_SILENCE_S}")
    return int(seconds * 1e9)
