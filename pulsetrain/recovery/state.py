"""What a job is at this moment. Only `Job` and its actions change it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from pulsetrain.core.clock import Clock
from pulsetrain.protocol.messages import Command, RankStatus, Reply
from pulsetrain.recovery import faults
from pulsetrain.recovery.agent_process import AgentProcess
from pulsetrain.recovery.arithmetic_suspicion import ArithmeticSuspicions, WrongArithmetic
from pulsetrain.recovery.attempt import Attempt
from pulsetrain.recovery.back_off import COUNTED, BackOff, BackOffLimits
from pulsetrain.recovery.hang_patience import HangPatience
from pulsetrain.recovery.hardware_verdicts import HardwareVerdicts
from pulsetrain.recovery.instrumentation import Instrumentation
from pulsetrain.recovery.journal import Journal
from pulsetrain.recovery.link_suspicion import LinkSuspicions
from pulsetrain.recovery.membership import Membership
from pulsetrain.recovery.memory import Memory, NodeMemory, SizeMemory, StopMemory, WorldMemory
from pulsetrain.recovery.move_request import Move
from pulsetrain.recovery.new_share import NewShare
from pulsetrain.recovery.nodes import Node, NodeState
from pulsetrain.recovery.own_checkpoints import OwnCheckpoints
from pulsetrain.recovery.policy import EvictionBudget, Policy
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.record import Fault, Recovery, RecoveryDetail
from pulsetrain.recovery.replacements import Replacements
from pulsetrain.recovery.resizing import Resizing
from pulsetrain.recovery.restarts import Restarts
from pulsetrain.recovery.scheduler import SchedulerRequests
from pulsetrain.recovery.step_rate import StepRate
from pulsetrain.recovery.store_host import NoStores, StoreHost
from pulsetrain.recovery.time_use import TimeBook, Use
from pulsetrain.recovery.transitions import TERMINAL, Event, Phase
from pulsetrain.recovery.updates import Updates
from pulsetrain.recovery.world import node_of
from pulsetrain.recovery.world_sizes import WorldSizes

SOON_STEPS = 5  # after the step that was restored. A failure so soon may be the checkpoint's own.
NEVER_ASKED = (-2, -1)  # no attempt has this number
NO_AGENT = AgentProcess(0, "")
BUSY_NS = 10_000_000_000  # a rank whose last sign of work is younger than that works
OTHERS_NS = (
    10_000_000_000  # after the first step of a rank, in which all ranks of a synchronous job report theirs
)
WORKED_NS = 600_000_000_000  # an attempt whose ranks still worked so long after its launch was of use


class Background(Protocol):
    """Runs work that nobody waits for."""

    def once(self, name: str, work: Coroutine[object, object, None]) -> object:
        """Begin `work`. An exception is logged and counted under `name`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Services:
    """What a job uses and shares with the other jobs of its hub.

    `peer_key` gives the key by which the agents of a job know each other, "" for none.
    """

    policy: Policy
    journal: Journal
    clock: Clock
    background: Background
    memory: Memory
    peer_key: Callable[[str], str] = lambda job: ""
    scheduler: SchedulerRequests = field(default_factory=SchedulerRequests)
    stores: StoreHost = field(default_factory=NoStores)
    pool: PoolConfig = field(default_factory=PoolConfig)

    @property
    def pooled(self) -> bool:
        """Whether jobs run on what a pool gives them."""
        return self.pool.enabled and not self.policy.observe_only


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """A checkpoint of the script's own beside which an attempt has begun anew, after this stop.

    Unless it still reads one: `since_s` is when all its ranks had stepped.
    """

    stop: StopMemory
    attempt: int
    since_s: float


class JobState:
    """One job: its phase, nodes, present attempt and open recovery.

    `failure` says why the job failed, `ended_by` names the signal by which a person ended it. `to_evict` has
    the evictions that persons want, by node, until they are done. Another fault may come in between.
    """

    def __init__(self, name: str, *, sizes: WorldSizes, max_restarts: int, services: Services) -> None:
        self.name, self.max_restarts = name, max_restarts
        self.resizing = Resizing.of(sizes)
        self.services = services
        self.phase = Phase.FORMING
        self.phase_since_ns, self._phase_since_s = services.clock.wall_ns(), services.clock.monotonic_s()
        self.members = Membership()
        self.attempt = Attempt()
        self.first_attempt = -1  # of this run of the job, -1: none was launched
        self.inherits = False  # what an earlier hub knew, and this may be another run
        self.run = ""  # names this run, "" where it began under an older hub
        self.recovery: Recovery | None = None
        self.to_evict: dict[str, Fault] = {}
        self.move: Move | None = None
        self.new_share: NewShare | None = None
        self.saves_from = NEVER_ASKED  # the attempt whose ranks were asked to save, and from which step on
        self.updates = Updates()
        self.history: list[RecoveryDetail] = []
        self.failure = self.ended_by = ""
        self.restarts = Restarts()
        self.back_off = BackOff(_limits(services.policy))
        self.budget = EvictionBudget(services.policy)
        self.remembered: dict[str, NodeMemory] = {}
        self.hangs = HangPatience(services.policy.hang_patience_s, services.policy.pause_patience_s)
        self.hardware = HardwareVerdicts()
        self.replacements = Replacements()
        self.links = LinkSuspicions()
        self.arithmetic = ArithmeticSuspicions()
        self.own_checkpoints = OwnCheckpoints()
        self.ends_at_once = False  # its ranks get no time to save
        self.stop: StopMemory | None = None  # until it is known how the script went on after it
        self.left_behind: LeftBehind | None = None  # what the attempt which has just begun ignores
        self.instrumentation = Instrumentation()
        self.rate = StepRate()
        self.time = TimeBook(self.phase_since_ns)
        self._time_goes_on = False  # until it is seen whether the job still does what it did
        self._redone_at = -1  # the step at which everything that was lost has been done again
        self._ids = itertools.count(1)
        self._recall()

    @property
    def nnodes(self) -> int:
        """The most nodes that the job runs on."""
        return self.resizing.sizes.largest

    def _recall(self) -> None:
        """Take over what an earlier hub knew of this job."""
        memory, clock = self.services.memory.recall(self.name), self.services.clock
        self.remembered = dict(memory.nodes)
        for name, past in memory.nodes.items():
            if past.wrong:
                self.arithmetic.wrong[name] = WrongArithmetic(reason=past.wrong, at_ns=past.wrong_ns)
        now_s, now_ns = clock.monotonic_s(), clock.wall_ns()
        for time_ns in sorted(memory.evictions_ns):
            self.budget.spend(now_s - max(0, now_ns - time_ns) / 1e9)
        if memory.restarts is not None:
            self.restarts = Restarts.recalled(memory.restarts, now_s, now_ns)
            self.own_checkpoints.ignored = memory.restarts.ignores_own
            self.own_checkpoints.proven = memory.restarts.reads_own
        if memory.replacements is not None:
            self.replacements = Replacements.recalled(memory.replacements, now_s, now_ns)
        if memory.size is not None:
            cap, sizes = memory.size.cap, self.resizing.sizes
            self.resizing.cap = cap if sizes.fit(cap) == cap else 0  # this run may have other sizes
            self.resizing.devices = memory.size.devices
        self.stop = memory.stop
        if memory.hangs is not None:
            self.hangs.recall(memory.hangs)
        if memory.time is not None:
            with contextlib.suppress(ValueError):  # of another version: the hub must begin all the same
                self.time, self._time_goes_on = TimeBook.recalled(memory.time), True
        if memory.world is not None:
            self.attempt.number, self.members.before = memory.world.attempt, memory.world
            self.first_attempt, self.run = memory.world.first_attempt, memory.world.run
            self.inherits = True

    def settle_run(self) -> None:
        """Give the run no name where an agent of the world is too old: files of all ranks have one name.

        It stays without. Files of a save on its way would have two names otherwise.
        """
        if not all(node.hello.takes_run for node in self.members.world_nodes()):
            self.run = ""

    async def spend_eviction(self) -> None:
        """Count one automatic eviction. Returns once a new hub would know of it."""
        now_s = self.services.clock.monotonic_s()
        self.budget.spend(now_s)
        times_ns = [self.now_ns() - int(age_s * 1e9) for age_s in self.budget.ages_s(now_s)]
        self.services.memory.evictions(self.name, times_ns)
        await self.services.memory.stored()

    def keep_restarts(self) -> None:
        """A new hub must know how often the job was restarted, which nodes were at fault, and whether the
        script goes on from what it writes."""
        kept = self.restarts.kept(self.services.clock.monotonic_s(), self.now_ns())
        own = self.own_checkpoints
        kept = replace(kept, ignores_own=own.ignored, reads_own=own.proven)
        self.services.memory.restarts(self.name, kept)

    def keep_world(self) -> None:
        """A new hub must know who runs which ranks of which attempt."""
        names = [member.node for member in self.members.world]
        known = {node.name: node.agent for node in self.members.world_nodes()}
        agents = [known.get(name, NO_AGENT) for name in names]
        memory = WorldMemory(
            attempt=self.attempt.number,
            nodes=names,
            pids=[agent.pid for agent in agents],
            agent_ids=[agent.id for agent in agents],
            first_attempt=self.first_attempt,
            run=self.run,
            finished=self.attempt.finished_nodes(self.members.world),
        )
        self.services.memory.world(self.name, memory)

    def keep_finished(self) -> None:
        """A new hub must not wait for nodes whose work is done, nor take them for lost. One look at a time
        keeps all that have finished since the last one."""
        if self.phase is Phase.RUNNING and len(self.attempt.exits) != self.attempt.exits_kept:
            self.attempt.exits_kept = len(self.attempt.exits)
            self.keep_world()

    def keep_hangs(self) -> None:
        """A new hub must know that a person wants the job to be left alone, and which hangs came again."""
        self.services.memory.hangs(self.name, self.hangs.kept())

    def keep_stop(self, stop: StopMemory | None) -> None:
        """A new hub must know beside which checkpoint the script may begin anew."""
        if stop != self.stop:
            self.stop = stop
            self.services.memory.stop(self.name, stop)

    def keep_size(self) -> None:
        """A new hub must know which size a person wants."""
        size = SizeMemory(cap=self.resizing.cap, devices=self.resizing.devices)
        self.services.memory.size(self.name, size)

    def keep_updates(self) -> None:
        """A new hub must launch the same program, and know what waits."""
        self.services.memory.update(self.name, self.updates.kept())

    def keep_replacements(self) -> None:
        """A new hub must not ask for the same nodes again."""
        kept = self.replacements.kept(self.services.clock.monotonic_s(), self.now_ns())
        self.services.memory.replacements(self.name, kept)

    def remember(self, node: Node) -> None:
        """Keep that a node was evicted, is under a cordon, or has multiplied wrongly."""
        memory = NodeMemory(pid=node.agent.pid, agent_id=node.agent.id)
        if (found := self.arithmetic.wrong.get(node.name)) is not None:
            memory = replace(memory, wrong=found.reason, wrong_ns=found.at_ns)
        if node.state is NodeState.EVICTED:
            memory = replace(memory, evicted=node.reason, evicted_by=node.evicted_by)
        else:
            memory = replace(memory, cordon=node.cordon, probation_s=node.probation_s)
        self.remembered[node.name] = memory
        self.services.memory.node(self.name, node.name, memory)

    def forget(self, node: str) -> None:
        """Nothing is held against a node any more, unless it has not multiplied correctly since."""
        past = self.remembered.pop(node, None)
        if past is not None and past.wrong and node in self.arithmetic.wrong:
            self.remembered[node] = replace(past, evicted="", evicted_by="", cordon="", probation_s=0.0)
        if past is not None:
            self.services.memory.node(self.name, node, self.remembered.get(node))

    @property
    def last_step(self) -> int:
        """The newest step that any rank of this attempt completed, -1 for none."""
        return self.members.newest_step(self.attempt.number)

    def can_resume(self) -> bool:
        """Whether a restart can go on from somewhere: from a held checkpoint, or from the script's own."""
        return self.members.holds_anything() or self.own_checkpoints.can_resume()

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        if self._time_goes_on and phase is Phase.STARTING:  # all agents are new: another run of that name
            self.time = TimeBook(self.now_ns())
        self._time_goes_on = False
        self.phase, self.phase_since_ns = phase, self.now_ns()
        self._phase_since_s = self.services.clock.monotonic_s()
        self.note_time()

    def in_phase_s(self) -> float:
        """How long the present phase has lasted, whatever was done to the machine's clock."""
        return self.services.clock.monotonic_s() - self._phase_since_s

    def note_time(self) -> None:
        """Note what the job does now."""
        use = self._use()
        if use is not self.time.present:
            self.time.note(use, self.now_ns())
            self._keep_time()

    def _keep_time(self) -> None:
        """A new hub must know what the job's time went to."""
        self.services.memory.time(self.name, self.time.kept())

    def _use(self) -> Use:
        if self.phase is Phase.FORMING and self._time_goes_on:
            return self.time.present
        if self.phase in (*TERMINAL, Phase.PREEMPTED):
            return Use.AWAY
        if self.recovery is not None:
            return Use.FAIL_OVER if self.recovery.checked_ns else Use.LOCATE
        if self.phase not in (Phase.RUNNING, Phase.PREEMPTING) or not self.attempt.first_step_done:
            return Use.START
        if self._redone_at >= 0 and self.last_step < self._redone_at:
            return Use.RECOMPUTE
        self._redone_at = -1
        return Use.TRAIN

    def has_finished(self, node: str) -> bool:
        """Whether all ranks of a node ended with status 0. Those of others may run, and do not need it."""
        ended = self.attempt.finished_ranks()
        of_node = [member for member in self.members.world if member.node == node]
        return self.phase is Phase.RUNNING and bool(of_node) and ended.issuperset(of_node[0].ranks)

    def begin_recovery(self, fault: Fault) -> None:
        """The job stops because of `fault`."""
        fault = self._of_the_hang(fault)
        self.time.misjudged(fault.onset_ns, self.now_ns())
        self._keep_time()
        world = tuple(member.node for member in self.members.world)
        self.recovery = Recovery(
            fault=fault,
            from_step=self.last_step,
            from_nodes=world,
            from_agents=self._agents(),
            by_pool=fault.actor == faults.POOL,
            hung=self.hangs.pending is not None,
            step_s=self.rate.step_s,
            began_s=self.services.clock.monotonic_s(),
        )
        self.resizing.why_not = ""
        self.hangs.forget()
        self._doubt(fault)
        self.attempt.idle = not (self.attempt.first_step_done or self._worked_long())
        if not self.attempt.idle:
            self.restarts.forget_idle()
        self._count_idle(fault, 1)
        self.keep_restarts()

    def _agents(self) -> tuple[AgentProcess, ...]:
        """The agents of the world, lost ones included, and of the nodes that stand by."""
        return tuple(node.agent for node in (*self.members.world_nodes(), *self.members.reserves()))

    def blame(self, fault: Fault) -> None:
        """A lost node explains why the job stops better than what it was put down to so far."""
        if self.recovery is None:
            return
        if self.recovery.fault.attempt == fault.attempt:  # else that one is counted when it begins a recovery
            self._count_idle(self.recovery.fault, -1)
            self._count_idle(fault, 1)
        self.recovery.blame(fault)

    def take_back(self) -> None:
        """What the job stopped for was none: its attempt goes on. Nothing of it counts against anybody."""
        recovery, self.recovery = self.recovery, None
        if recovery is None:
            return
        self._count_idle(recovery.fault, -1)
        if recovery.loss_counted:
            self.back_off.found(recovery.loss_counted)
        times_s = self.restarts.by_node.get(recovery.fault.node, [])
        if recovery.node_counted and times_s and times_s[-1] >= recovery.began_s:
            times_s.pop()
        self.keep_restarts()

    def _count_idle(self, fault: Fault, times: int) -> None:
        """Count an attempt that ends without useful work. An eviction or another size is no failure."""
        if not self.attempt.idle:
            return
        if fault.event in COUNTED:
            self.restarts.idle += times
        elif fault.event is Event.NODE_LOST:
            self.restarts.idle_lost[fault.node] += times

    def _worked_long(self) -> bool:
        """Whether a rank made progress long after the launch, whether or not it named a step."""
        shown = self.members.shortest_silence_ns(self.attempt.number, self.services.clock.monotonic_s())
        return shown is not None and self.now_ns() - shown - self.attempt.started_ns >= WORKED_NS

    def _of_the_hang(self, fault: Fault) -> Fault:
        """torch ends ranks that wait. Where it was named for which one they wait, that one is at fault."""
        named = self.hangs.pending
        if named is None or fault.event is not Event.RANK_FAILED or named.rank == fault.rank:
            return fault
        if not faults.ended_by_timeout(fault, self.attempt.exits):
            return fault
        return faults.hung(fault, named.rank, node_of(self.members.world, named.rank))

    def _doubt(self, fault: Fault) -> None:
        """Note whether the attempt failed by itself soon after its start from a checkpoint."""
        restored = self.attempt.restore_step
        if restored < 0 or fault.event not in (Event.RANK_FAILED, Event.HANG):
            return
        if self.last_step - restored > SOON_STEPS:
            self.restarts.failed_from.clear()
        else:
            self.restarts.failed_from[restored] += 1

    def launches_in_s(self) -> float:
        """How long the job still waits before it is launched again, because attempts failed in a row."""
        if self.recovery is None or self.phase is not Phase.CHECKING:
            return 0.0
        return max(0.0, self.recovery.launch_at_s - self.services.clock.monotonic_s())

    def under_way(self) -> None:
        """The attempt does useful work: the recovery that led to it is complete."""
        self.attempt.first_step_done = True
        self.restarts.forget_idle()
        self.restarts.unrestorable.clear()
        self.resizing.came_from = ()
        self._end_recovery()
        self.keep_restarts()

    def _end_recovery(self) -> None:
        if self.recovery is None:
            self._look_back()
            return
        reports = self.attempt.first_steps.values()
        detail = self.recovery.finish(
            self.now_ns(),
            self.attempt.number,
            reports,
            ranks=self.members.world_size,
            nodes=[member.node for member in self.members.world],
        )
        self.recovery = None
        self._redone_at = max(self._redone_at, detail["from_step"])
        self._note_resumption(detail)
        self.history.append(detail)
        self.write("recovery", detail, node=detail["node"], rank=detail["rank"])

    def _note_resumption(self, detail: RecoveryDetail) -> None:
        """Note whether the script went on from a checkpoint of its own, as far as that is known.

        A node of which only some ranks step does not say it. Nor does a script that has read a file which
        nobody knows.
        """
        number, step, path = self.attempt.number, detail["resumed_step"], detail["resumed_path"]
        step = max([step, *(rank.resumed_step for rank in self.members.statuses(number))])
        known = step >= 0 or (not path and self._all_said())
        if step < 0 and known and self.own_checkpoints.newest_before(number) is not None:
            self._begins_anew()
        else:
            self.keep_stop(None)
        if known:
            self.own_checkpoints.started(number, step, by_script=detail["resumed_by"] == "script")

    def _all_said(self) -> bool:
        """Whether every node has said what its script read before its first step."""
        return self.attempt.all_stepped(member.node for member in self.members.world)

    def _look_back(self) -> None:
        """The same where an earlier hub began the recovery, and may have seen already how it went on."""
        if self.stop is None:
            return
        reports, ranks = self.attempt.first_steps.values(), self.members.statuses(self.attempt.number)
        read = any(r.resumed_step >= 0 or r.resumed_path for r in reports)
        read = read or any(rank.resumed_step >= 0 for rank in ranks)
        if not read and (self._all_said() or self.stop.begun == self.attempt.number):
            self._begins_anew()
        else:
            self.keep_stop(None)

    def _begins_anew(self) -> None:
        """The script has read nothing so far, though it had saved something before the stop."""
        if self.stop is not None:
            number = self.attempt.number
            self.keep_stop(replace(self.stop, begun=number))
            now_s = self.services.clock.monotonic_s()
            self.left_behind = LeftBehind(stop=self.stop, attempt=number, since_s=now_s)

    def note_first_step(self) -> None:
        """Once the launch was answered and every node has stepped, the attempt is under way.

        Not while the job stands: the recovery that is open then is of the next launch.
        """
        stepped, world = self.attempt.first_steps, self.members.world
        if self.phase in (Phase.SUSPENDING, Phase.CHECKING, Phase.WAITING):
            return  # it counts if the attempt goes on
        if self.attempt.first_step_done or len(stepped) < len(world):  # asked by each node of thousands
            return
        if self.attempt.all_stepped(m.node for m in world):
            self.under_way()

    def note_stepping(self) -> None:
        """Note when a rank first completed a step of this attempt: others may never name one."""
        attempt = self.attempt
        if attempt.first_step_done or attempt.stepping_ns or self.last_step <= attempt.restore_step:
            return
        if any(self._has_stepped(rank) for rank in self.members.statuses(attempt.number)):
            attempt.stepping_ns = self.now_ns()

    def _has_stepped(self, rank: RankStatus) -> bool:
        return rank.last_step > max(self.attempt.restore_step, rank.resumed_step)

    def works_without_steps(self) -> bool:
        """Whether all ranks have worked for a while, and those that have completed no step name none.

        Either the script names none at all, or only some ranks step, as a learner beside its actors. Where it
        named steps before the fault, it will again: it may import, load and compile for minutes before.
        """
        attempt, now_ns = self.attempt, self.now_ns()
        if self.phase is not Phase.RUNNING or attempt.first_step_done or not attempt.launched:
            return False
        ran_s = (now_ns - attempt.started_ns) / 1e9
        ranks = self.members.statuses(attempt.number)
        if ran_s < self.services.policy.stepless_s or len(ranks) < self.members.world_size:
            return False
        if attempt.stepping_ns:
            if now_ns - attempt.stepping_ns < OTHERS_NS:
                return False
            return all(self._has_stepped(r) or _is_busy(r) for r in ranks)
        names_steps = self.recovery is not None and self.recovery.from_step >= 0
        if names_steps and now_ns - attempt.started_ns < WORKED_NS:
            return False
        return all(r.last_step < 0 and _is_busy(r) for r in ranks)

    def adopted_under_way(self) -> bool:
        """Whether each rank of an attempt that an earlier hub launched has done a step of it."""
        if not self.attempt.adopted or self.attempt.first_step_done or self.phase is not Phase.RUNNING:
            return False
        ranks = self.members.statuses(self.attempt.number)
        if len(ranks) < self.members.world_size:
            return False
        return all(r.last_step > r.resumed_step for r in ranks)

    def now_ns(self) -> int:
        """UTC nanoseconds."""
        return self.services.clock.wall_ns()

    def next_id(self) -> int:
        """The id of the next command."""
        return next(self._ids)

    async def ask(self, node: Node, command: Command, timeout_s: float | None = None) -> Reply:
        """Send a command to one of the job's nodes and wait for the reply, `reply_timeout_s` by default."""
        return await node.ask(command, timeout_s or self.services.policy.reply_timeout_s)

    def write(
        self,
        kind: str,
        detail: Mapping[str, object],
        *,
        node: str = "",
        rank: int = -1,
        actor: str = "controller",
    ) -> None:
        """Write one event of this job."""
        self.services.journal.event(
            kind,
            job=self.name,
            attempt=self.attempt.number,
            detail=detail,
            node=node,
            rank=rank,
            actor=actor,
        )


def _is_busy(rank: RankStatus) -> bool:
    """Whether the rank has shown work lately."""
    return rank.progress > 0 and rank.progress_age_ns < BUSY_NS


def _limits(policy: Policy) -> BackOffLimits:
    return BackOffLimits(
        first_s=policy.restart_wait_s,
        most_s=policy.longest_restart_wait_s,
        progress_s=policy.restart_progress_s,
    )
