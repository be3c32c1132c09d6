"""Incidents: findings that belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.analytics.incidents.correlate import join
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.core.clock import Clock
from pulsetrain.hub.routes.guard import guarded
from pulsetrain.records.findings import Finding


def _answer(
    reported: Sequence[Finding], topology: Topology, now_ns: int, still_open: Sequence[Finding]
) -> Response:
    """The incidents. To join 20,000 findings takes a second, so a thread of its own does it."""
    return JSONResponse({"incidents": join(reported, topology, now_ns=now_ns, still_open=still_open)})


def routes(
    reported: Callable[[], Sequence[Finding]],
    still_open: Callable[[], Sequence[Finding]],
    topology: Callable[[], Topology],
    clock: Clock,
    token: str,
) -> list[BaseRoute]:
    """``/v1/incidents``, from every finding that was `reported`, and those of them that are `still_open`."""

    one_at_a_time = asyncio.Lock()

    async def incidents(request: Request) -> Response:
        async with one_at_a_time:
            known = list(reported()), topology(), clock.wall_ns(), list(still_open())
            return await asyncio.to_thread(_answer, *known)

    return [Route("/v1/incidents", guarded(incidents, token))]
