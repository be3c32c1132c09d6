"""Incidents: findings that belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.analytics.incidents.correlate import join
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.core.clock import Clock
from pulsetrain.hub.routes.guard import guarded
from pulsetrain.records.findings import Finding


def routes(
    reported: Callable[[], Sequence[Finding]],
    still_open: Callable[[], Sequence[Finding]],
    topology: Callable[[], Topology],
    clock: Clock,
    token: str,
) -> list[BaseRoute]:
    """``/v1/incidents``, from every finding that was `reported`, and those of them that are `still_open`."""

    async def incidents(request: Request) -> Response:
        joined = join(reported(), topology(), now_ns=clock.wall_ns(), still_open=still_open())
        return JSONResponse({"incidents": joined})

    return [Route("/v1/incidents", guarded(incidents, token))]
