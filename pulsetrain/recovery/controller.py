"""All jobs and nodes of a hub: routes agents' messages to jobs, notices lost nodes, evicts on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import FirstStep, Heartbeat, Hello, RankExit, Reply, Report, WorldNode
from pulsetrain.recovery import world
from pulsetrain.recovery.job import Job
from pulsetrain.recovery.journal import Journal
from pulsetrain.recovery.nodes import GONE, Node, NodeState, Send
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.transitions import TERMINAL, Event, Phase

log = structlog.get_logger()

LATE_TICK_S = 1.0


class Controller:
    """Owns every `Job` of one hub. All methods run on the hub's event loop; none blocks."""

    def __init__(
        self,
        policy: Policy,
        journal: Journal,
        clock: Clock,
        last_attempt: Callable[[str], int] = lambda job: -1,
    ) -> None:
        self.jobs: dict[str, Job] = {}
        self.policy = policy
        self._journal, self._clock, self._last_attempt = journal, clock, last_attempt
        self._tasks: set[asyncio.Task[None]] = set()
        self._joined_s: dict[str, float] = {}
        self._ticked_s = clock.monotonic_s()

    # -- what agents say ----------------------------------------------------------------------------------

    def connected(self, hello: Hello, send: Send) -> Node:
        """An agent said hello on a new connection. Raises `UsageError` where its job cannot take it."""
        job = self._job_for(hello)
        now = self._clock.monotonic_s()
        node = job.nodes.get(hello.node)
        if node is not None and node.connected and node.hello.pid != hello.pid:
            raise UsageError(
                f"node {hello.node!r} is already connected (pid {node.hello.pid}); give --node another name"
            )
        if node is None or node.state in GONE or node.hello.pid != hello.pid:
            node = self._join(job, hello, send, node)
        else:
            node.reconnect(hello, send, now)
            self._write(job, "node_reconnected", {"attempt": hello.attempt}, hello.node)
        self._joined_s[job.name] = now
        return node

    def _join(self, job: Job, hello: Hello, send: Send, before: Node | None) -> Node:
        """A node that is new here, or was given up: what it still runs is not wanted any more."""
        node = Node(hello, send, self._clock.monotonic_s())
        self._lose_predecessor(job, hello)
        job.nodes[hello.node] = node
        self._write(job, "node_joined", {"address": hello.address, "pid": hello.pid}, hello.node)
        if before is not None and before.state is NodeState.EVICTED and before.hello.pid == hello.pid:
            self._later(job.dismiss_node(node, before.reason, "controller"))
        elif hello.attempt >= 0 and job.phase is not Phase.FORMING:
            self._later(job.clear_node(node))
        return node

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def disconnected(self, node: Node, send: Send) -> None:
        """A connection closed; the node is lost only if it does not come back in time."""
        if node.owns(send):
            node.disconnect(self._clock.monotonic_s())

    def received(self, node: Node, message: Report) -> None:
        """One message of an agent."""
        node.heard_s = self._clock.monotonic_s()
        job = self.jobs[node.hello.job]
        match message:
            case Heartbeat():
                node.heartbeat, node.beat_s = message, node.heard_s
            case Reply():
                node.answered(message)
            case RankExit():
                job.rank_exited(message)
            case FirstStep():
                job.first_step(message)
            case _:
                log.warning("unexpected_message", node=node.name, type=type(message).__name__)

    def _job_for(self, hello: Hello) -> Job:
        job = self.jobs.get(hello.job)
        if job is None or job.phase in TERMINAL:
            job = Job(
                hello.job,
                nnodes=hello.nnodes,
                max_restarts=hello.max_restarts,
                policy=self.policy,
                journal=self._journal,
                clock=self._clock,
            )
            job.attempt = self._last_attempt(hello.job) if hello.attempt < 0 else -1
            self.jobs[hello.job] = job
            self._later(job.run())
        if hello.nnodes != job.nnodes:
            raise UsageError(
                f"node {hello.node!r} says --nnodes={hello.nnodes}, its job {job.name!r} has {job.nnodes}"
            )
        return job

    def _lose_predecessor(self, job: Job, hello: Hello) -> None:
        """A new agent under a known name: what ran under the old one is gone with it."""
        old = job.nodes.get(hello.node)
        if old is not None and old.state is NodeState.ACTIVE:
            self._lose(job, old, "its agent was started anew")

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task_failed", task=task.get_name(), error=repr(task.exception()))

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at the clocks: call a few times a second. A tick that itself came late accuses nobody."""
        now = self._clock.monotonic_s()
        late, self._ticked_s = now - self._ticked_s > LATE_TICK_S, now
        for job in self.jobs.values():
            if job.phase in TERMINAL:
                continue
            if not late:
                self._find_lost(job, now)
            job.note_stepless()
            self._gather(job, now)

    def _find_lost(self, job: Job, now: float) -> None:
        for node in job.nodes.values():
            if node.state in GONE:
                continue
            if node.closed_s is not None and now - node.closed_s > self.policy.reconnect_grace_s:
                self._lose(
                    job, node, f"connection closed and not back in {self.policy.reconnect_grace_s:g} s"
                )
            elif node.connected and now - node.heard_s > self.policy.heartbeat_timeout_s:
                self._lose(job, node, f"no heartbeat for {now - node.heard_s:.1f} s")

    def _lose(self, job: Job, node: Node, reason: str) -> None:
        was_active = node.state is NodeState.ACTIVE
        node.state, node.reason = NodeState.LOST, reason
        silent_s = self._clock.monotonic_s() - (node.closed_s or node.heard_s)
        node.disconnect(self._clock.monotonic_s())
        self._write(job, "node_lost", {"reason": reason, "silent_s": silent_s}, node.name)
        if was_active and job.phase not in TERMINAL:
            onset = self._clock.wall_ns() - int(silent_s * 1e9)
            reason = f"node {node.name} is lost: {reason}"
            job.report_fault(job.fault(Event.NODE_LOST, "node_lost", reason, node.name, onset_ns=onset))

    def _gather(self, job: Job, now: float) -> None:
        """Form, adopt or resume a job whose nodes have come together."""
        quiet = now - self._joined_s.get(job.name, now) > self.policy.settle_s
        running = [n for n in job.nodes.values() if n.usable and n.hello.attempt >= 0]
        if job.phase is Phase.FORMING and running:
            waited = now - self._joined_s.get(job.name, now) > self.policy.adopt_timeout_s
            if len(running) >= job.nnodes or waited:
                job.adopt()
        elif job.phase in (Phase.FORMING, Phase.WAITING) and quiet and job.enough():
            self._joined_s[job.name] = now
            job.post(Event.QUORUM)

    # -- what people ask ----------------------------------------------------------------------------------

    def preview_eviction(self, name: str) -> dict[str, Any]:
        """What evicting a node would cost. Raises `UsageError` for a node that is not there."""
        job, node = self._find(name)
        active = node.state is NodeState.ACTIVE
        standbys = [n.name for n in job.standbys() if n is not node]
        plan = world.plan_restore(self._world_without(job, node), job.held(without=name))
        lost = max(job.last_step - plan.step, 0) if active else 0
        past = [r["total_ns"] / 1e9 for r in job.history]
        why_not = "" if not active or standbys else "no standby: the job would wait for a node"
        return {
            "node": name,
            "job": job.name,
            "state": str(node.state),
            "ranks": [r for p in job.world if p.node == name for r in p.ranks],
            "standby": min(standbys, default=None) if active else None,
            "resume_step": plan.step if active else job.last_step,
            "lost_steps": lost,
            "expected_s": sorted(past)[len(past) // 2] if active and past else None,
            "allowed": True,
            "why_not": why_not,
        }

    async def evict(self, name: str, reason: str, actor: str) -> dict[str, Any]:
        """Evict a node in a person's name. Raises `UsageError` for a node that is not there."""
        preview = self.preview_eviction(name)
        job, node = self._find(name)
        if node.state is NodeState.ACTIVE and job.phase in (Phase.RUNNING, Phase.STARTING):
            job.report_fault(
                job.fault(Event.EVICT, "eviction", f"evicted by {actor}: {reason}", name, actor=actor)
            )
        elif node.state is NodeState.ACTIVE:
            raise UsageError(f"node {name!r}: its job is {job.phase}; try again when it runs")
        else:
            await job.dismiss_node(node, reason, actor)
        return preview

    def _world_without(self, job: Job, node: Node) -> tuple[WorldNode, ...]:
        """The job's world after the node's place went to a standby."""
        healthy = [n.name for n in job.active() if n is not node]
        return world.replace_nodes(job.world, healthy, [n.hello for n in job.standbys() if n is not node])

    def _find(self, name: str) -> tuple[Job, Node]:
        for job in self.jobs.values():
            node = job.nodes.get(name)
            if node is not None and node.state not in GONE:
                return job, node
        here = sorted(n.name for j in self.jobs.values() for n in j.nodes.values() if n.state not in GONE)
        raise UsageError(f"no node {name!r}; nodes here: {', '.join(here) or 'none'}")

    def _write(self, job: Job, kind: str, detail: dict[str, Any], node: str) -> None:
        self._journal.event(kind, job=job.name, attempt=job.attempt, detail=detail, node=node)
