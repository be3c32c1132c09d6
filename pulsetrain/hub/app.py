"""The hub's web application: every part's routes, and the loops that live beside them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain import __version__
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.correlate import join
from pulsetrain.analytics.incidents.notify import Channel, deliver
from pulsetrain.analytics.verdict import state_of
from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import UsageError
from pulsetrain.hub.event_writer import EventWriter
from pulsetrain.hub.summary import verdict
from pulsetrain.hub.watcher import Watcher
from pulsetrain.recovery import api, view
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.job import Job
from pulsetrain.stream.store import server
from pulsetrain.stream.store.clickhouse import Store

log = structlog.get_logger()

NOTIFY_S = 1.0
LONGEST_SILENCE_S = 30 * 86_400


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a hub is made of."""

    store: Store
    desk: EventWriter
    alerts: AlertBook
    controller: Controller
    watcher: Watcher
    clock: Clock
    token: str
    journal: Path
    channels: Mapping[str, Channel]
    facts: dict[str, Any]


def build(parts: Parts) -> Starlette:
    """The application; its loops run while it serves."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loops = [
            asyncio.create_task(parts.watcher.look_live()),
            asyncio.create_task(parts.watcher.look_at_store()),
            asyncio.create_task(notify(parts)),
        ]
        yield
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)

    routes: list[BaseRoute] = [
        *_api(parts),
        *api.routes(parts.controller, parts.clock, parts.token),
        *server.routes(parts.store, token=parts.token, journal=parts.journal),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def notify(parts: Parts) -> None:
    """Loop: let time pass for alerts and carry what is due to its channels, in a thread."""
    while True:
        await asyncio.sleep(NOTIFY_S)
        try:
            await asyncio.to_thread(deliver, parts.alerts, parts.channels, parts.clock.wall_ns())
        except Exception as error:  # the next round still runs, and nothing is lost
            parts.watcher.failures += 1
            log.exception("notify_failed", error=repr(error))


def status(parts: Parts) -> dict[str, Any]:
    """What `pulsetrain status` and the dashboard show."""
    facts = parts.facts | {
        "version": __version__,
        "watch_failures": parts.watcher.failures,
        "written_rows": parts.desk.written_rows,
        "unwritten_rows": parts.desk.failed_rows,
    }
    return {"hub": facts, "jobs": [_job(parts, job) for job in parts.controller.jobs.values()]}


def _job(parts: Parts, job: Job) -> dict[str, Any]:
    now = parts.clock.monotonic_s()
    memory = parts.watcher.of(job)
    beats = [now - n.beat_s for n in job.active() if n.heartbeat is not None]
    row = view.job_row(job, now)
    row["verdict"] = verdict(job, memory.findings(), min(beats, default=0.0))
    row["findings"] = [f.row() for f in memory.findings()]
    row["detectors"] = [state_of(v) for v in memory.verdicts]
    row["median_step_s"] = memory.median_step_ns / 1e9
    return row


def _api(parts: Parts) -> list[BaseRoute]:
    async def show_status(request: Request) -> Response:
        return JSONResponse(status(parts))

    async def alerts(request: Request) -> Response:
        return JSONResponse({"alerts": list(parts.alerts.list(parts.clock.wall_ns()))})

    async def acknowledge(request: Request) -> Response:
        body = await api.json_body(request, "actor")
        alert = request.path_params["alert"]
        try:
            parts.alerts.acknowledge(
                alert, str(body["actor"]), str(body.get("note", "")), parts.clock.wall_ns()
            )
        except KeyError as error:
            raise UsageError(f"no alert {alert!r}") from error
        return JSONResponse({"acknowledged": alert})

    async def history(request: Request) -> Response:
        return JSONResponse({"history": list(parts.alerts.history(request.path_params["alert"]))})

    async def silences(request: Request) -> Response:
        now = parts.clock.wall_ns()
        return JSONResponse({"silences": [dataclasses.asdict(s) for s in parts.alerts.silences(now)]})

    async def silence(request: Request) -> Response:
        body = await api.json_body(request, "actor", "matchers", "seconds")
        now = parts.clock.wall_ns()
        made = parts.alerts.silence(
            _matchers(body["matchers"]),
            actor=str(body["actor"]),
            comment=str(body.get("comment", "")),
            now_ns=now,
            expires_ns=now + _silence_ns(body["seconds"]),
        )
        return JSONResponse(dataclasses.asdict(made))

    async def end_silence(request: Request) -> Response:
        body = await api.json_body(request, "actor")
        name = request.path_params["silence"]
        try:
            parts.alerts.expire_silence(name, str(body["actor"]), parts.clock.wall_ns())
        except KeyError as error:
            raise UsageError(f"no silence {name!r}") from error
        return JSONResponse({"ended": name})

    async def incidents(request: Request) -> Response:
        found = [f for memory in parts.watcher.jobs.values() for f in memory.told]
        return JSONResponse({"incidents": join(found, parts.alerts.topology, now_ns=parts.clock.wall_ns())})

    def job_named(request: Request) -> Job:
        name = request.path_params["job"]
        if name not in parts.controller.jobs:
            known = ", ".join(sorted(parts.controller.jobs)) or "none"
            raise UsageError(f"no job {name!r} runs here; jobs here: {known}")
        return parts.controller.jobs[name]

    async def last_stacks(request: Request) -> Response:
        return JSONResponse(parts.watcher.stacks.latest(job_named(request).name))

    async def take_stacks(request: Request) -> Response:
        body = await api.json_body(request, "actor")
        return JSONResponse(await parts.watcher.stacks.take(job_named(request), str(body["actor"])))

    token = parts.token
    return [
        Route("/v1/jobs/{job}/stacks", api.guarded(last_stacks, token), methods=["GET"]),
        Route("/v1/jobs/{job}/stacks", api.guarded(take_stacks, token), methods=["POST"]),
        Route("/v1/status", api.guarded(show_status, token)),
        Route("/v1/alerts", api.guarded(alerts, token)),
        Route("/v1/alerts/{alert}/ack", api.guarded(acknowledge, token), methods=["POST"]),
        Route("/v1/alerts/{alert}/history", api.guarded(history, token)),
        Route("/v1/silences", api.guarded(silences, token), methods=["GET"]),
        Route("/v1/silences", api.guarded(silence, token), methods=["POST"]),
        Route("/v1/silences/{silence}/end", api.guarded(end_silence, token), methods=["POST"]),
        Route("/v1/incidents", api.guarded(incidents, token)),
    ]


def _matchers(given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        raise UsageError(f"silence matchers = {given!r}: allowed: an object of field and value")
    return {str(name): str(value) for name, value in given.items()}


def _silence_ns(seconds: Any) -> int:
    if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_SILENCE_S:
        raise UsageError(f"silence seconds = {seconds!r}: allowed: above 0, at most {LONGEST_SILENCE_S}")
    return int(seconds * 1e9)
