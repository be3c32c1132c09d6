"""Who speaks for a node: one agent at a time, and only one whose token is for that node.

What is refused is counted, and written to the audit log: once a minute for each token and reason, so that
nobody can fill the disk with refusals.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import HTTPConnection

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import UsageError
from pulsetrain.hub.refusal_log import RefusalLog
from pulsetrain.hub.token_file import Grant
from pulsetrain.hub.token_gate import GRANT
from pulsetrain.protocol.messages import Heartbeat, Hello, Ping, Report
from pulsetrain.records.batch import Batch
from pulsetrain.recovery.journal import Journal
from pulsetrain.recovery.nodes import Node, second_agent

PING_S, PINGS, PINGS_OF_ANOTHER = 0.75, 2, 6
"""How long the agent of a node may take to show that it lives, and how often it is asked. The hub itself may
have been held up in one of them. Where another agent wants its node, which would end its ranks, it has more
time: the start of the other one keeps its machine busy."""

FOREIGN_NODE, FOREIGN_JOB, SECOND_AGENT, REPLAY = "node", "job", "second_agent", "replay"
REASONS = (FOREIGN_NODE, FOREIGN_JOB, SECOND_AGENT, REPLAY)

FindNode = Callable[[str, str], Node | None]


class NodeClaims:
    """What the connections of all agents of a hub share.

    `refused` counts by reason what was not taken. `find` gives the node of a job by the names of both.
    """

    def __init__(self, find: FindNode, journal: Journal, clock: Clock) -> None:
        self._log = RefusalLog(journal, clock)
        self.refused = self._log.counts
        self._find, self._clock = find, clock
        self._ping_ids = itertools.count(-1, -1)  # a job counts its commands upwards from 1

    def connection(self, grant: Grant | None) -> Claim:
        """A new connection of the bearer of `grant`, None for the hub's own token."""
        return Claim(self, grant)

    def refuse(self, reason: str, line: str, *, job: str, node: str, grant: Grant | None) -> UsageError:
        """Count a refusal and write it down. Returns the error to raise, which says `line`."""
        self._log.write(reason, line, token=grant.name if grant else "", job=job, node=node)
        return UsageError(line)

    async def make_way(self, hello: Hello, grant: Grant | None) -> None:
        """Make sure that no living agent holds the node. One that does not answer is disconnected.

        Raises `UsageError` where one answers.
        """
        while True:
            node = self._find(hello.job, hello.node)
            if node is None or not node.connected:
                return
            held_by = node.connection
            if await self._answers(node, another=_is_another(hello, node)):
                raise self.refuse(
                    SECOND_AGENT, second_agent(hello, node), job=hello.job, node=hello.node, grant=grant
                )
            if held_by is not None and node.owns(held_by):  # else another agent took over meanwhile: ask it
                node.disconnect(self._clock.monotonic_s())

    async def _answers(self, node: Node, *, another: bool) -> bool:
        heard_s = node.heard_s
        for _ in range(PINGS_OF_ANOTHER if another else PINGS):
            reply = await node.ask(Ping(id=next(self._ping_ids)), PING_S)
            heard = another and node.connected and node.heard_s > heard_s
            if heard or not reply.error:
                return True
            if not node.connected:
                return False
        return False

    def newest_heartbeat(self, job: str, node: str) -> int:
        """The `seq` of the last heartbeat of a node, -1 for none."""
        known = self._find(job, node)
        return known.heartbeat.seq if known is not None and known.heartbeat is not None else -1

    def refusal_of_rows(self, request: HTTPConnection, batch: Batch) -> str:
        """Why the bearer's token does not allow it to send these rows, "" where it does."""
        grant: Grant | None = request.scope.get(GRANT)
        if grant is None:
            return ""
        for column, reason, own in (("node", FOREIGN_NODE, grant.node), ("job", FOREIGN_JOB, grant.job)):
            other = _another(batch, column, own) if own else ""
            if other:
                line = f"{batch.record} of {column} {other[:80]!r}: the token is for {column} {own!r}"
                return str(self.refuse(reason, line, job=grant.job, node=grant.node, grant=grant))
        sender, named, _ = batch.source.partition("/")  # of an agent: NODE/RANDOM
        if grant.node and named and sender != grant.node:
            line = f"{batch.record} numbered by node {sender[:80]!r}: the token is for node {grant.node!r}"
            return str(self.refuse(FOREIGN_NODE, line, job=grant.job, node=grant.node, grant=grant))
        return ""


class Claim:
    """One connection of an agent, from its hello on."""

    def __init__(self, claims: NodeClaims, grant: Grant | None) -> None:
        self._claims, self._grant = claims, grant
        self._hello: Hello | None = None

    async def take(self, hello: Hello) -> None:
        """The agent says who it is. Raises `UsageError` where it may not be that one."""
        self._hello = hello
        if self._grant is not None:
            for reason, own, said in (
                (FOREIGN_JOB, self._grant.job, hello.job),
                (FOREIGN_NODE, self._grant.node, hello.node),
            ):
                if own and said != own:
                    raise self._refuse(reason, f"{reason} {said!r}: the token is for {reason} {own!r}")
        await self._claims.make_way(hello, self._grant)

    def takes(self, message: Report) -> bool:
        """Whether a message is new. Raises `UsageError` for one in the name of another node."""
        assert self._hello is not None, "the first message is the hello"
        if message.node != self._hello.node:
            line = f"a {type(message).__name__} of node {message.node[:80]!r} on the connection of node "
            raise self._refuse(FOREIGN_NODE, f"{line}{self._hello.node!r}")
        if not isinstance(message, Heartbeat):
            return True
        newest = self._claims.newest_heartbeat(self._hello.job, self._hello.node)
        self._claims.refused[REPLAY] += message.seq <= newest
        return message.seq > newest

    def _refuse(self, reason: str, line: str) -> UsageError:
        assert self._hello is not None, "the first message is the hello"
        node, job = self._hello.node, self._hello.job
        return self._claims.refuse(reason, line, job=job, node=node, grant=self._grant)


class RefusalCollector(Collector):
    """How many messages and batches were refused, in Prometheus' format."""

    def __init__(self, refused: Mapping[str, int]) -> None:
        self._refused = refused

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One counter for each reason."""
        family = CounterMetricFamily(
            "pulsetrain_agent_refused",
            "Messages and batches of agents that were refused: of another node or job, or sent again.",
            labels=("reason",),
        )
        for reason in REASONS:
            family.add_metric([reason], self._refused.get(reason, 0))
        yield family


def _is_another(hello: Hello, node: Node) -> bool:
    """Whether it is certainly not the agent that holds the node. An older agent does not say it."""
    return bool(hello.agent_id and node.hello.agent_id) and hello.agent_id != node.hello.agent_id


def _another(batch: Batch, column: str, own: str) -> str:
    """A value of a column that is neither empty nor `own`, "" for none."""
    if column not in batch.table.column_names:
        return ""
    return next((str(v) for v in batch.table.column(column).unique().to_pylist() if v not in ("", own)), "")
