"""Makes the parts of a hub, wires them, and adds their loops to the supervisor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.report import device_peak
from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.app import Parts
from pulsetrain.hub.event_writer import EventWriter
from pulsetrain.hub.live_watch import LiveWatch
from pulsetrain.hub.loop_health import LoopHealth
from pulsetrain.hub.loop_metrics import LoopCollector
from pulsetrain.hub.loops import LoopTable
from pulsetrain.hub.notifier import Notifier
from pulsetrain.hub.reporter import Reporter
from pulsetrain.hub.settings import Settings
from pulsetrain.hub.stacks import Stacks
from pulsetrain.hub.status import StatusReport
from pulsetrain.hub.store_analysis import StoreAnalysis
from pulsetrain.hub.stored_records import StoreRecords
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
}
"""The age above which a loop counts as stuck. Analysis and delivery may take long."""


def assemble(
    store: Store,
    data: Path,
    url: str,
    token: str,
    settings: Settings,
    clock: Clock | None = None,
    loops: TaskSupervisor | None = None,
) -> Parts:
    """Every part of a hub, wired; its loops begin when the application starts."""
    clock, loops = clock or SystemClock(), loops or TaskSupervisor()
    writer = EventWriter(store, clock)
    alerts = AlertBook(data / "alerts.db", AlertConfig(channels=tuple(settings.channels)))
    services = Services(policy=settings.policy, journal=writer, clock=clock, background=loops)
    controller = Controller(services, loops, last_attempt=lambda job: views.last_attempt(store, job))
    jobs = controller.jobs
    reporter = Reporter(jobs, writer, alerts, clock)
    stacks = Stacks(jobs, writer, clock, loops, stopped_s=settings.watch.stopped_s)
    live = LiveWatch(jobs, stacks, reporter, clock, settings.watch)
    analysis = StoreAnalysis(jobs, _records(store, settings), reporter, clock, stacks.detector)
    intake = Intake(store, data / "journal", clock)
    table = LoopTable([loops.statuses, lambda: [writer.status(), intake.status()]], jobs)
    intake.metrics.registry.register(LoopCollector(table.rows))
    turns = {
        "controller": controller.turn,
        "live watch": live.turn,
        "store analysis": analysis.turn,
        "notifications": Notifier(alerts, settings.channels, jobs, clock).turn,
        "loop health": LoopHealth(table.rows, alerts, clock).turn,
    }
    for name, turn in turns.items():
        loops.add(name, turn, stale_after_s=STALE_S[name])
    facts = _facts(url, data, clock)
    return Parts(
        store=store,
        writer=writer,
        alerts=alerts,
        controller=controller,
        reporter=reporter,
        stacks=stacks,
        report=StatusReport(facts, jobs, reporter, live, writer, table),
        loops=loops,
        table=table,
        intake=intake,
        clock=clock,
        token=token,
        facts=facts,
    )


def _records(store: Store, settings: Settings) -> StoreRecords:
    device = settings.hub.device
    return StoreRecords(store, device_peak(device, option="[hub] device") if device else None)


def _facts(url: str, data: Path, clock: Clock) -> dict[str, object]:
    return {"url": url, "pid": os.getpid(), "data": str(data), "started_ns": clock.wall_ns()}
