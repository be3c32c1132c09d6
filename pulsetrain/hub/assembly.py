"""Makes the parts of a hub, wires them, and adds their loops to the supervisor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.analytics.analyze import for_device
from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.report import device_peak
from pulsetrain.analytics.slowness.device_peaks import Peak
from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.supervisor import AsyncTurn, TaskSupervisor
from pulsetrain.hub.app import Parts
from pulsetrain.hub.event_writer import EventWriter
from pulsetrain.hub.live_watch import LiveWatch
from pulsetrain.hub.loop_health import LoopHealth
from pulsetrain.hub.loop_metrics import LoopCollector
from pulsetrain.hub.loops import LoopTable
from pulsetrain.hub.notifier import KeptTopology, Notifier
from pulsetrain.hub.past_jobs import PastJobs
from pulsetrain.hub.past_store import PastStore
from pulsetrain.hub.reporter import Reporter
from pulsetrain.hub.settings import Settings
from pulsetrain.hub.stacks import Stacks
from pulsetrain.hub.status import StatusReport
from pulsetrain.hub.store_analysis import StoreAnalysis
from pulsetrain.hub.stored_records import StoreRecords
from pulsetrain.hub.suspects import Suspects
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.state import Services
from pulsetrain.stream.queries import views
from pulsetrain.stream.store.clickhouse import Store
from pulsetrain.stream.store.intake import Intake

STALE_S: Mapping[str, float] = {
    "controller": 5.0,
    "live watch": 5.0,
    "store analysis": 120.0,
    "notifications": 120.0,
    "loop health": 10.0,
    "past jobs": 600.0,
}
"""The age above which a loop counts as stuck. Analysis and delivery may take long."""


@dataclass(frozen=True, kw_only=True)
class Detection:
    """What looks for trouble in jobs and reports it."""

    reporter: Reporter
    stacks: Stacks
    live: LiveWatch
    analysis: StoreAnalysis
    past: PastJobs
    records: StoreRecords


def assemble(
    store: Store,
    data: Path,
    url: str,
    token: str,
    settings: Settings,
    clock: Clock | None = None,
    loops: TaskSupervisor | None = None,
) -> Parts:
    """Every part of a hub, wired. Its loops begin when the application starts."""
    clock, loops = clock or SystemClock(), loops or TaskSupervisor()
    writer = EventWriter(store, clock)
    alerts = AlertBook(data / "alerts.db", AlertConfig(channels=tuple(settings.channels)))
    services = Services(policy=settings.policy, journal=writer, clock=clock, background=loops)
    controller = Controller(services, loops, last_attempt=lambda job: views.last_attempt(store, job))
    detection = _detection(controller, alerts, writer, store, settings, clock, loops)
    intake = Intake(store, data / "journal", clock)
    table = LoopTable([loops.statuses, lambda: [writer.status(), intake.status()]], controller.jobs)
    intake.metrics.registry.register(LoopCollector(table.rows))
    topology = KeptTopology(controller.jobs)
    notifier = Notifier(alerts, settings.channels, topology, clock)
    _add_loops(loops, controller, detection, notifier, LoopHealth(table.rows, alerts, clock))
    facts = _facts(url, data, clock) | {"observe_only": settings.policy.observe_only}
    return Parts(
        store=store,
        writer=writer,
        alerts=alerts,
        controller=controller,
        reporter=detection.reporter,
        stacks=detection.stacks,
        report=StatusReport(
            facts,
            controller.jobs,
            detection.reporter,
            detection.live,
            writer,
            table,
            detection.past,
            detection.records,
            clock,
        ),
        loops=loops,
        table=table,
        topology=topology,
        intake=intake,
        clock=clock,
        token=token,
        facts=facts,
    )


def _add_loops(
    loops: TaskSupervisor,
    controller: Controller,
    detection: Detection,
    notifier: Notifier,
    health: LoopHealth,
) -> None:
    turns: Mapping[str, AsyncTurn] = {
        "controller": controller.turn,
        "live watch": detection.live.turn,
        "store analysis": detection.analysis.turn,
        "notifications": notifier.turn,
        "loop health": health.turn,
        "past jobs": detection.past.turn,
    }
    for name, turn in turns.items():
        loops.add(name, turn, stale_after_s=STALE_S[name])


def _detection(
    controller: Controller,
    alerts: AlertBook,
    writer: EventWriter,
    store: Store,
    settings: Settings,
    clock: Clock,
    loops: TaskSupervisor,
) -> Detection:
    jobs, config, device = controller.jobs, settings.watch, _device(settings)
    reporter = Reporter(jobs, writer, alerts, clock)
    past = PastStore(store, dict(for_device(device)))
    reporter.recall(past.findings())
    stacks = Stacks(jobs, writer, clock, loops, stopped_s=config.stopped_s)
    records = StoreRecords(store, device)
    return Detection(
        reporter=reporter,
        stacks=stacks,
        live=LiveWatch(jobs, stacks, reporter, clock, config, Suspects(jobs, clock, loops)),
        analysis=StoreAnalysis(jobs, records, reporter, clock, stacks.detector),
        past=PastJobs(jobs, past, reporter, writer, clock),
        records=records,
    )


def _device(settings: Settings) -> Peak | None:
    device = settings.hub.device
    return device_peak(device, option="[hub] device") if device else None


def _facts(url: str, data: Path, clock: Clock) -> dict[str, object]:
    return {"url": url, "pid": os.getpid(), "data": str(data), "started_ns": clock.wall_ns()}
