"""The hub's web application: every part's routes, and the loops that run beside them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.event_writer import EventWriter
from pulsetrain.hub.heartbeat_inbox import HeartbeatInbox
from pulsetrain.hub.leader_gate import LeaderGate
from pulsetrain.hub.leadership import GUARD_S, Leadership, Role
from pulsetrain.hub.links import Links
from pulsetrain.hub.loops import LoopTable
from pulsetrain.hub.node_claims import NodeClaims
from pulsetrain.hub.notifier import KeptTopology
from pulsetrain.hub.profiles import Profiles
from pulsetrain.hub.ras_reports import RasReports
from pulsetrain.hub.refusal_log import RefusalLog
from pulsetrain.hub.reporter import Reporter
from pulsetrain.hub.routes import (
    agents,
    alerts,
    hangs,
    incidents,
    links,
    moves,
    nodes,
    profiles,
    ranks,
    ras,
    silences,
    stacks,
    status,
    updates,
)
from pulsetrain.hub.stacks import Stacks
from pulsetrain.hub.status import StatusReport
from pulsetrain.hub.token_file import KnownTokens
from pulsetrain.hub.token_gate import TokenGate
from pulsetrain.hub.watch_pace import WatchPace
from pulsetrain.records.findings import Finding
from pulsetrain.recovery.controller import Controller
from pulsetrain.stream.store import server
from pulsetrain.stream.store.clickhouse import Store
from pulsetrain.stream.store.intake import Intake

log = structlog.get_logger()

RECALL_S = 3.0
"""For so long a hub that takes the lead waits for the store."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a hub is made of. `facts` is what it says of itself. `past_findings` reads what earlier hubs have
    found, the newest of each job first. It blocks."""

    store: Store
    writer: EventWriter
    alerts: AlertBook
    controller: Controller
    inbox: HeartbeatInbox
    reporter: Reporter
    past_findings: Callable[[], Sequence[Finding]]
    recall: Callable[[Sequence[Finding]], None]
    stacks: Stacks
    ras: RasReports
    profiles: Profiles
    links: Links
    report: StatusReport
    leadership: Leadership
    loops: TaskSupervisor
    table: LoopTable
    topology: KeptTopology
    intake: Intake
    pace: WatchPace
    clock: Clock
    token: str
    tokens: KnownTokens
    claims: NodeClaims
    facts: dict[str, object]


def build(parts: Parts, deposed: Callable[[], None] = lambda: None) -> Starlette:
    """The application. Its loops run while it serves and this hub leads. `deposed` is called once it does
    not lead any more."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        guard = asyncio.create_task(_guard(parts, deposed), name="leadership")
        yield
        guard.cancel()
        await asyncio.gather(guard, return_exceptions=True)
        await parts.loops.stop()

    gate = Middleware(LeaderGate, leadership=parts.leadership)
    refusals = RefusalLog(parts.writer, parts.clock)
    tokens = Middleware(TokenGate, tokens=parts.tokens, own=parts.token, clock=parts.clock, refusals=refusals)
    return Starlette(routes=[*api(parts), *records(parts)], lifespan=lifespan, middleware=[gate, tokens])


async def _guard(parts: Parts, deposed: Callable[[], None]) -> None:
    """Run the loops from the moment at which this hub leads until the one at which it does not."""
    while parts.leadership.role is Role.WAITING:
        await asyncio.sleep(GUARD_S)
    if parts.leadership.role is not Role.ALONE:
        await _recall(parts)
    parts.loops.start()
    if parts.leadership.role is Role.ALONE:
        return
    while parts.leadership.role is Role.LEADER:
        await asyncio.sleep(GUARD_S)
    log.error("deposed", leader=parts.leadership.leader())
    await parts.loops.stop()
    deposed()


async def _recall(parts: Parts) -> None:
    """Learn what the last leader has found. For a store that does not answer nobody's jobs wait."""
    try:
        past = await asyncio.wait_for(asyncio.to_thread(parts.past_findings), RECALL_S)
    except Exception as error:  # noqa: BLE001 - a leader without loops would heal nobody
        log.warning("findings_not_recalled", error=str(error))
    else:
        parts.recall(past)


def api(parts: Parts) -> list[BaseRoute]:
    """The JSON API and the agents' WebSocket."""
    controller, clock, token = parts.controller, parts.clock, parts.token
    return [
        *stacks.routes(parts.stacks, token),
        *ras.routes(parts.ras, token),
        *profiles.routes(parts.profiles, token),
        *links.routes(parts.links, token),
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
        *nodes.routes(controller, clock, token),
        *hangs.routes(controller, token),
        *ranks.routes(controller, token),
        *moves.routes(controller, token),
        *updates.routes(controller, token),
        *agents.routes(parts.inbox, token, parts.leadership, parts.claims),
    ]


def records(parts: Parts) -> list[BaseRoute]:
    """Ingest, query and metrics routes."""
    refusal = parts.claims.refusal_of_rows
    return server.routes(
        parts.store, token=parts.token, intake=parts.intake, refusal=refusal, pace=parts.pace
    )
