"""One simulated agent: its connection to the hub, its heartbeats and its answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from pulsetrain import __version__
from pulsetrain.core.errors import AuthError, CorruptData, UsageError
from pulsetrain.core.urls import split_url
from pulsetrain.protocol import tls
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import Command, Confirmed, Hello, Leave, Reply, Report, Start, Stop, encode
from pulsetrain.simulate.live.commands import CommandReader, answer, carry_out
from pulsetrain.simulate.live.job import LiveJob

log = structlog.get_logger()

BACKOFF_S = 1.0
MAX_MESSAGE_BYTES = 64 << 20
REFUSALS = (401, 403)
POLICY_VIOLATION = 1008
MAX_RESTARTS = 1_000_000  # a plan may end ranks as often as it likes
PID = 4242


@dataclass(kw_only=True)
class Traffic:
    """What all agents have sent and received. `held_back`: heartbeats that were not sent because the one
    before was still on its way."""

    messages: int = 0
    bytes: int = 0
    heartbeats: int = 0
    held_back: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    lost_connections: int = 0


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What all agents of a fleet share. `opening` limits how many connect at the same time."""

    job: LiveJob
    hub: HubAddress
    url: str
    reader: CommandReader
    traffic: Traffic
    opening: asyncio.Semaphore


def socket_url(url: str) -> str:
    """Where agents connect at the hub `url`. Raises `UsageError` for an address that is none.

    >>> socket_url("http://head:8780")
    'ws://head:8780/v1/agent'
    """
    parts = split_url(url, "hub address")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"hub address {url!r}: allowed is http(s)://host:port")
    return f"ws{parts.scheme[4:]}://{parts.netloc}{parts.path.rstrip('/')}/v1/agent"


class SimulatedAgent:
    """The agent of one node. All methods run on one event loop."""

    def __init__(self, node: str, number: int, shared: Shared, *, standby: bool) -> None:
        self.node, self.number, self.standby = node, number, standby
        self.seq = 0
        self.evicted = False
        self.described = -1  # the attempt in which its ranks said how they are instrumented
        self._shared = shared
        self._socket: ClientConnection | None = None
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """Whether it has said hello on a connection."""
        return self._socket is not None

    @property
    def silent(self) -> bool:
        """Whether the plan has it say nothing now."""
        return self._shared.job.silent(self.node, time.monotonic())

    async def run(self) -> None:
        """Connect, and again whenever the connection is lost, until the hub sends the agent away.

        Raises `AuthError` where the hub refuses the token, `UsageError` where it refuses the agent.
        """
        while not self.evicted:
            if not self.silent:
                with contextlib.suppress(OSError, EOFError, TimeoutError, InvalidHandshake):
                    await self._session()
            await asyncio.sleep(BACKOFF_S)

    async def report(self, message: Report) -> None:
        """Send a report, if there is a connection. A silent agent sends nothing."""
        await self._send(encode(message))

    async def heartbeat(self, text: str) -> None:
        """Send a heartbeat. Where the one before is still on its way, it is dropped, as a real agent does."""
        socket, traffic = self._socket, self._shared.traffic
        if socket is not None and socket.transport.get_write_buffer_size():
            traffic.held_back += 1
        elif socket is not None:
            await self._send(text)
            traffic.heartbeats += 1

    async def close(self) -> None:
        """Disconnect for good."""
        self.evicted = True
        for task in self._answers:
            task.cancel()
        if self._socket is not None:
            await self._socket.close()

    async def _session(self) -> None:
        """One connection from its hello until it closes."""
        shared = self._shared
        try:
            async with shared.opening:
                socket = await connect(
                    shared.url,
                    additional_headers={"Authorization": f"Bearer {shared.hub.token}"},
                    ssl=tls.client_context(shared.hub.ca) if shared.url.startswith("wss:") else None,
                    compression=None,
                    proxy=None,
                    open_timeout=60,
                    close_timeout=0.5,
                    ping_interval=10,
                    ping_timeout=30,
                    max_size=MAX_MESSAGE_BYTES,
                )
                self._socket = socket
                await self._send(encode(self._hello()))
        except InvalidStatus as error:
            if error.response.status_code in REFUSALS:
                raise AuthError(
                    f"hub {shared.hub.url} refuses the token: set PULSETRAIN_TOKEN or --token"
                ) from error
            raise
        shared.traffic.connections += 1
        try:
            await self._listen(socket)
        finally:
            self._socket = None
            shared.traffic.connections -= 1

    def _hello(self) -> Hello:
        job, fleet = self._shared.job, self._shared.job.fleet
        number = job.node_rank(self.node)
        return Hello(
            node=self.node,
            address="127.0.0.1",
            job=fleet.job,
            pid=PID + self.number,
            nproc_per_node=fleet.ranks_per_node,
            nnodes=fleet.nodes,
            max_restarts=MAX_RESTARTS,
            peer_port=0,
            attempt=job.number if number >= 0 else -1,
            node_rank=number,
            ranks=tuple(job.ranks(self.node)),
            standby=self.standby,
            version=f"{__version__} (simulated)",
            takes_world_part=True,
            takes_run=True,
            replays="own",
        )

    async def _listen(self, socket: ClientConnection) -> None:
        try:
            async for text in socket:
                if not self.silent:
                    self._received(str(text))
        except ConnectionClosed as error:
            reason = error.rcvd.reason if error.rcvd is not None else ""
            refused = error.rcvd is not None and error.rcvd.code == POLICY_VIOLATION
            if refused and "counted as lost" not in reason:
                raise UsageError(f"hub: {reason}") from error
            self._shared.traffic.lost_connections += 1

    def _received(self, text: str) -> None:
        try:
            message = self._shared.reader.read(text)
        except CorruptData as error:
            log.warning("bad_message", node=self.node, error=str(error))
            return
        if isinstance(message, Report | Confirmed):
            log.warning("unexpected_message", node=self.node, type=type(message).__name__)
            return
        self._shared.traffic.commands[type(message).__name__] += 1
        task = asyncio.create_task(self._answer(message))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, command: Command) -> None:
        """Do what a command asks for, and send the one reply."""
        job = self._shared.job
        reply = answer(command, job, self.node, time.monotonic())
        if isinstance(command, Stop | Leave):
            carry_out(command, job, self.node, time.monotonic())
        await asyncio.sleep(reply.after_s)
        if isinstance(command, Start):
            carry_out(command, job, self.node, time.monotonic())
        await self.report(Reply(id=command.id, node=self.node, error=reply.error, data=reply.data))
        if isinstance(command, Leave):
            self.evicted = True
            if self._socket is not None:
                await self._socket.close()

    async def _send(self, text: str) -> None:
        socket = self._socket
        if socket is None or self.silent:
            return
        with contextlib.suppress(ConnectionClosed):
            await socket.send(text)
            self._shared.traffic.messages += 1
            self._shared.traffic.bytes += len(text)
