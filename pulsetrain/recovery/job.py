"""One job: takes in facts and decides what follows from them. Nobody else changes a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from signal import SIGKILL, SIGTERM

from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.messages import FirstStep, Heartbeat, Hello, Leaving, RankExit, Reply, WorldNode
from pulsetrain.recovery import (
    abandoned,
    actions,
    another_run,
    arithmetic_checks,
    begun_anew,
    device_resizing,
    elasticity,
    eviction,
    faults,
    images,
    kept_moves,
    late_ranks,
    left_alone,
    link_actions,
    liveness,
    moving,
    rank_view,
    requested_checks,
    responses,
    returning,
    saves,
    scheduling,
    shared_links,
    sharing,
    standby_care,
    update_preview,
    updating,
)
from pulsetrain.recovery.attempt import Attempt
from pulsetrain.recovery.device_resizing import ResizePreview
from pulsetrain.recovery.faults import Observation
from pulsetrain.recovery.hang_decision import HangDecision
from pulsetrain.recovery.job_loop import JobLoop
from pulsetrain.recovery.link_checks import LinkOptions, LinkReport
from pulsetrain.recovery.move_preview import MovePreview, preview
from pulsetrain.recovery.move_request import MoveRequest
from pulsetrain.recovery.nodes import GONE, Node, NodeState, Send, agent_of, second_agent
from pulsetrain.recovery.requested_checks import NodesAnswer
from pulsetrain.recovery.snapshot import JobSnapshot, snapshot
from pulsetrain.recovery.state import JobState, Services
from pulsetrain.recovery.transitions import TERMINAL, Event, Phase
from pulsetrain.recovery.update_preview import UpdatePreview
from pulsetrain.recovery.update_request import UpdateRequest
from pulsetrain.recovery.world import node_of
from pulsetrain.recovery.world_sizes import WorldSizes

NO_ATTEMPT = -1
"""of findings about a machine rather than about an attempt"""
_TAKEN_OVER_FROM = (Phase.FORMING, Phase.WAITING)


class Job:
    """Facts come in through `connect`, `received`, `tick`, `observe` and `evict`. The loop acts on them.

    All methods run on the hub's event loop.
    """

    def __init__(
        self, name: str, *, sizes: WorldSizes, max_restarts: int, services: Services, last_attempt: int = -1
    ) -> None:
        self.name = name
        self._state = JobState(name, sizes=sizes, max_restarts=max_restarts, services=services)
        self._state.attempt.number = max(last_attempt, self._state.attempt.number)
        kept_moves.recall(self._state)
        updating.recall(self._state)
        self._services = services
        self._loop = JobLoop(self._state)
        self.turn = self._loop.turn
        self.sharing = sharing.JobShare(self._state, self._loop)
        self._joined_s = self._back_s = services.clock.monotonic_s()

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self._state.phase in TERMINAL

    @property
    def over_s(self) -> float:
        """For how long it has been so, in seconds. 0 where it is not."""
        return self._state.in_phase_s() if self.over else 0.0

    async def make_way(self, hello: Hello) -> None:
        """An agent is about to connect. Wait until the job has ended where another run takes its name.

        One that nobody is left of ends as lost.
        """
        if abandoned.makes_way(self._state, hello):
            self._state.failure = abandoned.REASON
            self._loop.post(Event.EXHAUSTED)
            await self._loop.ended()
        elif self.over and hello.attempt < 0:
            await self._loop.ended()

    @property
    def attempt(self) -> int:
        """The number of the present attempt, or of the last one. -1 before the first."""
        return self._state.attempt.number

    @property
    def ending(self) -> tuple[str, int]:
        """Why a job that is over has ended, and its exit code."""
        return actions.ending(self._state)[1:]

    def snapshot(self) -> JobSnapshot:
        """The job as it is now."""
        return snapshot(self._state)

    def rank(self, rank: int) -> rank_view.RankRow:
        """What is known of one rank. Raises `UsageError` for one that the job does not have."""
        return rank_view.rank_of(self._state, rank)

    def asks_scheduler(self, node: str, *, drain: bool) -> list[str]:
        """What the cluster's scheduler would be asked for if `node` was evicted."""
        return scheduling.would(self._state, node, drained=drain)

    def node(self, name: str) -> Node | None:
        """A node that has joined and is not gone."""
        node = self._state.members.nodes.get(name)
        return node if node is not None and node.state not in GONE else None

    def has(self, node: Node) -> bool:
        """Whether this node has joined, also where it is gone since."""
        return self._state.members.nodes.get(node.name) is node

    async def read_stacks(
        self, timeout_s: float, *, first_only: bool = False, ranks: Sequence[int] = ()
    ) -> list[Reply]:
        """Ask the nodes of the world, or those of `ranks`, where code stands. One reply for each of them."""
        return await actions.read_stacks(self._state, timeout_s, first_only=first_only, ranks=ranks)

    async def read_ras(self, node: str, limit_s: float) -> Reply | None:
        """Ask one node what NCCL RAS says of the job, None where the node cannot be asked."""
        return await actions.read_ras(self._state, node, limit_s)

    async def profile(
        self, *, first_step: int, steps: int, ranks: Sequence[int], timeout_s: float
    ) -> list[Reply]:
        """Profile the same steps of some ranks, or of all. One reply for each node."""
        return await actions.profile(
            self._state, first_step=first_step, steps=steps, ranks=ranks, timeout_s=timeout_s
        )

    async def measure_links(self, options: LinkOptions, actor: str) -> LinkReport:
        """Measure the links of this job's nodes in a person's name. Raises `UsageError` where that cannot
        be done now."""
        return await link_actions.on_request(self._state, options, actor)

    async def check_nodes(self, names: Sequence[str], level: str, actor: str) -> NodesAnswer:
        """Check standbys in a person's name. Raises `UsageError`, see `requested_checks.check`."""
        return await requested_checks.check(self._state, names, level, actor)

    # -- facts --------------------------------------------------------------------------------------------

    def connect(self, hello: Hello, send: Send) -> Node:
        """An agent said hello on a new connection. Raises `UsageError` where the job cannot take it."""
        sizes, said = self._state.resizing.sizes, WorldSizes.of(hello)
        if said != sizes:
            raise UsageError(f"node {hello.node!r} says --nnodes={said}, its job {self.name!r} has {sizes}")
        self._state.members.check_ranks(hello)
        if self._state.members.nodes:
            sharing.check_tier(hello.tier, self.sharing.tier, hello.node)
        node = self._state.members.nodes.get(hello.node)
        same_agent = node is not None and node.agent.is_same(agent_of(hello))
        if node is not None and node.connected and not same_agent:
            raise UsageError(second_agent(hello, node))
        self._joined_s = self._services.clock.monotonic_s()
        unharmed = node is not None and returning.is_unharmed(self._state, node, hello)
        if node is None or not same_agent or (node.state in GONE and not unharmed):
            return self._join(hello, send, node)
        node.reconnect(hello, send, self._joined_s)
        if unharmed:
            node.state, node.reason = NodeState.ACTIVE, ""
        if node.state is NodeState.ACTIVE:
            self._back_s = self._joined_s
        if self._state.phase is Phase.PREEMPTED:
            late_ranks.take_note(self._state, node)
        saves.tell_again(self._state, node)
        device_resizing.tell_again(self._state, node)
        self._state.write("node_reconnected", {"attempt": hello.attempt}, node=hello.node)
        return node

    def _join(self, hello: Hello, send: Send, before: Node | None) -> Node:
        """Take in a node that is new here or was given up. What it still runs must end."""
        state = self._state
        if before is not None and before.state is NodeState.ACTIVE:
            self._lose(before, "its agent was started anew")
        node = Node(hello, send, self._joined_s)
        state.members.nodes[hello.node] = node
        state.write("node_joined", {"address": hello.address, "pid": hello.pid}, node=hello.node)
        past = state.remembered.get(hello.node)
        standby_care.welcome(state, node, past)
        if state.phase is not Phase.FORMING and state.replacements.joined():
            state.keep_replacements()
        background = self._services.background
        if past is not None and past.evicted and past.agent.is_same(node.agent):
            background.once("dismiss", actions.dismiss_node(state, node, past.evicted, "controller"))
        elif returning.takes_its_place(state, node):
            state.keep_world()
        elif not late_ranks.take_note(state, node) and node.busy and state.phase is not Phase.FORMING:
            background.once("clear", actions.clear_node(state, node))
        return node

    def heard(self, heartbeat: Heartbeat) -> None:
        """A node's heartbeat arrived: its ranks may have written a checkpoint, or told of themselves."""
        self._state.own_checkpoints.note(heartbeat.attempt, heartbeat.ranks)
        self._state.instrumentation.note(heartbeat.attempt, heartbeat.ranks)
        self._state.members.shards.note(heartbeat)

    def received(self, node: Node, message: RankExit | FirstStep | Leaving) -> None:
        """One report of an agent about its ranks or about itself."""
        match message:
            case RankExit():
                self._rank_exited(message)
            case FirstStep() if message.attempt == self._state.attempt.number:
                self._state.attempt.first_steps[message.node] = message
                self._state.note_first_step()
            case Leaving():
                node.leaves(message, self._services.clock.monotonic_s())
                detail = {"reason": message.reason, "signal": message.signal}
                self._state.write("node_leaving", detail, node=node.name, actor="agent")
                self._end_if_all_leave()

    def _rank_exited(self, exit_: RankExit) -> None:
        """Note an exit. It is no fault if the job itself stopped the rank, or if a node is leaving."""
        state, attempt = self._state, self._state.attempt
        if state.phase in _TAKEN_OVER_FROM or late_ranks.are_awaited(state) or returning.awaited(state):
            attempt.early_exits[exit_.rank] = exit_
        if exit_.attempt != attempt.number or node_of(state.members.world, exit_.rank) != exit_.node:
            return
        if state.phase is Phase.SUSPENDING and exit_.code not in (-SIGTERM, -SIGKILL):
            attempt.exits.append(exit_)
        if state.phase in (Phase.STARTING, Phase.RUNNING):
            self._take_exit(exit_)

    def _note_what_came_early(self) -> None:
        """Once the job runs, take in what its ranks did before it was taken over."""
        if self._state.phase is Phase.RUNNING:
            self._state.note_first_step()
            self._take_early_exits()

    def _take_early_exits(self) -> None:
        state = self._state
        early, state.attempt.early_exits = state.attempt.early_exits, {}
        for exit_ in early.values():
            if exit_.attempt != state.attempt.number:
                continue
            if node_of(state.members.world, exit_.rank) == exit_.node:
                self._take_exit(exit_)

    def _take_exit(self, exit_: RankExit) -> None:
        """A rank of the present attempt has ended."""
        state, attempt = self._state, self._state.attempt
        if exit_.rank in attempt.failed:
            return
        attempt.exits.append(exit_)
        if exit_.code == 0:
            if len(attempt.finished_ranks()) == state.members.world_size:
                self._loop.post(Event.ALL_DONE)
            return
        detail = {"code": exit_.code, "pid": exit_.pid, "last_lines": exit_.last_lines[-5:]}
        state.write("rank_exit", detail, node=exit_.node, rank=exit_.rank, actor="agent")
        elasticity.note_late_refusal(state, exit_.not_reshardable)
        if not state.members.any_leaving():
            attempt.failed.add(exit_.rank)
            self._loop.report(faults.rank_failed(exit_, state.now_ns()))

    def held_up(self, seconds: float) -> None:
        """The hub itself was held up for so long, until now. Nobody was silent in that time."""
        now_s = self._services.clock.monotonic_s()
        for node in self._state.members.present():
            node.not_listened_to(seconds, now_s)

    def tick(self, *, late: bool = False) -> None:
        """Look at the clock. `late`: the hub itself was held up, so that silence proves nothing."""
        state, now_s = self._state, self._services.clock.monotonic_s()
        self._end_if_all_leave()
        if self.over or state.ended_by:
            return
        if not late:
            policy, starting = self._services.policy, liveness.is_starting(state)
            running = state.phase is Phase.RUNNING and not starting
            overdue = liveness.overdue(
                state.members,
                policy,
                now_s,
                starting=starting,
                running=running,
                launched=liveness.has_launched(state),
            )
            for node, reason in overdue:
                self._lose(node, reason)
        self._note_what_came_early()
        state.keep_finished()
        state.note_stepping()
        if state.works_without_steps() or state.adopted_under_way():
            state.under_way()
        begun_anew.look(state, self._loop)
        left_alone.look(state, self._loop)
        state.rate.note(state.last_step, now_s)
        state.note_time()
        another_run.look(state, now_s - self._joined_s)
        moving.look(state, self._loop)
        updating.look(state, self._loop)
        sharing.look(state, self._loop)
        elasticity.look(state, self._loop)
        scheduling.look(state)
        standbys = standby_care.take_due(state)
        if standbys:
            self._services.background.once("standby check", standby_care.check_due(state, standbys))
        number = state.attempt.number
        if state.own_checkpoints.undecided(number) or state.instrumentation.untold:
            statuses = state.members.statuses(number)
            state.own_checkpoints.look(number, statuses)
            described = state.instrumentation.news(statuses)
            if described:
                state.write("instrumentation", described, actor="agent")
        found = late_ranks.running(state)
        if found is not None:
            self._adopt_found(found)
        quiet_s = now_s - self._joined_s
        if returning.awaited(state):
            self._look_who_is_back(now_s - self._back_s)
        match liveness.gathered(state, quiet_s=quiet_s):
            case Event.ADOPTED if state.phase is Phase.WAITING:
                self._go_on()
            case Event.ADOPTED:
                self._adopt()
            case Event.QUORUM:
                self._joined_s = now_s
                self._begin()

    def _begin(self) -> None:
        """Enough nodes are here. A job of a pool that this hub does not know yet keeps what it had."""
        state = self._state
        forming = state.phase is Phase.FORMING
        interrupted = forming and state.members.survived()
        if self._services.pooled and forming and not (interrupted and sharing.take_up(state)):
            self.sharing.hold()  # also another run of that name: it waits for its share as a new job does
            return
        self._loop.post(Event.INTERRUPTED if interrupted else Event.QUORUM)

    def observe(self, new: Iterable[Observation], still_open: Iterable[Observation] = ()) -> None:
        """Decide what follows from the findings that begin now and those that are still open.

        A hang stops the job once `HangPatience` allows it. A crash that names another rank than the first
        exit changes whom the recovery blames. Trouble of a machine is answered as the policy table says. All
        other findings are for people.
        """
        state, now_ns = self._state, self._state.now_ns()
        new, still_open = list(new), list(still_open)
        number = state.attempt.number
        seen = [f for f in (*new, *still_open) if f.attempt in (NO_ATTEMPT, number)]
        link_actions.take(state, seen)
        arithmetic_checks.take(state, seen)
        began = [f for f in new if f.attempt == state.attempt.number]
        present = [*began, *(f for f in still_open if f.attempt == state.attempt.number)]
        switch_of = {name: node.hello.switch for name, node in state.members.nodes.items()}
        state.hardware.take(present, shared_links.shared(seen, switch_of))
        responses.respond(state, self._loop.report)
        hangs = [f for f in present if f.kind == "hang"] if liveness.may_hang(state) else []
        quiet_ns = 0
        if not hangs and state.hangs.pending is not None:
            quiet_ns = self._quiet_ns()
        hang = state.hangs.look(
            hangs,
            now_ns,
            can_resume=state.can_resume(),
            proven=saves.proven_without(state, "") >= 0,
            quiet_ns=quiet_ns,
            step=state.last_step,
        )
        if hang is not None:
            self._stop_for(hang, "controller")
        for finding in began:
            rank = faults.rank_of(finding)
            if finding.kind == "crash" and state.recovery is not None:
                state.recovery.users_own |= faults.is_users_own(finding)
                state.recovery.hung |= bool(finding.evidence.get("all_timed_out"))
            if finding.kind == "crash" and rank >= 0 and state.recovery is not None:
                blamed = state.recovery.fault
                if blamed.event is Event.RANK_FAILED and blamed.rank != rank:
                    node = node_of(state.members.world, rank)
                    state.recovery.blame(faults.crash(finding, node, now_ns))

    def _quiet_ns(self) -> int:
        """Time since some rank made progress. That its agent was not heard since is no progress."""
        number, now_s = self._state.attempt.number, self._services.clock.monotonic_s()
        shown = self._state.members.shortest_silence_ns(number, now_s)
        if shown is not None:
            return shown
        return min(self._state.members.values(number, "progress_age_ns"), default=0)

    def _stop_for(self, hang: Observation, actor: str) -> None:
        """Report a hang as a fault."""
        state = self._state
        state.keep_hangs()
        rank, now_s = faults.rank_of(hang), self._services.clock.monotonic_s()
        silent_ns = state.members.silence_ns(rank, state.attempt.number, now_s)
        node = node_of(state.members.world, rank)
        self._loop.report(faults.hang(hang, node, state.now_ns(), silent_ns=silent_ns, actor=actor))

    def decide_hang(self, decision: HangDecision) -> None:
        """Take a person's decision on hangs of this job. Raises `UsageError` if there is none to act on."""
        state = self._state
        if decision.what == "wait":
            state.hangs.wait(state.now_ns() + int(decision.seconds * 1e9), decision.actor)
        pending = state.hangs.pending
        if decision.what == "now" and pending is None:
            raise UsageError(f"job {self.name!r} has no pending hang")
        rank = pending.rank if pending else -1
        state.write("hang_decision", decision.detail(), rank=rank, actor=decision.actor)
        hang = state.hangs.now() if decision.what == "now" else None
        state.keep_hangs()
        if hang is not None:
            self._stop_for(hang, decision.actor)

    def move(self, request: MoveRequest, *, dry_run: bool = False) -> MovePreview:
        """Stop the job, let it go on or take it off a node, in a person's name. Returns what that costs.

        Raises `UsageError` where it cannot be done now. With `dry_run` the answer says why.
        """
        state = self._state
        why_not, why_no_dump = moving.refusal(state, request), images.why_not(state)
        waits_for = moving.POOL if moving.waits_for_pool(state, request) else ""
        cost = preview(
            self.snapshot(),
            request,
            why_not,
            why_no_dump=why_no_dump,
            dry_run=dry_run,
            waits_for=waits_for,
        )
        if not dry_run:
            moving.begin(state, request, self._loop)
        return cost

    def update(self, request: UpdateRequest, *, dry_run: bool = False) -> UpdatePreview:
        """Change what the ranks run, in a person's name. Returns when that happens and what it costs.

        Raises `UsageError` where it cannot be done now. With `dry_run` the answer says why.
        """
        state = self._state
        why_not = updating.refusal(state, request)
        within_s = self._services.policy.update_within_s
        answer = update_preview.preview(
            self.snapshot(),
            request,
            why_not,
            updating.may_lose(state, request),
            within_s=within_s,
            dry_run=dry_run,
        )
        if not dry_run:
            updating.begin(state, request, self._loop)
        return answer

    async def resize(self, request: MoveRequest, *, dry_run: bool = False) -> ResizePreview:
        """Let the job use another number of devices, in a person's name. Returns what that costs.

        Raises `UsageError` where it cannot be done. With `dry_run` the answer says why.
        """
        return await device_resizing.resize(self._state, request, self.snapshot(), dry_run=dry_run)

    async def evict(self, node: Node, reason: str, actor: str, *, drain: bool = False) -> None:
        """Evict a node in a person's name, and with `drain` have the cluster's scheduler drain it.

        Raises `UsageError` where the job is busy with a recovery.
        """
        state = self._state
        refused = eviction.refusal(node.name, node.state, state.phase)
        if refused:
            raise UsageError(refused)
        if node.state is not NodeState.ACTIVE:
            await actions.dismiss_node(state, node, reason, actor, drain=drain)
        else:
            fault = faults.evicted(node.name, reason, actor, state.attempt.number, state.now_ns())
            state.to_evict[node.name] = replace(fault, drain=drain)
            self._loop.report(state.to_evict[node.name])

    def _lose(self, node: Node, reason: str) -> None:
        """A node is gone: a fault where the world needs it."""
        state, now_s = self._state, self._services.clock.monotonic_s()
        was_active = node.state is NodeState.ACTIVE
        done = state.has_finished(node.name)
        node.go(NodeState.LEFT if done else NodeState.LOST, reason, state.now_ns())
        silent_s = now_s - (node.closed_s or node.heard_s)
        node.disconnect(now_s)
        if done:
            state.write("node_left", {"reason": f"its ranks had finished: {reason}"}, node=node.name)
            return
        state.write("node_lost", {"reason": reason, "silent_s": silent_s}, node=node.name)
        if was_active and not self.over:
            reason = f"node {node.name} is lost: {reason}"
            silent_ns, attempt = int(silent_s * 1e9), state.attempt.number
            self._loop.report(
                faults.node_lost(node.name, reason, attempt, state.now_ns(), silent_ns=silent_ns)
            )

    def _adopt_found(self, node: Node) -> None:
        """The ranks of a pre-empted job run on this node after all. None of it runs anywhere else."""
        state = self._state
        for other in state.members.nodes.values():
            if other is not node:
                other.hello = replace(other.hello, attempt=-1)
        state.attempt = Attempt(early_exits=state.attempt.early_exits)
        self._adopt()

    def _adopt(self) -> None:
        """Nodes of a running attempt have reported to a new hub: take the job over where it is."""
        state = self._state
        state.resizing.size = state.members.attempt_nodes(state.nnodes)
        number = state.members.adopt(state.resizing.size)
        state.attempt.number, state.attempt.launched, state.attempt.adopted = number, True, True
        state.attempt.started_ns = state.now_ns()
        finished = self._note_finished()
        if self._services.pooled:
            state.members.allowed = frozenset(m.node for m in state.members.world)
        state.keep_world()
        state.write("adopted", {"world": [m.node for m in state.members.world]})
        self._loop.post(Event.ADOPTED)
        moving.take_over(state)
        device_resizing.tell_again(state, *state.members.active())
        for node in state.members.reserves():
            if node.hello.attempt >= 0:
                self._services.background.once("clear", actions.clear_node(state, node))
        self._take_early_exits()
        for member in state.members.world:
            if member.node not in state.members.nodes and member not in finished:
                reason = "did not report to the new hub"
                self._loop.report(faults.node_lost(member.node, reason, number, state.now_ns()))

    def _note_finished(self) -> list[WorldNode]:
        """Take over from an earlier hub which ranks had ended with status 0 on nodes that are gone since."""
        state, number = self._state, self._state.attempt.number
        finished = state.members.gone_finished(number)
        for member in finished:
            state.attempt.exits += [
                RankExit(
                    node=member.node,
                    ts_ns=state.now_ns(),
                    job=self.name,
                    attempt=number,
                    rank=rank,
                    pid=0,
                    code=0,
                )
                for rank in member.ranks
            ]
        if finished:
            state.under_way()  # they have done all their steps
        return finished

    def _look_who_is_back(self, alone_s: float) -> None:
        """End ranks that were not ended so far, once it is clear that the rest of their world is gone.

        `alone_s` is the time since one of the world came back last. Who else joins changes nothing.
        """
        state = self._state
        late = alone_s > self._services.policy.adopt_timeout_s and not returning.all_back(state)
        if late or returning.are_hopeless(state):
            state.attempt.stopped = True
            for node in returning.still_running(state):
                self._services.background.once("clear", actions.clear_node(state, node))

    def _go_on(self) -> None:
        """All nodes that were given up are back, and nobody has stopped their ranks. Nothing was lost."""
        state = self._state
        state.take_back()
        state.attempt.failed.clear()  # agents have told what still holds when they came back
        state.write("adopted", {"world": [m.node for m in state.members.world]})
        self._loop.post(Event.ADOPTED)
        self._take_early_exits()

    def _end_if_all_leave(self) -> None:
        state = self._state
        signal = state.members.leaving_by()
        if signal and not state.ended_by and not self.over:
            state.ended_by, state.failure = signal, f"ended by {signal}"
            self._loop.post(Event.LEFT)
