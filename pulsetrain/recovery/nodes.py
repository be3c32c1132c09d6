"""The hub's view of one node: its agent's connection, its last reports, the commands it has not answered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import StrEnum

from pulsetrain.core.errors import Unavailable
from pulsetrain.protocol.late_rows import column
from pulsetrain.protocol.messages import (
    LOAD_CPU_S,
    UNCONFIRMED,
    Command,
    Heartbeat,
    Hello,
    Leaving,
    Reply,
    Start,
    encode,
)
from pulsetrain.recovery.agent_process import AgentProcess

Send = Callable[[str], Awaitable[None]]
Key = tuple[str, str]
"""Job and name of a node."""

USUAL_HEARTBEATS = 2.5
"""So many of the job's slowest agent are waited for. With one each second that is 2.5 s."""

CLOSED, NOT_CONNECTED, NO_ANSWER = "connection closed", "not connected", "no answer"

ASK_TRIES, ASK_AGAIN_S = 3, 0.5
"""For a command that an agent refused because its hub did not show that it leads. One that leads soon can."""
FIRST_ID_AGAIN = 2**32
"""Ids of commands that are sent again. Jobs count theirs from 1."""

LOADS_S = 0.1
"""Processor time by which a load must have gone on so that the launch is waited for once more.

A minute of a load at 10 MB/s takes more, to copy and to verify. One that waits for a storage that does not
answer takes far less."""
LONGEST_LOAD_S = 4 * 3600.0


def was_reached(reply: Reply) -> bool:
    """Whether the node had a connection until it answered, or until its time was up, and did what was asked.

    Else a reply says nothing about the machine.
    """
    return not reply.error.startswith((CLOSED, NOT_CONNECTED, UNCONFIRMED))


def has_answered(reply: Reply) -> bool:
    """Whether this came from the node, and its agent did or tried what was asked."""
    return was_reached(reply) and not reply.error.startswith(NO_ANSWER)


class NodeState(StrEnum):
    """What a node is to its job."""

    STANDBY = "standby"
    ACTIVE = "active"
    LOST = "lost"
    EVICTED = "evicted"
    LEFT = "left"


BEING_CHECKED = "a person has it checked now"
GONE = (NodeState.LOST, NodeState.EVICTED, NodeState.LEFT)


class Node:
    """One agent.

    Monotonic seconds: `heard_s` of the last message, `heartbeat_s` of the last heartbeat, `closed_s` of the
    lost connection, `leaving_s` of the message `leaving`.

    `longest_silence_s` is the longest time on one connection after which it was heard again.
    `longest_quiet_s` is the longest time without progress, since the first step, after which one of its ranks
    went on.

    `cordon` says why a standby is not promoted, "" where it may be. It ends after `probation_s` without
    trouble since `clean_since_s`. `checked_s` is when it was last checked as a standby, `passed_s` when it
    last passed all-gathers beside another node, -inf for never. `being_checked`: such a check is under way.
    `set_apart`: a person asked for it, and until its end the node is not promoted. `evicted_by` is who sent
    it away. `ranks` are those that the world gave it last, None before that. `hub_address` is the hub's own
    IP address on its connection, "" where that is not known. `gone_since_ns` (UTC) is when it was lost or
    evicted, 0 for never. `needs_world`: it could not do with a part. `newest_step` is that of the ranks of
    its last heartbeat. A `hello` during a restore of ranks becomes what it would be after that.
    """

    def __init__(self, hello: Hello, send: Send, now_s: float) -> None:
        self.name = hello.node
        self.key: Key = hello.job, hello.node
        self.hello = hello
        self.state = NodeState.STANDBY
        self.reason = self.cordon = self.evicted_by = self.hub_address = ""
        self.heartbeat: Heartbeat | None = None
        self.newest_step = -1
        self.ranks: range | None = None
        self.leaving: Leaving | None = None
        self.heartbeat_s = self.heard_s = self.leaving_s = now_s
        self.longest_silence_s = self.longest_quiet_s = 0.0
        self.clean_since_s = self.checked_s = now_s
        self.probation_s = 0.0
        self.passed_s = float("-inf")
        self.needs_world = self.being_checked = self.set_apart = False
        self.gone_since_ns = 0
        self.closed_s: float | None = None
        self._send: Send | None = send
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._ids_again = itertools.count(FIRST_ID_AGAIN)

    @property
    def connected(self) -> bool:
        """Whether its agent has a connection."""
        return self._send is not None

    @property
    def connection(self) -> Send | None:
        """What sends to its agent, None without a connection. A new connection has another one."""
        return self._send

    @property
    def usable(self) -> bool:
        """It can be given commands: connected, and neither lost nor evicted."""
        return self.connected and self.state not in GONE

    @property
    def agent(self) -> AgentProcess:
        """The process of its agent."""
        return agent_of(self.hello)

    @property
    def busy(self) -> bool:
        """Whether its last hello says that it runs ranks, or brings them back from an image."""
        return self.hello.attempt >= 0 or self.hello.restoring >= 0

    def take_heartbeat(self, heartbeat: Heartbeat, now_s: float) -> Heartbeat:
        """A heartbeat arrived. Returns it without what it says of other nodes' ranks."""
        own = self.ranks
        if own is not None and any(rank not in own for rank in column(heartbeat.ranks, "rank")):
            kept = tuple(status for status in heartbeat.ranks if status.rank in own)
            heartbeat = replace(heartbeat, ranks=kept)
        if self.heartbeat is not None:
            self.longest_quiet_s = _longest_quiet_s(self.longest_quiet_s, self.heartbeat, heartbeat)
        if self.hello.restoring >= 0 and heartbeat.restoring != self.hello.restoring:
            attempt = heartbeat.attempt if heartbeat.restoring < 0 else -1
            self.hello = replace(self.hello, attempt=attempt, restoring=heartbeat.restoring)
        if heartbeat.gpus and heartbeat.gpus != self.hello.gpus:
            self.hello = replace(self.hello, gpus=heartbeat.gpus)
        self.heartbeat, self.heartbeat_s = heartbeat, now_s
        self.newest_step = max(column(heartbeat.ranks, "last_step"), default=-1)
        return heartbeat

    def heartbeat_came(self, now_s: float, since_s: float = float("-inf")) -> None:
        """A heartbeat is there that nobody has read. What the last one said counts as said now: the new one
        may say that a rank went on, so its silence does not grow until that is known."""
        self.heard(now_s, since_s)
        self.heartbeat_s = now_s

    def go(self, state: NodeState, reason: str, now_ns: int) -> None:
        """It is lost or evicted."""
        self.state, self.reason, self.gone_since_ns = state, reason, now_ns

    def heard(self, now_s: float, since_s: float = float("-inf")) -> None:
        """A message arrived. Until `since_s` the hub itself was held up, and heard nobody."""
        silent_s = now_s - max(self.heard_s, since_s)
        if silent_s > self.longest_silence_s:
            self.longest_silence_s = silent_s
        self.heard_s = now_s

    def not_listened_to(self, seconds: float, now_s: float) -> None:
        """The hub itself was held up for so long, until now. That was no silence of the node."""
        self.heard_s = max(self.heard_s, min(now_s, self.heard_s + seconds))

    def leaves(self, leaving: Leaving, now_s: float) -> None:
        """The agent said that it ends."""
        self.leaving, self.leaving_s = leaving, now_s

    def reconnect(self, hello: Hello, send: Send, now_s: float) -> None:
        """The agent is back on a new connection."""
        self.hello, self._send, self.heard_s, self.closed_s = hello, send, now_s, None
        self.leaving = None

    def disconnect(self, now_s: float) -> None:
        """The connection closed: pending commands get a reply with an error."""
        self._send, self.closed_s = None, now_s
        for command, future in self._pending.items():
            if not future.done():
                future.set_result(Reply(id=command, node=self.name, error=CLOSED))
        self._pending.clear()

    def owns(self, send: Send) -> bool:
        """Whether `send` is the present connection (an old one may close after a new one opened)."""
        return self._send == send

    def answered(self, reply: Reply) -> None:
        """A reply arrived. One that nobody waits for is dropped."""
        future = self._pending.pop(reply.id, None)
        if future is not None and not future.done():
            future.set_result(reply)

    async def ask(self, command: Command, timeout_s: float) -> Reply:
        """Send `command` and wait for its reply. A timeout or a lost connection is a reply with an error.

        The time of a launch begins again while its agent says that it loads a checkpoint and goes on with it.
        An agent that refused because the hub did not show that it leads is asked again.
        """
        reply = await self._ask_once(command, timeout_s)
        for _ in range(ASK_TRIES - 1):
            if reply.error != UNCONFIRMED:
                break
            await asyncio.sleep(ASK_AGAIN_S)
            again = replace(command, id=next(self._ids_again))  # a late answer is of the first one
            reply = replace(await self._ask_once(again, timeout_s), id=command.id)
        return reply

    async def _ask_once(self, command: Command, timeout_s: float) -> Reply:
        if self._send is None:
            return Reply(id=command.id, node=self.name, error=NOT_CONNECTED)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        self._pending[command.id] = future
        patience = _Patience(self, command, timeout_s)
        no_answer = f"{NO_ANSWER} in {timeout_s:g} s"
        try:
            await self._send(encode(command))
            patience.begin()
            return await future
        except TimeoutError:  # of the connection itself
            return Reply(id=command.id, node=self.name, error=no_answer)
        except Unavailable as error:
            return Reply(id=command.id, node=self.name, error=str(error))
        finally:
            patience.end()
            self._pending.pop(command.id, None)

    @property
    def load_cpu_s(self) -> float:
        """Processor time that its agent has used to load checkpoints, by its last heartbeat."""
        return self.heartbeat.gauges.get(LOAD_CPU_S, 0.0) if self.heartbeat is not None else 0.0


def agent_of(hello: Hello) -> AgentProcess:
    """The process that says `hello`."""
    return AgentProcess(hello.pid, hello.agent_id)


def second_agent(hello: Hello, node: Node) -> str:
    """Why an agent is refused whose node has one already."""
    held_by = f"node {hello.node!r} is already connected (pid {node.hello.pid})"
    return f"{held_by}; give --node another name, or --job for another run"


class _Patience:
    """Answers a command in its node's name once its time is up. A launch that loads on gets more time."""

    def __init__(self, node: Node, command: Command, timeout_s: float) -> None:
        self._node, self._command, self._timeout_s = node, command, timeout_s
        self._rounds, self._loaded_s = 0, 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The command was sent."""
        self._rounds += 1
        self._loaded_s = self._node.load_cpu_s
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._look)

    def end(self) -> None:
        """Nobody waits any longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        node, waited_s = self._node, self._rounds * self._timeout_s
        loads = isinstance(self._command, Start) and node.load_cpu_s >= self._loaded_s + LOADS_S
        if loads and waited_s < LONGEST_LOAD_S:
            self.begin()
            return
        node.answered(Reply(id=self._command.id, node=node.name, error=f"{NO_ANSWER} in {waited_s:g} s"))


def _longest_quiet_s(known_s: float, before: Heartbeat, after: Heartbeat) -> float:
    """The longest time without progress after which a rank went on, `known_s` before these two heartbeats.

    Only a longer one is of interest. There is none between most heartbeats.
    """
    ages_ns = column(before.ranks, "progress_age_ns")
    if max(ages_ns, default=0) / 1e9 <= known_s:
        return known_s
    progress = dict(zip(column(after.ranks, "rank"), column(after.ranks, "progress"), strict=True))
    names = ("rank", "last_step", "progress")
    earlier = zip(*(column(before.ranks, name) for name in names), ages_ns, strict=True)
    quiet_ns = [age for rank, step, done, age in earlier if step >= 0 and done < progress.get(rank, done)]
    return max(known_s, max(quiet_ns, default=0) / 1e9)
