"""A live fleet against one hub: agents, heartbeats, records, faults, and a report every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import uvloop

from pulsetrain.core.errors import UsageError
from pulsetrain.core.open_files import allow_many_open_files
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import FirstStep, Leaving, RankExit
from pulsetrain.simulate.live import records
from pulsetrain.simulate.live.agent import Shared, SimulatedAgent, Traffic, socket_url
from pulsetrain.simulate.live.commands import CommandReader
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.heartbeats import HeartbeatWriter, Moment, NodeReport, rank_array
from pulsetrain.simulate.live.hub_watch import CpuTimes, HubAnswer, HubWatch, reachable
from pulsetrain.simulate.live.job import Exit, Happened, LiveJob
from pulsetrain.simulate.live.plan import LiveFault
from pulsetrain.simulate.live.recorder import FleetRecorder
from pulsetrain.simulate.live.report import Progress, Report, Summary

TICKS = 20  # of one heartbeat period: agents speak one after the other
OPENING = 64  # agents that connect at the same time
LEAVE_S = 2.0
EVENT = "simulated"
FAULT_EVENT = "simulated_fault"


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """How a fleet is fed to a hub. Raises `UsageError` for a value that is not possible."""

    seconds: float
    """from the beginning of the first step to the end"""
    heartbeat_s: float = 1.0
    """of each agent"""
    spans_every: int = 5
    """Of every so many steps all spans are sent. Of the others those of communication are left out."""
    metrics_s: float = 10.0
    """time between two samples of a port"""
    senders: int = 4
    """connections that carry the records of all nodes"""
    say_s: float = 5.0
    """time between two reports"""
    forming_s: float = 600.0
    """how long to wait for the first launch"""

    def __post_init__(self) -> None:
        for name in ("seconds", "heartbeat_s", "metrics_s", "say_s", "forming_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"--{name.replace('_', '-')} = {getattr(self, name)}: allowed above 0")
        for name in ("spans_every", "senders"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} = {getattr(self, name)}: allowed 1 or more")


def run(
    fleet: LiveFleet,
    plan: Sequence[LiveFault],
    options: LiveOptions,
    hub: HubAddress,
    say: Callable[[Report], None],
) -> Summary:
    """Feed the hub until the time is over or Ctrl-C. `say` gets a report every few seconds.

    Raises `UsageError`, `AuthError` or `Unavailable` where the hub cannot be fed.
    """
    reachable(hub)
    allow_many_open_files()
    with (
        FleetRecorder.open(hub, options.senders) as recorder,
        contextlib.closing(HubWatch(hub, fleet.job)) as watch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_FleetRun(fleet, plan, options, hub, recorder, watch, say).run())


class _FleetRun:
    """One run. All methods are of one event loop."""

    def __init__(
        self,
        fleet: LiveFleet,
        plan: Sequence[LiveFault],
        options: LiveOptions,
        hub: HubAddress,
        recorder: FleetRecorder,
        watch: HubWatch,
        say: Callable[[Report], None],
    ) -> None:
        self._fleet, self._options = fleet, options
        self._job = LiveJob(fleet, plan)
        self._recorder, self._watch, self._say = recorder, watch, say
        self._traffic = Traffic()
        shared = Shared(
            job=self._job,
            hub=hub,
            url=socket_url(hub.url),
            reader=CommandReader(),
            traffic=self._traffic,
            opening=asyncio.Semaphore(OPENING),
        )
        names = fleet.names
        self._agents = [
            SimulatedAgent(name, number, shared, standby=number >= fleet.nodes)
            for number, name in enumerate(names)
        ]
        self._by_name = {agent.node: agent for agent in self._agents}
        self._writer = HeartbeatWriter(fleet, fleet.spec())
        self._progress = Progress(fleet=fleet, plan=tuple(plan), traffic=self._traffic, recorder=recorder)
        self._cpu = CpuTimes()
        self._began_s, self._began_ns = time.monotonic(), time.time_ns()
        self._recorded_s = self._sampled_s = self._began_s
        self._beat = 0
        self._blocked_step = -1
        self._launched = -1

    async def run(self) -> Summary:
        """From the first connection to the last. SIGTERM ends it as Ctrl-C does."""
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        self._record_announcement()
        tasks = [asyncio.create_task(agent.run(), name=agent.node) for agent in self._agents]
        reports = asyncio.create_task(self._report())
        try:
            await self._beat_on(tasks)
        except asyncio.CancelledError:
            self._progress.interrupted = True
        finally:
            reports.cancel()
            await self._leave(tasks)
        return self._progress.summary()

    # -- time ---------------------------------------------------------------------------------------------

    async def _beat_on(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Let time pass, tick after tick, until the end."""
        period_s = self._options.heartbeat_s / TICKS
        due_s = time.monotonic()
        while not self._over(due_s):
            now_s = time.monotonic()
            self._progress.late(now_s - due_s)
            self._raise_failures(tasks)
            await self._happened(self._job.tick(now_s), now_s)
            await self._heartbeats(now_s)
            self._record_samples(now_s)
            due_s = max(
                due_s + period_s, now_s - self._options.heartbeat_s
            )  # what is long overdue is left out
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def _over(self, now_s: float) -> bool:
        plan_s = self._job.plan_s(now_s)
        if plan_s < 0 and self._job.number < 0 and now_s - self._began_s > self._options.forming_s:
            raise UsageError(
                f"the hub has not launched job {self._fleet.job!r} in {self._options.forming_s:g} s: "
                f"{self._traffic.connections} of {len(self._agents)} agents are connected"
            )
        return plan_s >= self._options.seconds

    def _raise_failures(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _happened(self, happened: Happened, now_s: float) -> None:
        job, attempt = self._job, self._job.attempt
        for fault in happened.struck:
            self._progress.struck(fault, job.plan_s(now_s))
            self._record_fault(fault)
        for exit_ in happened.exits:
            await self._exited(exit_)
        for step in happened.steps:
            begins_ns = self._wall_ns(step.begins_s)
            every = step.number % self._options.spans_every == 0
            self._recorder.make(lambda s=step, b=begins_ns, e=every: records.of_step(s, b, all_spans=e))  # type: ignore[misc]
            if job.saves(step.number):
                ends_ns, number = self._wall_ns(step.ends_s), job.number
                self._recorder.make(
                    lambda s=step, t=ends_ns, n=number: [records.of_checkpoint(self._fleet, n, s.number, t)]  # type: ignore[misc]
                )
        if attempt is not None and job.number != self._launched:
            self._launched, self._blocked_step = job.number, -1
            self._recorder.make(lambda: records.of_launch(attempt, time.time_ns()))
        if attempt is not None and attempt.held and self._blocked_step != attempt.step.number:
            self._blocked_step = attempt.step.number
            begins_ns = self._wall_ns(attempt.step.begins_s)
            self._recorder.make(lambda: records.of_held_step(attempt, begins_ns))
        if happened.stepped and attempt is not None:
            await self._first_step(attempt.first_step)

    async def _exited(self, exit_: Exit) -> None:
        lines = records.last_words(exit_.code)
        report = RankExit(
            node=exit_.node,
            ts_ns=time.time_ns(),
            job=self._fleet.job,
            attempt=self._job.number,
            rank=exit_.rank,
            pid=1,
            code=exit_.code,
            last_lines=lines,
        )
        rows = [
            records.Line(ts_ns=report.ts_ns, exit=exit_, attempt=self._job.number, message=line)
            for line in lines
        ]
        self._recorder.make(lambda: [records.of_lines(self._fleet, rows)])
        await self._by_name[exit_.node].report(report)

    async def _first_step(self, step: int) -> None:
        """Every node reports the first step of the attempt."""
        job, relaunch_ns = self._job, int(self._fleet.relaunch_s * 1e9)
        stages = {"spawn": int(0.15e9), "init": relaunch_ns, "step": int(self._fleet.step_s * 1e9)}
        for node in job.world:
            await self._by_name[node].report(
                FirstStep(
                    node=node,
                    ts_ns=time.time_ns(),
                    attempt=job.number,
                    step=step,
                    stages_ns=stages,
                    resumed_step=job.restore_step,
                )
            )

    async def _heartbeats(self, now_s: float) -> None:
        """The heartbeats of the agents whose turn it is."""
        turn, self._beat = self._beat % TICKS, self._beat + 1
        agents = [a for a in self._agents[turn::TICKS] if a.connected and not a.silent]
        if not agents:
            return
        job = self._job
        nodes = [job.ranks(agent.node) for agent in agents]
        moment = self._moment(rank_array(nodes).tolist(), now_s)
        reports, at, ts_ns = [], 0, time.time_ns()
        for agent, ranks in zip(agents, nodes, strict=True):
            describe = bool(ranks) and moment.positions is not None and agent.described != job.number
            agent.described = job.number if describe else agent.described
            agent.seq += 1
            reports.append(
                NodeReport(
                    node=agent.node,
                    seq=agent.seq,
                    ts_ns=ts_ns,
                    attempt=job.number if ranks else -1,
                    ranks=ranks,
                    at=at,
                    holding=job.held_by(agent.node),
                    describe=describe,
                )
            )
            at += len(ranks)
        for agent, text in zip(agents, self._writer.write(reports, moment), strict=True):
            await agent.heartbeat(text)

    def _moment(self, ranks: Sequence[int], now_s: float) -> Moment:
        return Moment(
            now_s=now_s,
            positions=self._job.positions(ranks, now_s),
            states=self._job.states(),
            resumed_step=self._job.restore_step,
        )

    # -- rows ---------------------------------------------------------------------------------------------

    def _record_samples(self, now_s: float) -> None:
        """Heartbeats as rows once in a period, counters of ports less often."""
        job, fleet = self._job, self._fleet
        speaking = [a.node for a in self._agents if a.connected and not a.silent]
        ts_ns = time.time_ns()
        if now_s - self._recorded_s >= self._options.heartbeat_s:
            self._recorded_s = now_s
            nodes = [node for node in speaking if job.node_rank(node) >= 0]
            ranks = rank_array([job.ranks(node) for node in nodes])
            if len(ranks):
                moment, number, seq = self._moment(ranks.tolist(), now_s), job.number, self._beat // TICKS
                self._recorder.make(
                    lambda: [records.of_heartbeats(fleet, number, nodes, ranks, moment, ts_ns, seq)]
                )
        if now_s - self._sampled_s >= self._options.metrics_s:
            self._sampled_s = now_s
            plan_s = job.plan_s(now_s)
            flapping = [f for f in job.plan if f.kind == "flapping_link" and f.at_s <= plan_s]
            up_s = now_s - self._began_s
            self._recorder.make(lambda: [records.of_counters(fleet, speaking, flapping, up_s, plan_s, ts_ns)])

    def _record_announcement(self) -> None:
        detail = {"fleet": vars(self._fleet), "seed": self._fleet.seed, "faults": len(self._job.plan)}
        event = records.of_event(self._fleet, EVENT, detail, time.time_ns())
        self._recorder.make(lambda: [event])

    def _record_fault(self, fault: LiveFault) -> None:
        detail = {"kind": fault.kind, "subject": fault.label, "for_s": fault.for_s, **fault.numbers}
        event = records.of_event(
            self._fleet, FAULT_EVENT, detail, time.time_ns(), node=fault.node, rank=fault.rank
        )
        self._recorder.make(lambda: [event])

    def _wall_ns(self, at_s: float) -> int:
        return self._began_ns + int((at_s - self._began_s) * 1e9)

    # -- reports ------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Ask the hub and say how it goes, every few seconds."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "status") as thread:
            while True:
                await asyncio.sleep(self._options.say_s)
                answer: HubAnswer = await loop.run_in_executor(thread, self._watch.ask)
                plan_s = self._job.plan_s(time.monotonic())
                self._say(self._progress.report(plan_s, self._job.number, self._cpu.ratio(), answer))

    async def _leave(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """All agents leave, as on Ctrl-C."""
        for agent in self._agents:
            reason = "the simulation is over"
            await agent.report(Leaving(node=agent.node, reason=reason, signal="SIGINT"))
        await asyncio.sleep(LEAVE_S)
        await asyncio.gather(*(agent.close() for agent in self._agents), return_exceptions=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
