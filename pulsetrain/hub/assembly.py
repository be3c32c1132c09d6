"""Makes the parts of a hub, wires them, and adds their loops to the supervisor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pulsetrain.analytics.analyze import for_device
from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.notify import forgetful
from pulsetrain.analytics.machines import hardware_policy, policies
from pulsetrain.analytics.machines.signs import Tables
from pulsetrain.analytics.report import device_peak
from pulsetrain.analytics.slowness.device_peaks import Peak
from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.supervisor import AsyncTurn, TaskSupervisor
from pulsetrain.hub import audit_log
from pulsetrain.hub.app import Parts
from pulsetrain.hub.attempt_stores import stores_of
from pulsetrain.hub.audit_log import AuditLog
from pulsetrain.hub.check_watch import CheckWatch
from pulsetrain.hub.event_writer import EventWriter
from pulsetrain.hub.hang_evidence import HangEvidence
from pulsetrain.hub.hardware_watch import HardwareWatch
from pulsetrain.hub.heartbeat_inbox import HeartbeatInbox
from pulsetrain.hub.job_memory import KeptMemory
from pulsetrain.hub.leadership import Alone, LeaderCollector, Leadership, Role
from pulsetrain.hub.links import Links
from pulsetrain.hub.live_watch import LiveWatch
from pulsetrain.hub.loop_health import LoopHealth
from pulsetrain.hub.loop_metrics import LoopCollector
from pulsetrain.hub.loops import LoopTable
from pulsetrain.hub.node_claims import NodeClaims, RefusalCollector
from pulsetrain.hub.node_metrics import NodeCollector
from pulsetrain.hub.notifier import KeptTopology, Notifier
from pulsetrain.hub.open_alerts import OpenAlerts
from pulsetrain.hub.over_jobs import OverJobs
from pulsetrain.hub.past_jobs import PastJobs
from pulsetrain.hub.past_store import PastStore
from pulsetrain.hub.profiles import Profiles
from pulsetrain.hub.ras_reports import RasReports
from pulsetrain.hub.reporter import Reporter
from pulsetrain.hub.scheduler_metrics import SchedulerCollector
from pulsetrain.hub.schedulers import requests_to
from pulsetrain.hub.settings import Settings
from pulsetrain.hub.stacks import Stacks
from pulsetrain.hub.status import StatusReport
from pulsetrain.hub.store_analysis import StoreAnalysis
from pulsetrain.hub.stored_records import StoreRecords
from pulsetrain.hub.suspects import Suspects
from pulsetrain.hub.switch_watch import SwitchWatch
from pulsetrain.hub.time_metrics import TimeCollector
from pulsetrain.hub.token_file import KnownTokens, TokenFile
from pulsetrain.hub.watch_pace import WatchPace
from pulsetrain.protocol.access import peer_key
from pulsetrain.records.ddl import REMEMBERED_S
from pulsetrain.records.findings import Finding
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.pool_driver import PoolDriver
from pulsetrain.recovery.state import Services
from pulsetrain.stream.queries import views
from pulsetrain.stream.store.clickhouse import Store
from pulsetrain.stream.store.intake import Intake

STALE_S: Mapping[str, float] = {
    "controller": 5.0,
    "heartbeats": 5.0,
    "live watch": 5.0,
    "hardware watch": 10.0,
    "check watch": 10.0,
    "switch watch": 30.0,
    "open alerts": 120.0,
    "store analysis": 120.0,
    "notifications": 120.0,
    "loop health": 10.0,
    "past jobs": 600.0,
    "over jobs": 300.0,
    "pool": 5.0,
    "job memory": 90.0,
}
"""The age above which a loop counts as stuck. Analysis and delivery may take long."""


@dataclass(frozen=True, kw_only=True)
class Detection:
    """What looks for trouble in jobs and reports it."""

    reporter: Reporter
    past_findings: Callable[[], Sequence[Finding]]
    recall: Callable[[Sequence[Finding]], None]
    stacks: Stacks
    ras: RasReports
    live: LiveWatch
    machines: HardwareWatch
    checks: CheckWatch
    switches: SwitchWatch
    open_alerts: OpenAlerts
    analysis: StoreAnalysis
    past: PastJobs
    over: OverJobs
    records: StoreRecords


def assemble(
    store: Store,
    memory: KeptMemory,
    data: Path,
    url: str,
    token: str,
    settings: Settings,
    clock: Clock | None = None,
    loops: TaskSupervisor | None = None,
    leadership: Leadership | None = None,
) -> Parts:
    """Every part of a hub, wired. Its loops begin when the application starts. `memory` outlives it."""
    clock, loops = clock or SystemClock(), loops or TaskSupervisor()
    leadership = leadership or Alone(url)
    writer = EventWriter(store, clock, audit=AuditLog(data / audit_log.NAME))
    channels = AlertConfig(channels=tuple(settings.channels), forgetful=forgetful(settings.channels))
    alerts = AlertBook(data / "alerts.db", channels)
    scheduler = requests_to(settings.scheduler, os.environ)
    services = Services(
        policy=settings.policy,
        journal=writer,
        clock=clock,
        background=loops,
        memory=memory,
        peer_key=partial(peer_key, token),
        scheduler=scheduler,
        stores=stores_of(settings.hub),
        pool=settings.pool,
    )
    controller = Controller(services, loops, last_attempt=lambda job: views.last_attempt(store, job))
    intake = Intake(
        store,
        data / "journal",
        clock,
        shared=leadership.role is not Role.ALONE,
        may_store=lambda: leadership.role is not Role.DEPOSED,
        remembered_s=REMEMBERED_S if settings.store.cluster else None,
    )
    pace = WatchPace(clock, lambda: intake.spent_s)
    inbox = HeartbeatInbox(controller, clock, pace.message)
    loops.add("heartbeats", inbox.turn, stale_after_s=STALE_S["heartbeats"])
    detection = _detection(controller, alerts, writer, store, intake, pace, memory, settings, clock, loops)
    if leadership.role is Role.ALONE:
        detection.recall(detection.past_findings())
    own = [lambda: loops.statuses() if loops.started else (), lambda: [writer.status(), intake.status()]]
    table = LoopTable(own, controller.jobs)
    intake.metrics.registry.register(LoopCollector(table.rows))
    intake.metrics.registry.register(LeaderCollector(leadership))
    intake.metrics.registry.register(TimeCollector(controller.jobs))
    intake.metrics.registry.register(NodeCollector(controller.jobs))
    claims = NodeClaims(controller.node, writer, clock)
    intake.metrics.registry.register(RefusalCollector(claims.refused))
    intake.metrics.registry.register(SchedulerCollector(scheduler))
    topology = KeptTopology(controller.jobs)
    notifier = Notifier(alerts, settings.channels, topology, clock)
    policy = settings.policy
    pool = PoolDriver(
        controller.jobs,
        settings.pool,
        clock,
        observe_only=policy.observe_only,
        adopt_s=policy.adopt_timeout_s,
    )
    if settings.pool.enabled:
        loops.add("pool", pool.turn, stale_after_s=STALE_S["pool"] + settings.pool.tick_s)
    _add_loops(loops, controller, detection, notifier, LoopHealth(table.rows, alerts, clock), memory)
    facts = _facts(url, data, clock) | {"observe_only": settings.policy.observe_only}
    return Parts(
        store=store,
        writer=writer,
        alerts=alerts,
        controller=controller,
        inbox=inbox,
        reporter=detection.reporter,
        past_findings=detection.past_findings,
        recall=detection.recall,
        stacks=detection.stacks,
        ras=detection.ras,
        profiles=Profiles(controller.jobs, detection.live, writer),
        links=Links(controller.jobs),
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
            leadership,
            pool,
        ),
        leadership=leadership,
        loops=loops,
        table=table,
        topology=topology,
        intake=intake,
        pace=pace,
        clock=clock,
        token=token,
        tokens=KnownTokens(TokenFile(data)),
        claims=claims,
        facts=facts,
    )


def _add_loops(
    loops: TaskSupervisor,
    controller: Controller,
    detection: Detection,
    notifier: Notifier,
    health: LoopHealth,
    memory: KeptMemory,
) -> None:
    turns: Mapping[str, AsyncTurn] = {
        "controller": controller.turn,
        "live watch": detection.live.turn,
        "hardware watch": detection.machines.turn,
        "check watch": detection.checks.turn,
        "switch watch": detection.switches.turn,
        "open alerts": detection.open_alerts.turn,
        "store analysis": detection.analysis.turn,
        "notifications": notifier.turn,
        "loop health": health.turn,
        "past jobs": detection.past.turn,
        "over jobs": detection.over.turn,
        "job memory": memory.turn,
    }
    for name, turn in turns.items():
        loops.add(name, turn, stale_after_s=STALE_S[name])


def _detection(
    controller: Controller,
    alerts: AlertBook,
    writer: EventWriter,
    store: Store,
    intake: Intake,
    pace: WatchPace,
    memory: KeptMemory,
    settings: Settings,
    clock: Clock,
    loops: TaskSupervisor,
) -> Detection:
    jobs, config, device = controller.jobs, settings.watch, _device(settings)
    reporter = Reporter(jobs, writer, alerts, clock)
    past = PastStore(store, dict(for_device(device)), store.inserts)
    stacks = Stacks(jobs, writer, clock, loops, stopped_s=config.stopped_s)
    ras = RasReports(jobs, writer, clock, loops, stopped_s=config.stopped_s)
    records = StoreRecords(
        store, device, inserts=intake.inserts, hurry=intake.hurry, versions=store.inserts, clock=clock
    )
    suspects = Suspects(jobs, clock, loops)
    live = LiveWatch(jobs, HangEvidence(stacks, ras), reporter, clock, config, suspects, memory)
    machines = HardwareWatch(jobs, reporter, site_tables(settings.hub.policies), clock)
    checks, switches = CheckWatch(jobs, reporter), SwitchWatch(jobs, reporter, reporter, clock)
    analysis = StoreAnalysis(jobs, records, reporter, clock, stacks.detector, pace)
    past_jobs = PastJobs(jobs, past, reporter, writer, clock)
    by_job = (live, machines, checks, switches, analysis, records, stacks, ras, reporter)

    def recall(earlier: Sequence[Finding]) -> None:
        reporter.recall(earlier, alerts.is_active)
        records.recall(finding for finding in earlier if alerts.is_active(finding))

    return Detection(
        reporter=reporter,
        recall=recall,
        past_findings=lambda: past.findings(clock.wall_ns(), memory.jobs()),
        stacks=stacks,
        ras=ras,
        live=live,
        machines=machines,
        checks=checks,
        switches=switches,
        open_alerts=OpenAlerts(jobs, reporter, alerts, clock),
        analysis=analysis,
        past=past_jobs,
        over=OverJobs(controller, past_jobs.has_ended, reporter, [each.forget for each in by_job]),
        records=records,
    )


def site_tables(folder: str) -> Tables:
    """The policy tables, with a site's own rows where `folder` names some. Raises `ConfigError`."""
    site = Path(folder) if folder else None
    return Tables(policies=policies.load(site), responses=hardware_policy.load(site))


def _device(settings: Settings) -> Peak | None:
    device = settings.hub.device
    return device_peak(device, option="[hub] device") if device else None


def _facts(url: str, data: Path, clock: Clock) -> dict[str, object]:
    return {"url": url, "pid": os.getpid(), "data": str(data), "started_ns": clock.wall_ns()}
