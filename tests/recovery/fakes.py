"""Fakes for the controller's tests: an agent that answers commands, a clock that is set, a journal kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from pulsetrain.core.errors import Unavailable
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.elastic.positions import encode
from pulsetrain.protocol.messages import (
    ArithmeticCheck,
    DumpRanks,
    FirstStep,
    Heartbeat,
    Held,
    Hello,
    HoldRanks,
    HostStore,
    Leave,
    Leaving,
    LinkSend,
    LinkSink,
    OwnCheckpoint,
    PairCheck,
    RankExit,
    RankStatus,
    ReplayCheck,
    Reply,
    SelfCheck,
    ShareDevices,
    Start,
    Stop,
    decode,
)
from pulsetrain.recovery.actions import POLL_S
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.memory import EndedRun, JobMemory
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.scheduler import SchedulerRequests
from pulsetrain.recovery.state import Services
from pulsetrain.recovery.transitions import Phase


class FakeClock:
    """Time stands still until told otherwise. The wall clock is `ahead_s` ahead."""

    def __init__(self):
        self.now_s, self.ahead_s = 1000.0, 0.0

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return int((self.now_s + self.ahead_s) * 1e9)


class KeptJournal:
    """Remembers events as (kind, node, detail)."""

    def __init__(self):
        self.events = []

    def event(self, kind, *, job, attempt, detail, node="", rank=-1, actor="controller"):
        self.events.append(
            {"kind": kind, "node": node, "rank": rank, "actor": actor, "attempt": attempt, "detail": detail}
        )

    def kinds(self):
        return [e["kind"] for e in self.events]

    def last(self, kind):
        return next(e for e in reversed(self.events) if e["kind"] == kind)


class FakeMemory:
    """Remembers in this process, and stores at once."""

    def __init__(self):
        self.times_ns, self.nodes, self.preemptions, self.longest_ns = {}, {}, {}, {}
        self.values, self.runs = {}, {}

    def recall(self, job):
        nodes = {name: memory for (of, name), memory in self.nodes.items() if of == job}
        times_ns, preemption = tuple(self.times_ns.get(job, ())), self.preemptions.get(job)
        pauses_ns = self.longest_ns.get(job, {})
        more = {key: value for (of, key), value in self.values.items() if of == job}
        return JobMemory(
            evictions_ns=times_ns, nodes=nodes, preemption=preemption, pauses_ns=pauses_ns, **more
        )

    def ended(self, job):
        return self.runs.get(job, EndedRun())

    def restarts(self, job, memory):
        self.values[job, "restarts"] = memory

    def hangs(self, job, memory):
        self.values[job, "hangs"] = memory

    def world(self, job, memory):
        self.values[job, "world"] = memory

    def replacements(self, job, memory):
        self.values[job, "replacements"] = memory

    def size(self, job, memory):
        self.values[job, "size"] = memory

    def time(self, job, memory):
        self.values[job, "time"] = memory

    def update(self, job, memory):
        self.values[job, "update"] = memory

    def stop(self, job, memory):
        self.values[job, "stop"] = memory

    def evictions(self, job, times_ns):
        self.times_ns[job] = times_ns

    def node(self, job, name, memory):
        self.nodes[job, name] = memory
        if memory is None:
            del self.nodes[job, name]

    def preemption(self, job, memory):
        self.preemptions[job] = memory

    def pauses(self, job, longest_ns):
        self.longest_ns[job] = dict(longest_ns)

    def forget(self, job, exit_code):
        world = self.values.get((job, "world"))
        self.longest_ns.pop(job, None)
        self.times_ns.pop(job, None)
        self.preemptions.pop(job, None)
        self.values = {key: value for key, value in self.values.items() if key[0] != job}
        self.nodes = {key: memory for key, memory in self.nodes.items() if key[0] != job}
        if world is not None:
            self.runs[job] = EndedRun(attempt=world.attempt, exit_code=exit_code)

    async def stored(self):
        pass


class FakeScheduler:
    """Remembers what it was asked for. With `error`, a text or an exception, it refuses."""

    name = "Fake"

    def __init__(self, error=""):
        self.error, self.asked = error, []

    def _take(self, *request):
        self.asked.append(request)
        if self.error:
            raise self.error if isinstance(self.error, Exception) else Unavailable(self.error)
        return " ".join(map(str, request))

    def drain(self, node, reason, *, job):
        return self._take("drain", node, reason, job)

    def give_back(self, node):
        return self._take("give_back", node)

    def replace(self, request):
        return self._take("replace", request)


async def at_once(call):
    """Runs on this thread what a hub runs on another one."""
    return call()


class FakeAgent:
    """A node whose ranks complete a step as soon as they are started. Not a real agent: no processes."""

    def __init__(self, controller, hello, *, sick=False, mute=(), stepless=False):
        self.controller, self.hello, self.sick, self.mute = controller, hello, sick, mute
        self.link_rate, self.wrong, self.port_speed = 1.0, {}, 0.0
        self.rail_rates = {}  # of interfaces besides that of its address, as shares
        self.phase, self.waits_in = "forward", ""
        self.replay_error, self.replay_says, self.replay_takes_s = "loss is nan", "", 1.0
        self.replay_fails_with, self.waits_in_replay, self.waiting = frozenset(), frozenset(), None
        self.deaf = self.full = False
        self.stepless, self.worked = stepless, 0
        self.reads_path = ""
        self.reads_step = -1  # of the checkpoint that the script reads by itself when it starts
        self.commands = []
        self.steps = {}
        self.read_late = -1  # the step of a checkpoint that it reads after steps
        self.held = ()
        self.saved = {}
        self.unrestorable = set()
        self.cannot_share, self.cannot_follow, self.late = "", "", ()
        self.image_gone = False
        self.stuck, self.image_kept, self.dump_answer = "", False, {"dump_ns": 5, "processes": 3}
        self.restore_answer = {"restore_ns": 7}
        self.restless, self.held_number, self.uncounted = set(), 0, False
        self.parks = False
        self.not_reshardable = self.cannot_dump = self.cannot_restore = ""
        self.lacks_program, self.too_old, self.broken_update = "", False, 0
        self.attempt, self.restoring, self.stored_attempt = -1, hello.restoring, -1
        self.left = None
        self._seq = self.quiet_ns = 0
        self.peers = {}
        self.node = controller.connected(hello, self.send)
        self.send_heartbeat()

    async def send(self, text):
        command = decode(text)
        self.commands.append(command)
        if type(command) in self.mute:
            return
        asyncio.get_running_loop().call_soon(self.handle, command)

    def handle(self, command):
        data, error = {}, ""
        if isinstance(command, ReplayCheck) and self.waits_in_replay & {*command.members}:
            self.waiting = command
            return
        if isinstance(command, HostStore):
            data = {"port": 4242}
        elif isinstance(command, SelfCheck):
            data = {"ok": not self.sick, "failed": ["gemm"] if self.sick else []}
        elif isinstance(command, PairCheck):
            data = {"ok": not (self.deaf or self.full), "seconds": 0.1}
            data["error"] = "OutOfMemoryError: CUDA out of memory." if self.full else ""
        elif isinstance(command, ReplayCheck):
            if self.waiting is not None:
                ended = {"ok": False, "error": "", "not_judged": "the replay was ended", "seconds": 9.0}
                self.controller.received(
                    self.node, Reply(id=self.waiting.id, node=self.hello.node, data=ended)
                )
                self.waiting = None
            broken = sorted({*command.members} & self.replay_fails_with)
            error_text = f"rank 0: {self.replay_error} beside {broken}" if broken else ""
            data = {"ok": not broken, "error": error_text, "seconds": self.replay_takes_s}
            if broken and self.replay_says:
                data[self.replay_says] = error_text
        elif isinstance(command, LinkSink):
            rails = {rail: {"address": f"{self.hello.node}-{rail}", "port": 4243} for rail in self.rail_rates}
            data = {"port": 4243, "speed_bits_per_s": self.port_speed, "rails": rails}
        elif isinstance(command, LinkSend):
            rate = self.port_speed if command.address == self.hello.address else 1e9 * self.link_rate
            rate = 1e9 * self.rail_rates[command.rail] if command.rail else rate
            data = {"bits_per_s": rate, "error": "" if rate else "timed out"}
        elif isinstance(command, ArithmeticCheck):
            data = {"ok": not self.wrong, "wrong": self.wrong, "products": 100}
        elif isinstance(command, HoldRanks):
            data, error = self._hold(command)
        elif isinstance(command, DumpRanks):
            sizes = {"bytes": 1000, "stored_bytes": 600, "new_bytes": 50}
            data, error = sizes | self.dump_answer, self.cannot_dump
        elif isinstance(command, Start) and command.image and self.cannot_restore:
            data, error = {"image_kept": self.image_kept}, self.cannot_restore
        elif isinstance(command, Start) and command.program.number and self.lacks_program:
            data, error = {"program_refused": self.lacks_program}, self.lacks_program
        elif isinstance(command, Start) and (lost := self._lost(command)):
            data, error = {"unrestorable": lost}, "it is whole nowhere"
        elif isinstance(command, Start) and command.shards and self.not_reshardable:
            data, error = {"not_reshardable": self.not_reshardable}, self.not_reshardable
        elif isinstance(command, Start):
            self.attempt, self.quiet_ns = command.attempt, 0
            first = command.node_rank * self.hello.nproc_per_node
            self.steps = {first + i: command.restore_step for i in range(self.hello.nproc_per_node)}
            data = self.restore_answer if command.image else {"program": command.program.number}
            data = {} if self.too_old else data
        elif isinstance(command, Stop) and command.image and self.image_gone:
            self.image_gone = False
            data, error = {"ranks_run": True}, "the image is gone, and its ranks run on"
        elif isinstance(command, Stop) and self.stuck:
            error = self.stuck
        elif isinstance(command, Stop) and command.keep and self.parks:
            data = {"parked": self.hello.nproc_per_node}
        elif isinstance(command, ShareDevices):
            error = self.cannot_share or ("" if command.dry_run else self.cannot_follow)
            data = {"devices": {}, "late": list(self.late)}
        elif isinstance(command, Leave):
            self.left = command
        self.controller.received(
            self.node, Reply(id=command.id, node=self.hello.node, error=error, data=data)
        )
        if isinstance(command, Stop | Leave) and not error:
            self.steps = {}
        broken = isinstance(command, Start) and command.program.number == self.broken_update > 0
        if isinstance(command, Start) and not (self.stepless or error or broken):
            self.complete(command.restore_step + 1)
            report = FirstStep(
                node=self.hello.node,
                ts_ns=0,
                attempt=self.attempt,
                step=0,
                stages_ns={"init": 5},
                resumed_step=self.reads_step,
                resumed_path=self.reads_path,
            )
            self.controller.received(self.node, report)

    def _hold(self, command):
        """All ranks stand at once, but those that are `restless`."""
        if self.restless is None:
            return {}, "command HoldRanks is not known here"
        self.held_number = command.number
        written = {
            str(rank): encode(
                stands=rank not in self.restless,
                arrivals=1,
                in_flight=0,
                complete=not self.uncounted,
                groups=[],
                pairs=[],
            )
            for rank in self.steps
        }
        return {"ranks": written if command.number else {}}, ""

    def _lost(self, start):
        first = start.node_rank * self.hello.nproc_per_node
        mine = range(first, first + self.hello.nproc_per_node)
        return next(([r, s] for r, s in self.unrestorable if r in mine and s == start.restore_step), None)

    def complete(self, step, peer_of=()):
        """All ranks complete `step` and keep it, beside copies of `peer_of` ranks."""
        self.steps = dict.fromkeys(self.steps, step)
        self.held = tuple(Held(rank=r, step=step, tier="memory") for r in self.steps)
        self.held += tuple(Held(rank=r, step=step, tier="peer") for r in peer_of)
        self.send_heartbeat()

    def writes(self, own):
        """The script of the first rank has written a checkpoint by itself."""
        self.saved = {min(self.steps): (own,)}
        self.send_heartbeat()

    def send_heartbeat(self):
        self._seq += 1
        ranks = tuple(
            RankStatus(
                rank=r,
                local_rank=i,
                pid=100 + r,
                state="running",
                last_step=s,
                last_phase=self.phase,
                phase_age_ns=0,
                progress=self.worked if self.stepless else s,
                progress_age_ns=self.quiet_ns,
                saved=self.saved.get(r, ()),
                resumed_step=self.read_late,
                waits_in=self.waits_in,
            )
            for i, (r, s) in enumerate(self.steps.items())
        )
        beat = Heartbeat(
            node=self.hello.node,
            seq=self._seq,
            ts_ns=0,
            job=self.hello.job,
            attempt=self.attempt,
            ranks=ranks,
            held=self.held,
            restoring=self.restoring,
            stored_attempt=self.stored_attempt,
        )
        self.controller.received(self.node, beat)

    def rank_exits(self, rank, code, lines=(), not_reshardable=""):
        exit_ = RankExit(
            node=self.hello.node,
            ts_ns=int(1000e9),
            job=self.hello.job,
            attempt=self.attempt,
            rank=rank,
            pid=1,
            code=code,
            last_lines=lines,
            not_reshardable=not_reshardable,
        )
        self.controller.received(self.node, exit_)

    def leaves(self, signal="SIGINT"):
        """A signal tells the agent to end: it says so, its ranks end, its connection closes."""
        leaving = Leaving(node=self.hello.node, reason=f"ended by {signal}", signal=signal)
        self.controller.received(self.node, leaving)

    def reconnect(self, **changes):
        self.hello = replace(self.hello, **changes)
        self.node = self.controller.connected(self.hello, self.send)

    def drop(self, *, moves=False):
        """The connection closes. Unless the job `moves` on, the ranks of other nodes wait for this one's."""
        self.controller.disconnected(self.node, self.send)
        for other in [] if moves else self.peers.values():
            if other is not self and other.node.connected and other.left is None:
                other.quiet_ns = 3 * 10**9
                other.send_heartbeat()


class Fleet:
    """A controller with fake agents; `settle` lets everything that can happen happen."""

    def __init__(
        self,
        nodes="ab",
        nnodes=2,
        policy=None,
        max_restarts=3,
        memory=None,
        sizes=(0, 1),
        scheduler=None,
        pool=None,
        **agent,
    ):
        self.clock, self.journal = FakeClock(), KeptJournal()
        self.loops = TaskSupervisor(self.clock)
        self.loops.start()
        self.memory = memory or FakeMemory()
        services = Services(
            policy=policy or Policy(),
            journal=self.journal,
            clock=self.clock,
            background=self.loops,
            memory=self.memory,
            scheduler=scheduler or SchedulerRequests(),
            pool=pool or PoolConfig(),
        )
        self.controller = Controller(services, self.loops)
        self.max_restarts, self.nnodes, self.sizes = max_restarts, nnodes, sizes
        self.agents = {}
        for node in nodes:
            self.agents[node] = self.join(node, **agent)

    def join(
        self,
        node,
        *,
        attempt=-1,
        node_rank=-1,
        pid=None,
        agent_id="",
        job="j",
        address="",
        world_nodes=0,
        restoring=-1,
        dump_lacks="images are off",
        standby=False,
        host="",
        tier="standard",
        devices=0,
        replays="own",
        may_begin_anew=False,
        takes_run=False,
        **agent,
    ):
        hello = Hello(
            host=host,
            tier=tier,
            node=node,
            address=address or "127.0.0.1",
            job=job,
            pid=pid or ord(node[0]),
            agent_id=agent_id,
            nproc_per_node=2,
            nnodes=self.nnodes,
            min_nnodes=self.sizes[0],
            node_unit=self.sizes[1],
            node_unit_min=sum(self.sizes[2:3]),
            max_restarts=self.max_restarts,
            peer_port=1,
            attempt=attempt,
            node_rank=node_rank,
            world_nodes=world_nodes,
            restoring=restoring,
            dump_lacks=dump_lacks,
            standby=standby,
            devices=devices,
            replays=replays,
            may_begin_anew=may_begin_anew,
            takes_run=takes_run,
        )
        joined = FakeAgent(self.controller, hello, **agent)
        joined.peers = self.agents
        return joined

    @property
    def job(self):
        return self.controller.jobs["j"].snapshot()

    def node(self, name):
        return next(n for n in self.job.nodes if n.name == name)

    async def settle(self, seconds=0.0):
        self.clock.now_s += seconds
        self.controller.tick()
        for _ in range(300):
            await asyncio.sleep(0)

    async def write_own_checkpoints(self):
        """Train to step 12. The script has written its checkpoints of steps 4 and 9, and nobody else any."""
        for step, at in ((4, 6), (9, 12)):
            self.agents["a"].writes(OwnCheckpoint(step=step, bytes=7, path="/c/ckpt.pt", written_ns=step))
            for agent in self.agents.values():
                agent.held, agent.steps = (), dict.fromkeys(agent.steps, at)
                agent.send_heartbeat()
            await self.settle(0.25)

    async def wait_for_launch(self):
        """Let the time pass that the job waits before it is launched again."""
        await self.settle()
        self.clock.now_s += self.job.launches_in_s
        await asyncio.sleep(2 * POLL_S)
        await self.settle()

    async def form(self):
        await self.settle(0.0)
        await self.settle(0.6)
        assert self.job.phase is Phase.RUNNING

    def of(self, node, kind):
        return [c for c in self.agents[node].commands if isinstance(c, kind)]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A finding, as far as a job looks at it."""

    kind: str
    subject: str
    subject_type: str = "rank"
    attempt: int = 0
    confidence: float = 0.9
    summary: str = "s"
    certain: bool = True
    details: dict[str, object] = field(default_factory=dict)

    @property
    def evidence(self):
        return {"certain": self.certain, **self.details}


def hang(rank, **changes):
    return Observed(kind="hang", subject=str(rank), summary=f"rank {rank} hangs", **changes)


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 20))
