"""All jobs of a hub: routes agents' messages to them, lets time pass for them, evicts on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from pulsetrain.core.errors import UsageError
from pulsetrain.core.supervisor import FailureCollector, TaskSupervisor
from pulsetrain.protocol.messages import (
    FirstStep,
    Heartbeat,
    Hello,
    Leave,
    Leaving,
    RankExit,
    Reply,
    Report,
)
from pulsetrain.recovery import replays
from pulsetrain.recovery.device_resizing import ResizePreview
from pulsetrain.recovery.eviction import EvictionPreview, preview
from pulsetrain.recovery.hang_decision import HangAnswer, HangDecision, answer
from pulsetrain.recovery.job import Job
from pulsetrain.recovery.move_preview import MovePreview
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.nodes import GONE, Node, Send
from pulsetrain.recovery.past_attempts import PastAttempts
from pulsetrain.recovery.pool.demand import tier_of
from pulsetrain.recovery.rank_view import RankRow
from pulsetrain.recovery.requested_checks import NodesAnswer
from pulsetrain.recovery.seen import Seen
from pulsetrain.recovery.snapshot import JobSnapshot, NodeSnapshot
from pulsetrain.recovery.state import Services
from pulsetrain.recovery.update_preview import UpdatePreview
from pulsetrain.recovery.update_request import UpdateRequest
from pulsetrain.recovery.world_sizes import WorldSizes

log = structlog.get_logger()

TICK_S = 0.25
IDLE_TICK_S = 0.5  # without a job
LATE_TICK_S = 1.0
TICK_SHARE = 0.2  # of the event loop's time: a job of 100,000 nodes is looked at less often
CHECKS_S = 300.0  # full checks of nodes, and of their arithmetic and links
STUCK_MARGIN_S = 60.0  # on top of the longest command, for the other actions of one turn


class Controller:
    """Owns every `Job` of one hub. All methods run on the hub's event loop and do not block.

    `last_attempt` says which attempt of a job an earlier hub has seen last, -1 for none. It may block: it is
    called on a thread. `loops` runs each job's loop.
    """

    def __init__(
        self,
        services: Services,
        loops: TaskSupervisor,
        last_attempt: Callable[[str], int] = lambda job: -1,
    ) -> None:
        self._jobs: dict[str, Job] = {}
        self._services, self._loops, self._past = services, loops, PastAttempts(last_attempt)
        self._due_s = services.clock.monotonic_s()
        self._held_up_s = float("-inf")  # until then the hub itself was held up

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Every job by name. If several had the same name, the newest."""
        return self._jobs

    def over_s(self) -> dict[str, float]:
        """For how many seconds each job that is over has been so."""
        return {name: job.over_s for name, job in self._jobs.items() if job.over}

    def forget(self, name: str) -> None:
        """Keep a job that is over no longer. Its attempts are counted on from by what is on record."""
        if name in self._jobs and self._jobs[name].over:
            del self._jobs[name]

    def snapshots(self) -> list[JobSnapshot]:
        """Every job as it is now."""
        return [job.snapshot() for job in self._jobs.values()]

    def node(self, job: str, name: str) -> Node | None:
        """A node of a job that has joined and is not gone."""
        return self._jobs[job].node(name) if job in self._jobs else None

    # -- what agents say ----------------------------------------------------------------------------------

    async def look_up(self, hello: Hello) -> None:
        """Before `connected`: end a job of which nobody is left, if its name is wanted, and learn which
        attempts of a new job are on record. Waits some seconds at most."""
        job = self._jobs.get(hello.job)
        if job is not None:
            await job.make_way(hello)
        if hello.attempt < 0 and (job is None or job.over):
            await self._past.ask(hello.job)

    def connected(self, hello: Hello, send: Send) -> Node:
        """An agent said hello on a new connection. Raises `UsageError` where its job cannot take it."""
        job = self._jobs.get(hello.job)
        if self._has_ended(hello):
            return self._send_away(hello, send)
        if job is None or job.over:
            tier_of(hello.tier)
            job = self._new_job(hello)
            node = job.connect(hello, send)
            if self._pool_holds(hello):
                job.sharing.hold()
            return node
        return job.connect(hello, send)

    def _has_ended(self, hello: Hello) -> bool:
        """Whether an agent runs ranks of a job that is over. It was cut off when the others left.

        The next run of that name has higher attempts, and may be here by now.
        """
        job = self._jobs.get(hello.job)
        known = job.attempt if job is not None and job.over else -1
        return 0 <= hello.attempt <= max(known, self._services.memory.ended(hello.job).attempt)

    def _send_away(self, hello: Hello, send: Send) -> Node:
        """Let an agent leave with its job's exit code, 1 where it is not known any more. It joins no job.

        As at the end of a job, ranks of one that did not finish have time to save something.
        """
        job = self._jobs.get(hello.job)
        kept = self._services.memory.ended(hello.job)
        reason, code = job.ending if job is not None and job.over else ("the job is over", kept.exit_code)
        node = Node(hello, send, self._services.clock.monotonic_s())
        command = Leave(id=1, reason=reason, exit_code=code, persist=code != 0)
        self._services.background.once("leave", self._ask_to_leave(node, command))
        return node

    async def _ask_to_leave(self, node: Node, command: Leave) -> None:
        await node.ask(command, self._services.policy.reply_timeout_s)

    def _pool_holds(self, hello: Hello) -> bool:
        """Whether a job that has just come waits for the pool. One that a hub has launched before may run."""
        services = self._services
        return services.pooled and hello.attempt < 0 and services.memory.recall(hello.job).world is None

    def _new_job(self, hello: Hello) -> Job:
        last_attempt = self._last_attempt(hello.job) if hello.attempt < 0 else -1
        job = self._jobs[hello.job] = Job(
            hello.job,
            sizes=WorldSizes.of(hello),
            max_restarts=hello.max_restarts,
            services=self._services,
            last_attempt=last_attempt,
        )
        if hello.nnodes > 1:
            self._services.stores.prepare()
        policy = self._services.policy
        limit_s = max(policy.start_timeout_s, CHECKS_S + replays.longest_s(policy)) + STUCK_MARGIN_S
        self._loops.add(f"job {job.name}", job.turn, stale_after_s=limit_s)
        return job

    def _last_attempt(self, name: str) -> int:
        """The newest attempt that anybody knows of, -1 for none: the store, this hub, or its memory."""
        before = self._jobs.get(name)
        of_this_hub = before.snapshot().attempt if before is not None else -1
        return max(self._past.take(name), of_this_hub, self._services.memory.ended(name).attempt)

    def disconnected(self, node: Node, send: Send) -> None:
        """A connection closed. The node is lost only if it does not come back in time."""
        if node.owns(send):
            node.disconnect(self._services.clock.monotonic_s())

    def arrived(self, node: Node) -> None:
        """A heartbeat came that is read a moment later. Its node is not silent, and its ranks may move."""
        node.heartbeat_came(*self._heard_s())

    def received(self, node: Node, message: Report) -> None:
        """One message of an agent."""
        node.heard(*self._heard_s())
        job = self._jobs.get(node.hello.job)
        if isinstance(message, Reply):
            node.answered(message)
            return
        if job is None or not job.has(node):
            return  # an agent that was sent away speaks of a run that is over
        match message:
            case Heartbeat():
                job.heard(node.take_heartbeat(message, node.heard_s))
            case RankExit() | FirstStep() | Leaving():
                job.received(node, message)
            case _:
                log.warning("unexpected_message", node=node.name, type=type(message).__name__)

    def _heard_s(self) -> tuple[float, float]:
        """Now, and until when the hub itself was held up. A silence before that is not the node's own."""
        now_s = self._services.clock.monotonic_s()
        self._is_late(now_s)
        return now_s, self._held_up_s

    def _is_late(self, now_s: float) -> bool:
        """Whether the hub is held up: the next tick is overdue."""
        late = now_s - self._due_s > LATE_TICK_S
        if late:
            self._held_up_s = now_s
        return late

    # -- time ---------------------------------------------------------------------------------------------

    async def turn(self) -> float:
        """One turn of the loop that lets time pass."""
        self.tick()
        return self._due_s - self._services.clock.monotonic_s()

    def tick(self) -> None:
        """Let every job look at the clock. If this call itself comes late, no node counts as silent."""
        began_s = self._services.clock.monotonic_s()
        late, held_up_s = self._is_late(began_s), began_s - self._due_s
        failures = FailureCollector()
        for job in self._jobs.values():
            with failures.collect(f"job {job.name}"):
                if late:
                    job.held_up(held_up_s)
                job.tick(late=late)
        ended_s = self._services.clock.monotonic_s()
        tick_s = TICK_S if self._jobs else IDLE_TICK_S
        self._due_s = ended_s + max(tick_s, (ended_s - began_s) * (1 / TICK_SHARE - 1))
        failures.raise_any()

    # -- what people ask ----------------------------------------------------------------------------------

    def preview_eviction(self, name: str, *, job: str = "", drain: bool = False) -> EvictionPreview:
        """What evicting a node of `job` would cost, and with `drain` what its drain would do.

        Raises `UsageError` for a node that is not there, and without `job` where several jobs have it.
        """
        return self._preview(*self._find(name, job), drain=drain)

    def _preview(self, job: Job, node: Node, *, drain: bool) -> EvictionPreview:
        snapshot = job.snapshot()
        asked = job.asks_scheduler(node.name, drain=drain)
        return preview(snapshot, _node(snapshot, node.name), asked)

    async def evict(
        self, name: str, reason: str, actor: str, *, job: str = "", drain: bool = False
    ) -> EvictionPreview:
        """Evict a node of `job` in a person's name. With `drain` the cluster's scheduler drains it.

        Raises `UsageError` as `preview_eviction`.
        """
        owner, node = self._find(name, job)
        cost = self._preview(owner, node, drain=drain)
        await owner.evict(node, reason, actor, drain=drain)
        return cost

    async def check_nodes(
        self, names: Sequence[str], level: str, actor: str, *, job: str = ""
    ) -> NodesAnswer:
        """Check standbys of one job in a person's name. Raises `UsageError`, see `requested_checks.check`."""
        owners = {owner.name: owner for owner, _ in (self._find(name, job) for name in names)}
        if len(owners) > 1:
            raise UsageError(
                f"these are nodes of {len(owners)} jobs: {', '.join(sorted(owners))}; ask for each"
            )
        if not owners:
            raise UsageError("nodes = []: name at least one")
        return await next(iter(owners.values())).check_nodes(names, level, actor)

    def move(self, name: str, request: MoveRequest, *, dry_run: bool = False) -> MovePreview:
        """Stop a job, let it go on, or take it off a node. Raises `UsageError`, see `Job.move`."""
        return self._job(name).move(request, dry_run=dry_run)

    def update(self, name: str, request: UpdateRequest, *, dry_run: bool = False) -> UpdatePreview:
        """Change what the ranks of a job run. Raises `UsageError`, see `Job.update`."""
        return self._job(name).update(request, dry_run=dry_run)

    async def resize(self, name: str, request: MoveRequest, *, dry_run: bool = False) -> ResizePreview:
        """Let a job use another number of devices. Raises `UsageError`, see `Job.resize`."""
        return await self._job(name).resize(request, dry_run=dry_run)

    def rank(self, name: str, rank: int) -> RankRow:
        """What is known of one rank. Raises `UsageError` for a job or a rank that is not there."""
        return self._job(name).rank(rank)

    def pending_hang(self, name: str) -> HangAnswer:
        """The hang of a job that waits for its time. Raises `UsageError` for a job that is not there."""
        return answer(self._job(name).snapshot())

    def decide_hang(self, name: str, decision: HangDecision, *, dry_run: bool = False) -> HangAnswer:
        """Carry out a person's decision on the hang of a job, or with `dry_run` say whether it can be.

        Returns what is pending after a decision to wait, and what was pending before one to act now.
        """
        job = self._job(name)
        before = answer(job.snapshot(), decision.what, dry_run=dry_run)
        if dry_run:
            return before
        job.decide_hang(decision)
        return before if decision.what == "now" else answer(job.snapshot(), decision.what)

    def expect(self, name: str, seen: Seen, node: str = "") -> None:
        """Raise `UsageError` where a job, or the job that has `node`, is not as a person saw it."""
        if seen != Seen():
            job = self._find(node, name)[0] if node else self._job(name)
            seen.check(job.snapshot(), node)

    def _job(self, name: str) -> Job:
        if name not in self._jobs:
            known = ", ".join(sorted(self._jobs)) or "none"
            raise UsageError(f"no job {name!r} runs here; jobs here: {known}")
        return self._jobs[name]

    def _find(self, name: str, job: str) -> tuple[Job, Node]:
        """A node that is there. Jobs of a pool may share a machine, and so have nodes of one name."""
        jobs = [self._job(job)] if job else list(self._jobs.values())
        found = [(each, node) for each in jobs if (node := each.node(name)) is not None]
        found = [pair for pair in found if not pair[0].over] or found[:1]
        if len(found) > 1:
            owners = ", ".join(sorted(each.name for each, _ in found))
            raise UsageError(f"node {name!r} is a node of {len(found)} jobs: {owners}; name the job (--job)")
        if not found:
            shown = [each.snapshot() for each in jobs]
            here = ", ".join(sorted(n.name for each in shown for n in each.nodes if n.state not in GONE))
            of_job = f" of job {job!r}" if job else ""
            raise UsageError(f"no node {name!r}{of_job}; nodes here: {here or 'none'}")
        return found[0]


def _node(job: JobSnapshot, name: str) -> NodeSnapshot:
    return next(node for node in job.nodes if node.name == name)
