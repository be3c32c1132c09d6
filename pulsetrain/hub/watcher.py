"""Live verdicts: a few times a second from heartbeats, each second from the store."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import structlog

from pulsetrain.analytics import watch
from pulsetrain.analytics.analyze import MACHINE_ANALYZERS, analyze, for_device
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.slowness.device_peaks import Peak
from pulsetrain.analytics.verdict import Verdict
from pulsetrain.analytics.verdict import findings as found
from pulsetrain.core.clock import Clock
from pulsetrain.hub.event_writer import EventWriter
from pulsetrain.hub.finding_dedup import FindingDedup
from pulsetrain.hub.stacks import Stacks
from pulsetrain.hub.storage_lag import StorageLag
from pulsetrain.records.findings import Finding, recorded
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.job import Job
from pulsetrain.recovery.nodes import GONE, NodeState
from pulsetrain.recovery.record import Recovery
from pulsetrain.recovery.transitions import TERMINAL, Event, Phase
from pulsetrain.recovery.world import node_of
from pulsetrain.stream.queries import views
from pulsetrain.stream.queries.storage import stored_step
from pulsetrain.stream.store.clickhouse import Store

log = structlog.get_logger()

LIVE_S = 0.25
HURRY_S = 0.05  # while a recovery waits for its cause
STORE_S = 1.0
AGAIN_S = 0.4
MACHINES_S = 5.0
STORE_SHARE = 3
SURE = 0.9
SETTLE_NS = 250_000_000
PACE_STEPS = 50
TOLD = 1000


class JobWatch:
    """What the watcher remembers of one job."""

    def __init__(self) -> None:
        self.live = FindingDedup(patience=2)
        self.steps = FindingDedup(patience=3, sure=SURE)
        self.machines = FindingDedup(patience=3, sure=SURE)
        self.path = StorageLag()
        self.verdicts: list[Verdict] = []
        self.of_machines: list[Verdict] = []
        self.machines_s = -math.inf
        self.told: deque[Finding] = deque(maxlen=TOLD)
        self.attempt = -1
        self.first_exit_ns = 0
        self.explained = False
        self.recalled = False
        self._step_times: deque[tuple[int, float]] = deque(maxlen=PACE_STEPS)

    def pace(self, job: Job, now_s: float) -> None:
        """Note when the job's step counter moved; a new attempt starts afresh."""
        if job.attempt != self.attempt:
            self.attempt, self.first_exit_ns, self.explained = job.attempt, 0, False
            self._step_times.clear()
            self.live.clear()
            self.steps.clear()
            self.machines.clear()
            self.of_machines, self.machines_s = [], -math.inf
            self.path = StorageLag()
        if job.last_step >= 0 and (not self._step_times or job.last_step > self._step_times[-1][0]):
            self._step_times.append((job.last_step, now_s))

    @property
    def median_step_ns(self) -> int:
        """Median time of a step over the last moves of the counter; 0 while unknown."""
        moves = [(t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(self._step_times)]
        return int(statistics.median(moves) * 1e9) if moves else 0

    def findings(self) -> list[Finding]:
        """Open findings of both kinds, the live ones first."""
        return self.live.current() + self.steps.current() + self.machines.current()

    @property
    def doubtful(self) -> bool:
        """Whether the last look at the store found something that another look should confirm."""
        return self.steps.doubtful or self.machines.doubtful


class Watcher:
    """Looks at every job of the controller and tells desk, alerts and controller what it sees."""

    def __init__(
        self,
        controller: Controller,
        store: Store,
        desk: EventWriter,
        alerts: AlertBook,
        clock: Clock,
        config: watch.WatchConfig,
        device: Peak | None = None,
    ) -> None:
        self.jobs: dict[str, JobWatch] = {}
        self.failures = 0
        self._controller, self._store, self._desk, self._alerts = controller, store, desk, alerts
        self._clock, self._config = clock, config
        self.stacks = Stacks(desk, clock)
        analyzers = for_device(device)
        self._of_machines = {n: a for n, a in analyzers.items() if n in MACHINE_ANALYZERS}
        self._of_steps = {n: a for n, a in analyzers.items() if n not in MACHINE_ANALYZERS}

    def of(self, job: Job) -> JobWatch:
        """The memory for one job."""
        return self.jobs.setdefault(job.name, JobWatch())

    async def look_live(self) -> None:
        """Loop: clocks, exits and heartbeats."""
        while True:
            self._controller.tick()
            for job in list(self._controller.jobs.values()):
                try:
                    self._look(job)
                except Exception as error:  # one job's surprise must not blind the others
                    self.failures += 1
                    log.exception("watch_failed", job=job.name, error=repr(error))
            hurry = any(
                job.recovery is not None and not self.of(job).explained
                for job in self._controller.jobs.values()
            )
            await asyncio.sleep(HURRY_S if hurry else LIVE_S)

    async def look_at_store(self) -> None:
        """Loop: every analyzer over the stored records of running jobs, in a thread.

        Each second, sooner where a suspicion waits to be confirmed, less often where looking takes long: it
        may use a third of the time. Machines' counters and logs, sampled every few seconds, are looked at
        every five.
        """
        took_s = 0.0
        while True:
            doubtful = any(memory.doubtful for memory in self.jobs.values())
            await asyncio.sleep(max(AGAIN_S if doubtful else STORE_S, (STORE_SHARE - 1) * took_s))
            began_s = self._clock.monotonic_s()
            self._alerts.topology = self._topology()
            for job in list(self._controller.jobs.values()):
                await self._recall(job)
                if job.phase is Phase.RUNNING and job.first_step_done:
                    await self._analyze(job)
            took_s = self._clock.monotonic_s() - began_s

    def _topology(self) -> Topology:
        """Which rank is on which node, in every job that has a world."""
        jobs = self._controller.jobs.values()
        return Topology(node_of={(j.name, r): p.node for j in jobs for p in j.world for r in p.ranks})

    async def _recall(self, job: Job) -> None:
        """What an earlier hub found in this job, once: its incidents outlive a restart."""
        memory = self.of(job)
        if memory.recalled:
            return
        memory.recalled = True
        try:
            table = await asyncio.to_thread(views.findings, self._store, job.name, limit=TOLD)
            memory.told.extendleft(recorded(job.name, row) for row in table.to_pylist())
        except Exception as error:  # an old store, or one that is away: the new findings still count
            self.failures += 1
            log.exception("recall_failed", job=job.name, error=repr(error))

    async def _analyze(self, job: Job) -> None:
        memory, attempt = self.of(job), job.attempt
        now, now_s = self._clock.wall_ns(), self._clock.monotonic_s()
        machines = memory.machines.doubtful or now_s - memory.machines_s >= MACHINES_S
        looks = [self._of_steps, self._of_machines] if machines else [self._of_steps]
        try:
            verdicts = [
                await asyncio.to_thread(
                    analyze, self._store, job.name, attempt=attempt, now_ns=now, analyzers=analyzers
                )
                for analyzers in looks
            ]
            stored = await asyncio.to_thread(stored_step, self._store, job.name, attempt)
        except Exception as error:  # reported, and the next look still runs
            self.failures += 1
            log.exception("analysis_failed", job=job.name, error=repr(error))
            return
        if job.attempt != attempt:
            return
        fresh: list[Finding] = []
        if machines:
            memory.of_machines, memory.machines_s = verdicts[1], now_s
            fresh = memory.machines.look(found(verdicts[1]))
        path = memory.path.look(
            job.name,
            attempt,
            stored_step=stored,
            live_step=job.last_step,
            now_s=self._clock.monotonic_s(),
            now_ns=now,
        )
        of_steps = [*verdicts[0], path, self.stacks.detector(job.name)]
        memory.verdicts = [*of_steps, *memory.of_machines]
        self._tell(job, [*memory.steps.look(found(of_steps)), *fresh])
        told = [v for v in memory.verdicts if not isinstance(v, Finding)]
        self._alerts.observe([*told, *memory.findings()], now, job=job.name)

    def _look(self, job: Job) -> None:
        memory = self.of(job)
        memory.pace(job, self._clock.monotonic_s())
        if job.phase in TERMINAL:
            return
        view = self._view(job, memory)
        if job.recovery is not None and not memory.explained:
            self._explain(job, job.recovery, memory, view)
        elif job.phase is Phase.RUNNING and not view.exits and not view.lost_nodes:
            verdicts = watch.hang(view, self._config)
            self.stacks.consider(job, view, verdicts, self._config.stopped_s)
            fresh = memory.live.look(self.stacks.attach(job.name, job.attempt, found(verdicts)))
            self._tell(job, fresh)
            self._report_hang(job, fresh, view)

    def _explain(self, job: Job, recovery: Recovery, memory: JobWatch, view: watch.JobView) -> None:
        """Name the cause once the facts are in: connections settled, peers' exits heard."""
        if not view.exits and not view.lost_nodes:
            return
        crashed = recovery.fault.event is Event.RANK_FAILED
        heard_ns = recovery.fault.detected_ns if crashed else view.now_ns
        memory.first_exit_ns = memory.first_exit_ns or heard_ns
        unsettled = any(n.closed_s is not None and n.state not in GONE for n in job.nodes.values())
        if unsettled or (view.now_ns - memory.first_exit_ns < SETTLE_NS and not view.lost_nodes):
            return
        memory.explained = True
        findings = found(watch.crash(view))
        self._tell(job, memory.live.look(findings))
        for finding in findings:
            self._blame(job, finding)

    def _blame(self, job: Job, finding: Finding) -> None:
        """The analyzer saw more than the first exit: let the recovery carry its culprit."""
        recovery = job.recovery
        if recovery is None or finding.kind != "crash" or finding.subject_type != "rank":
            return
        rank = int(finding.subject)
        if recovery.fault.event is Event.RANK_FAILED and recovery.fault.rank != rank:
            fault = job.fault(
                Event.RANK_FAILED, "crash", finding.summary, node_of(job.world, rank), rank=rank
            )
            recovery.blame(fault)

    def _report_hang(self, job: Job, fresh: Sequence[Finding], view: watch.JobView) -> None:
        if not fresh:
            return
        worst = max(fresh, key=lambda f: f.confidence)
        rank = int(worst.subject) if worst.subject_type == "rank" else -1
        silent_ns = max((view.age_ns(r) for r in view.ranks if rank in (r.rank, -1)), default=0)
        fault = job.fault(
            Event.HANG,
            "hang",
            worst.summary,
            node_of(job.world, rank),
            rank=rank,
            onset_ns=view.now_ns - silent_ns,
        )
        job.report_fault(fault)

    def _view(self, job: Job, memory: JobWatch) -> watch.JobView:
        now_ns, now_s = self._clock.wall_ns(), self._clock.monotonic_s()
        seen: dict[int, int] = {}
        for place in job.world:
            node = job.nodes.get(place.node)
            if node is not None and node.heartbeat is not None and node.heartbeat.attempt == job.attempt:
                heard = now_ns - int((now_s - node.beat_s) * 1e9)
                seen |= {status.rank: heard for status in node.heartbeat.ranks}
        return watch.JobView(
            job=job.name,
            attempt=job.attempt,
            now_ns=now_ns,
            ranks=tuple(job.statuses()),
            exits=tuple(e for e in job.exits if e.code != 0),
            lost_nodes=tuple(
                p.node for p in job.world if p.node in job.nodes and job.nodes[p.node].state is NodeState.LOST
            ),
            median_step_ns=memory.median_step_ns,
            started_ns=job.started_ns,
            first_step_done=job.first_step_done,
            world=job.world,
            seen_ns=seen,
        )

    def _tell(self, job: Job, findings: Sequence[Finding]) -> None:
        self.of(job).told.extend(findings)
        for finding in findings:
            self._desk.finding(finding)
        if findings:
            self._alerts.observe(findings, self._clock.wall_ns(), job=job.name)
