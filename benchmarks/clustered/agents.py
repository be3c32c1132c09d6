"""Many agents without ranks, in one process, with the real agent's connection to a real hub.

Each agent says hello, sends a heartbeat a second and answers what the hub asks, with the messages of a real
one. It has no ranks, so it answers a launch at once. One agent's connection is cut in the middle. The hub's
next command to the others names that node: this is when it was named.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pulsetrain.agent.hub_connection import HubConnection
from pulsetrain.agent.local_hub import local_hub
from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.open_files import allow_many_open_files
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import (
    FirstStep,
    Heartbeat,
    Hello,
    Leave,
    Message,
    PairCheck,
    Reply,
    Report,
    SelfCheck,
    Start,
    Stop,
    encode,
)

OPENING = 64
AGAIN_S = 0.5
TICKS = 20  # of a second: agents speak one after the other
JOB = "agents"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many agents, and for how many seconds they only send heartbeats."""

    agents: int
    steady_s: float = 20.0
    limit_s: float = 300.0


class Fleet:
    """Counts what all agents send and receive, and notes when what happened."""

    def __init__(self, size: Size, hub: HubAddress) -> None:
        self.size, self.hub = size, hub
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.launch_bytes = 0
        self.attempts: Counter[int] = Counter()
        self.named_s: float | None = None
        self.lost = ""
        self.reconnects = 0
        self.opening = asyncio.Semaphore(OPENING)

    def took(self, message: Message) -> None:
        """The hub sent this to one agent."""
        self.received[type(message).__name__] += 1
        if isinstance(message, Start):
            self.launch_bytes = self.launch_bytes or len(encode(message))
            self.attempts[message.attempt] += 1
        if isinstance(message, Stop) and self.lost and self.lost in message.reason and self.named_s is None:
            self.named_s = time.monotonic()


def answer_of(message: Message) -> dict[str, Any]:
    """What an agent of a healthy machine replies to a command."""
    match message:
        case Start():
            return {"load_ns": {}, "spawn_ns": 1}
        case Stop() | Leave():
            return {}
        case SelfCheck():
            return {"ok": True, "failed": []}
        case PairCheck():
            return {"ok": True, "seconds": 0.01}
        case _:
            return {"port": 1}


class Agent:
    """One agent. The last one is a standby."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        self.name, self._fleet = f"node-{number:05d}", fleet
        self._standby = number == fleet.size.agents
        self._attempt, self._seq = -1, 0
        self._connection: HubConnection | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._joining: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Connect and say hello, also where the hub could not take it the first time."""
        while True:
            try:
                await self._connect()
                await self.heartbeat()
            except PulsetrainError:
                self._connection = None
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _connect(self) -> None:
        async with self._fleet.opening:
            self._connection = await HubConnection.open(self._fleet.hub, self._received)
            hello = Hello(
                node=self.name,
                address="127.0.0.1",
                job=JOB,
                pid=os.getpid(),
                nproc_per_node=1,
                nnodes=self._fleet.size.agents,
                max_restarts=3,
                peer_port=1,
                standby=self._standby,
                attempt=self._attempt,
                takes_world_part=True,
            )
            await self._send(hello)

    async def beat(self) -> None:
        """A heartbeat. An agent that has lost its connection comes back, unless it was cut."""
        if self._connection is None or self._joining is not None:
            return
        try:
            await self.heartbeat()
        except PulsetrainError:
            self._fleet.reconnects += 1
            self._connection._reader.add_done_callback(lambda reader: reader.exception())
            self._joining = asyncio.create_task(self._rejoin())

    async def _rejoin(self) -> None:
        await self.join()
        self._joining = None

    async def heartbeat(self) -> None:
        """Send one, unless the connection is cut."""
        self._seq += 1
        if self._connection is not None:
            beat = Heartbeat(
                node=self.name,
                seq=self._seq,
                ts_ns=time.time_ns(),
                job=JOB,
                attempt=self._attempt,
                gauges={"agent_cpu_ratio": 0.01, "spool_bytes": 0.0},
            )
            await self._send(beat)

    def cut(self) -> None:
        """The machine is gone."""
        assert self._connection is not None, "it has joined"
        self._connection._reader.add_done_callback(lambda reader: reader.exception())
        self._connection._socket.transport.abort()
        self._connection = None

    async def close(self) -> None:
        """Leave without a word."""
        if self._joining is not None:
            self._joining.cancel()
        if self._connection is not None:
            await self._connection.close()

    async def _send(self, message: Report) -> None:
        if self._connection is not None:
            self._fleet.sent[type(message).__name__] += 1
            await self._connection.send(message)

    def _received(self, connection: HubConnection, message: Message) -> None:
        self._fleet.took(message)
        task = asyncio.create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Message) -> None:
        """As a real agent: a heartbeat with the new state, then the reply."""
        match message:
            case Start():
                self._attempt = message.attempt
            case Stop() | Leave():
                self._attempt = -1
        data = answer_of(message)
        try:
            await self.heartbeat()
            await self._send(Reply(id=message.id, node=self.name, data=data))  # type: ignore[union-attr]
            if isinstance(message, Start):
                step = FirstStep(node=self.name, ts_ns=time.time_ns(), attempt=message.attempt, step=0)
                await self._send(step)
        except PulsetrainError:  # the hub has ended
            return


def run(size: Size, folder: Path) -> Iterator[Row]:
    """One row: what so many agents cost a hub of their own, and when a lost one was named."""
    allow_many_open_files()
    with local_hub(folder / "hub", dashboard=False) as hub:
        pid = int(json.loads((folder / "hub" / "hub.json").read_text())["pid"])
        yield {"what": "agents", **asyncio.run(_measure(size, hub.address, psutil.Process(pid)))}


async def _measure(size: Size, address: HubAddress, hub: psutil.Process) -> Row:
    fleet = Fleet(size, address)
    agents = [Agent(number, fleet) for number in range(size.agents + 1)]
    before_mib, began_s = _rss_mib(hub), time.monotonic()
    await asyncio.gather(*(agent.join() for agent in agents))
    joined_s = time.monotonic() - began_s
    beating = asyncio.create_task(_beat(agents))
    try:
        await _until(lambda: fleet.attempts[0] == size.agents, size.limit_s, f"the launch: {fleet.received}")
        launched_s = time.monotonic() - began_s
        await asyncio.sleep(2.0)  # answers and first steps
        start = {"sent": dict(fleet.sent), "received": dict(fleet.received)}
        sent, cpu_s, at_s = fleet.sent["Heartbeat"], _cpu_s(hub), time.monotonic()
        await asyncio.sleep(size.steady_s)
        sent, cpu_s = fleet.sent["Heartbeat"] - sent, _cpu_s(hub) - cpu_s
        steady_s, rss_mib = time.monotonic() - at_s, _rss_mib(hub)
        if fleet.attempts[1] or fleet.received["Stop"]:
            rate = round(sent / steady_s)
            raise TimeoutError(f"{rate} heartbeats/s of {size.agents}: agents were late, and the job stopped")
        fleet.lost, lost_s = agents[1].name, time.monotonic()
        agents[1].cut()
        await _until(lambda: fleet.attempts[1] == size.agents, size.limit_s, f"a relaunch: {fleet.received}")
        relaunched_s = time.monotonic() - lost_s
    finally:
        beating.cancel()
        await asyncio.gather(*(agent.close() for agent in agents), return_exceptions=True)
    return {
        "agents": size.agents,
        "join_s": round(joined_s, 2),
        "launch_s": round(launched_s, 2),
        "messages_per_node": messages_per_node(start, size),
        "messages": start,
        "reconnects": fleet.reconnects,
        "launch_bytes_per_node": fleet.launch_bytes,
        "heartbeats": sent,
        "heartbeats_per_s": round(sent / steady_s),
        "hub_cpu_ratio": round(cpu_s / steady_s, 3),
        "cpu_us": round(1e6 * cpu_s / max(1, sent), 1),
        "hub_mib": round(rss_mib),
        "grown_mib": round(rss_mib - before_mib, 1),
        "named_s": round(fleet.named_s - lost_s, 2) if fleet.named_s is not None else None,
        "relaunch_s": round(relaunched_s, 2),
    }


def messages_per_node(start: Mapping[str, Mapping[str, int]], size: Size) -> float:
    """Messages both ways until the job trains, heartbeats left out."""
    sent = sum(count for kind, count in start["sent"].items() if kind != "Heartbeat")
    return round((sent + sum(start["received"].values())) / size.agents, 3)


async def _beat(agents: list[Agent]) -> None:
    """A heartbeat of each agent a second, as evenly as this process can."""
    due_s, turn = time.monotonic(), 0
    while True:
        for agent in agents[turn % TICKS :: TICKS]:
            await agent.beat()
        turn, due_s = turn + 1, max(due_s + 1 / TICKS, time.monotonic() - 1)
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))


async def _until(holds: Any, limit_s: float, what: str) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not in {limit_s:g} s: {what}")
        await asyncio.sleep(0.02)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _rss_mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20
