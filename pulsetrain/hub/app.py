"""The hub's web application: every part's routes, and the loops that run beside them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.event_writer import EventWriter
from pulsetrain.hub.loops import LoopTable
from pulsetrain.hub.notifier import KeptTopology
from pulsetrain.hub.reporter import Reporter
from pulsetrain.hub.routes import agents, alerts, hangs, incidents, nodes, silences, stacks, status
from pulsetrain.hub.stacks import Stacks
from pulsetrain.hub.status import StatusReport
from pulsetrain.recovery.controller import Controller
from pulsetrain.stream.store import server
from pulsetrain.stream.store.clickhouse import Store
from pulsetrain.stream.store.intake import Intake


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a hub is made of. `facts` is what it says of itself."""

    store: Store
    writer: EventWriter
    alerts: AlertBook
    controller: Controller
    reporter: Reporter
    stacks: Stacks
    report: StatusReport
    loops: TaskSupervisor
    table: LoopTable
    topology: KeptTopology
    intake: Intake
    clock: Clock
    token: str
    facts: dict[str, object]


def build(parts: Parts) -> Starlette:
    """The application. Its loops run while it serves."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        parts.loops.start()
        yield
        await parts.loops.stop()

    return Starlette(routes=[*api(parts), *records(parts)], lifespan=lifespan)


def api(parts: Parts) -> list[BaseRoute]:
    """The JSON API and the agents' WebSocket."""
    controller, clock, token = parts.controller, parts.clock, parts.token
    return [
        *stacks.routes(parts.stacks, token),
        *status.routes(parts.report.status, clock, token),
        *alerts.routes(parts.alerts, clock, token),
        *silences.routes(parts.alerts, clock, token),
        *incidents.routes(
            parts.reporter.reported,
            parts.reporter.all_open,
            parts.topology,
            clock,
            token,
        ),
        *nodes.routes(controller, token),
        *hangs.routes(controller, token),
        *agents.routes(controller, token),
    ]


def records(parts: Parts) -> list[BaseRoute]:
    """Ingest, query and metrics routes."""
    return server.routes(parts.store, token=parts.token, intake=parts.intake)
