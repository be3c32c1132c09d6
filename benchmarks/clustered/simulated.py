"""A fleet that is simulated: the hub's own controller and heartbeat inbox, and agents that are played.

Time is virtual, see `virtual_time`. It passes where the controller uses the processor, so one that cannot
keep up is late here too. Agents cost nothing. Connections are not part of it: reading a frame from a socket
and writing one are left out. What part `agents` measures has them.

Each agent says hello, sends a heartbeat a second and answers what the controller asks after `ANSWER_S`. It
has one rank, which does a step each second. One agent's connection ends in the middle. It is named when the
controller writes down that it is lost, and the others are told of it with the command that stops them.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from clustered import virtual_time
from clustered.agents import JOB, Size, answer_of, messages_per_node
from pulsetrain.core.clock import Clock
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.garbage import collect_seldom
from pulsetrain.hub.heartbeat_inbox import HeartbeatInbox
from pulsetrain.hub.job_memory import KeptMemory
from pulsetrain.kv.files import FileStore
from pulsetrain.protocol.messages import (
    FirstStep,
    Heartbeat,
    Hello,
    Leave,
    Message,
    RankStatus,
    Reply,
    Report,
    Start,
    Stop,
    decode,
    encode,
)
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.state import Services
from pulsetrain.recovery.transitions import Phase

ANSWER_S = 0.01
TICKS = 20  # of a second: agents speak one after the other
JOINS = 100  # at a time
SETTLED_S = 5.0
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What is counted over a stretch."""

    at_s: float
    worked_s: float
    read: int
    sent: int


class CountingJournal:
    """A journal that keeps nothing: it makes each event's JSON, counts its kind and notes its first time."""

    def __init__(self, clock: Clock) -> None:
        self.kinds: Counter[str] = Counter()
        self.first_s: dict[str, float] = {}
        self._clock = clock

    def event(self, kind: str, *, detail: Mapping[str, object], **_where: object) -> None:
        """See `Journal`."""
        self.kinds[kind] += 1
        self.first_s.setdefault(kind, self._clock.monotonic_s())
        json.dumps(detail, default=str)


class Fleet:
    """All agents, and what they have sent and received."""

    def __init__(self, size: Size, clock: virtual_time.VirtualClock, memory: KeptMemory) -> None:
        self.size, self.clock = size, clock
        self.journal = CountingJournal(clock)
        self.loops = TaskSupervisor(clock)
        services = Services(
            policy=Policy(), journal=self.journal, clock=clock, background=self.loops, memory=memory
        )
        self.controller = Controller(services, self.loops)
        self.inbox = HeartbeatInbox(self.controller, clock)
        self.loops.add("controller", self.controller.turn, stale_after_s=60.0)
        self.loops.add("heartbeats", self.inbox.turn, stale_after_s=60.0)
        self.agents = [Agent(number, self) for number in range(size.agents + 1)]
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.attempts: Counter[int] = Counter()
        self.launch_bytes = 0
        self.lost = ""
        self.told_s: float | None = None

    async def join(self) -> None:
        """All agents say hello, one after the other."""
        for number, agent in enumerate(self.agents):
            agent.join()
            if number % JOINS == 0:
                await asyncio.sleep(0)

    async def beat(self) -> None:
        """A heartbeat of each agent a second. Those that are due while the controller works come at once."""
        loop, turn = asyncio.get_running_loop(), 0
        due_s = loop.time()
        while True:
            with self.clock.outside():
                beats = [(a, a.heartbeat()) for a in self.agents[turn % TICKS :: TICKS] if a.node is not None]
            for agent, text in beats:
                agent.say(text)
            turn, due_s = turn + 1, due_s + 1 / TICKS
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    def took(self, message: Message, text: str) -> None:
        """An agent has received this."""
        self.received[type(message).__name__] += 1
        if isinstance(message, Start):
            self.launch_bytes = self.launch_bytes or len(text)
            self.attempts[message.attempt] += 1
        if isinstance(message, Stop) and self.lost and self.lost in message.reason and self.told_s is None:
            self.told_s = self.clock.monotonic_s()

    def trains(self) -> bool:
        """Whether all agents have answered the launch. Asking costs nothing."""
        with self.clock.outside():
            return self.controller.jobs[JOB].snapshot().phase is Phase.RUNNING

    def seen(self) -> _Seen:
        """What has happened so far. Reading it costs nothing."""
        with self.clock.outside():
            nodes = [agent.node for agent in self.agents if agent.node is not None]
            return _Seen(
                at_s=self.clock.monotonic_s(),
                worked_s=self.clock.worked_s(),
                read=sum(node.heartbeat.seq for node in nodes if node.heartbeat is not None),
                sent=self.sent["Heartbeat"],
            )


class Agent:
    """One agent that is played. The last one is a standby."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        self.name, self._fleet, self._number = f"node-{number:06d}", fleet, number
        self._attempt, self._seq, self._rank, self._began_s = -1, 0, -1, 0.0
        self.node: Node | None = None

    def join(self) -> None:
        """Say hello."""
        fleet = self._fleet
        with fleet.clock.outside():
            hello = Hello(
                node=self.name,
                address="127.0.0.1",
                job=JOB,
                pid=self._number + 1,
                nproc_per_node=1,
                nnodes=fleet.size.agents,
                max_restarts=3,
                peer_port=1,
                standby=self._number == fleet.size.agents,
                attempt=self._attempt,
                takes_world_part=True,
            )
            text = encode(hello)
            fleet.sent["Hello"] += 1
        message = decode(text)
        assert isinstance(message, Hello)
        self.node = fleet.inbox.connected(message, self.send)

    def cut(self) -> None:
        """The machine is gone."""
        assert self.node is not None, "it has joined"
        node, self.node = self.node, None
        self._fleet.inbox.disconnected(node, self.send)

    def say(self, text: str) -> None:
        """A message arrives at the hub, as from its socket."""
        if self.node is not None:
            self._fleet.inbox.take(self.node, self.send, text, _always)

    async def send(self, text: str) -> None:
        """The hub sends a message to this agent."""
        fleet = self._fleet
        with fleet.clock.outside():
            message = decode(text)
            fleet.took(message, text)
            if self.node is not None:
                asyncio.get_running_loop().call_later(ANSWER_S, self._answer, message)

    def _answer(self, message: Message) -> None:
        """As a real agent: a heartbeat with the new state, then the reply."""
        with self._fleet.clock.outside():
            texts = self._answers(message)
        for text in texts:
            self.say(text)

    def _answers(self, message: Message) -> list[str]:
        match message:
            case Start():
                self._attempt, self._rank = message.attempt, message.node_rank
                self._began_s = self._fleet.clock.monotonic_s()
            case Stop() | Leave():
                self._attempt = -1
        reply = Reply(id=message.id, node=self.name, data=answer_of(message))  # type: ignore[union-attr]
        texts = [self.heartbeat(), self._encode(reply)]
        if isinstance(message, Start):
            now_ns = self._fleet.clock.wall_ns()
            texts.append(
                self._encode(FirstStep(node=self.name, ts_ns=now_ns, attempt=message.attempt, step=0))
            )
        return texts

    def heartbeat(self) -> str:
        """The next heartbeat."""
        self._seq += 1
        clock = self._fleet.clock
        ran_s = clock.monotonic_s() - self._began_s
        step = int(ran_s)
        age_ns = int(1e9 * (ran_s - step))
        ranks = (
            RankStatus(
                rank=self._rank,
                local_rank=0,
                pid=self._number + 1,
                state="running",
                last_step=step,
                last_phase="forward",
                phase_age_ns=age_ns,
                progress=10 * step + 1,
                progress_age_ns=age_ns,
            ),
        )
        beat = Heartbeat(
            node=self.name,
            seq=self._seq,
            ts_ns=clock.wall_ns(),
            job=JOB,
            attempt=self._attempt,
            ranks=ranks if self._attempt >= 0 else (),
            gauges={"agent_cpu_ratio": 0.01, "spool_bytes": 0.0},
        )
        return self._encode(beat)

    def _encode(self, message: Report) -> str:
        self._fleet.sent[type(message).__name__] += 1
        return encode(message)


def _always(_message: Report) -> bool:
    return True


def run(size: Size, folder: Path) -> Iterator[Row]:
    """One row: what so many agents cost the controller, and when a lost one was named."""
    clock = virtual_time.VirtualClock()
    memory = KeptMemory(FileStore(folder / "kv"))
    with _as_in_a_hub():
        yield {"what": "simulated", **virtual_time.run(_measure(size, clock, memory), clock)}


@contextmanager
def _as_in_a_hub() -> Iterator[None]:
    """Look for garbage as seldom as a hub does."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _measure(size: Size, clock: virtual_time.VirtualClock, memory: KeptMemory) -> Row:
    with clock.outside():
        fleet = Fleet(size, clock, memory)
        before_mib = _rss_mib()
    fleet.loops.start()
    began_s = clock.monotonic_s()
    await fleet.join()
    joined_s = clock.monotonic_s() - began_s
    beating = asyncio.create_task(fleet.beat())
    try:
        await _until(lambda: fleet.attempts[0] == size.agents, size.limit_s, fleet, beating, "the launch")
        launched_s = clock.monotonic_s() - began_s
        await _until(fleet.trains, size.limit_s, fleet, beating, "all answers to it")
        await asyncio.sleep(SETTLED_S)
        start = {"sent": dict(fleet.sent), "received": dict(fleet.received)}
        before = fleet.seen()
        await asyncio.sleep(size.steady_s)
        after = fleet.seen()
        with clock.outside():
            grown_mib = _rss_mib() - before_mib
        if fleet.attempts[1] or fleet.received["Stop"] or fleet.journal.kinds["node_lost"]:
            raise TimeoutError(f"a healthy node of {size.agents} was lost, or their job stopped by itself")
        fleet.lost, lost_s = fleet.agents[1].name, clock.monotonic_s()
        fleet.agents[1].cut()
        await _until(lambda: fleet.attempts[1] == size.agents, size.limit_s, fleet, beating, "a relaunch")
        relaunched_s = clock.monotonic_s() - lost_s
    finally:
        beating.cancel()
    steady_s = after.at_s - before.at_s
    return {
        "agents": size.agents,
        "join_s": round(joined_s, 2),
        "launch_s": round(launched_s, 2),
        "messages_per_node": messages_per_node(start, size),
        "launch_bytes_per_node": fleet.launch_bytes,
        "heartbeats_per_s": round((after.sent - before.sent) / steady_s),
        "heartbeats_read_per_s": round((after.read - before.read) / steady_s),
        "controller_cpu_ratio": round((after.worked_s - before.worked_s) / steady_s, 3),
        "controller_mib": round(grown_mib),
        "named_s": round(fleet.journal.first_s["node_lost"] - lost_s, 2),
        "others_told_s": round(fleet.told_s - lost_s, 2) if fleet.told_s is not None else None,
        "relaunch_s": round(relaunched_s, 2),
        "events": dict(fleet.journal.kinds),
    }


async def _until(holds: Any, limit_s: float, fleet: Fleet, beating: asyncio.Task[None], what: str) -> None:
    clock = fleet.clock
    deadline_s = clock.monotonic_s() + limit_s
    while not holds():
        if beating.done():
            beating.result()
        if clock.monotonic_s() > deadline_s:
            raise TimeoutError(f"not in {limit_s:g} s: {what}: {fleet.received} {fleet.journal.kinds}")
        await asyncio.sleep(0.02)


def _rss_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20
