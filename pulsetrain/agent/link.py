"""The agent's control connection to the hub. It reconnects for ever when the hub goes away."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import structlog

from pulsetrain.agent.hub_connection import HubConnection, websocket_url
from pulsetrain.agent.hub_notice import HubNotice
from pulsetrain.agent.lead_check import ANSWER_S
from pulsetrain.agent.outbox import Outbox
from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.protocol.client import HubAddress, leading_url
from pulsetrain.protocol.messages import (
    Command,
    Confirm,
    Confirmed,
    FirstStep,
    Heartbeat,
    Hello,
    Leaving,
    Message,
    RankExit,
    Reply,
    Report,
)

log = structlog.get_logger()

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.05, 2.0
SETTLED_S = 1.0
TURN_S = 1.0
LOOK_S, PONG_S = 2.0, 2.0
STALE_AFTER_S = 45.0  # a send to a hub that stands still takes up to 30 s

SendReply = Callable[[Reply], None]
OnCommand = Callable[[Command, SendReply], None]
Greeting = Callable[[], Sequence[Hello | RankExit]]


class Link:
    """Sends reports and receives commands, on a thread of its own. No method blocks.

    Of several hubs it stays with the one that takes it. Each failure leads on to the next. It waits only once
    all have failed. A hub that does not answer is left as soon as another one says that it leads. A command
    of a hub that may have lost the lead is carried out once that hub has shown that it leads.

    Each connection begins with `greeting()`: a `Hello`, then the exits of the present attempt. So a restarted
    hub learns the present state. `on_command` runs on the link's thread and must return at once; its second
    argument sends the one reply. A refusal counts only until the hub has once accepted this agent: then
    `refused` gets an `AuthError` or `UsageError`, later it is logged and the link tries again. `notice` is
    told of each try.
    """

    def __init__(
        self, hub: HubAddress, greeting: Greeting, on_command: OnCommand, notice: HubNotice | None = None
    ) -> None:
        """Raises `UsageError` for an address that is none."""
        self._notice = notice or HubNotice(lambda _: None)
        self._hubs = deque(HubAddress(url=url, token=hub.token, ca=hub.ca) for url in hub.urls)
        for url in hub.urls:
            websocket_url(url)
        self._greeting, self._on_command = greeting, on_command
        self._outbox: Outbox[HubConnection] = Outbox()
        self._connection: HubConnection | None = None
        self._leader_watch: asyncio.Task[None] | None = None
        self._accepted = False
        self._backoff_s, self._failed = FIRST_BACKOFF_S, 0  # hubs that failed one after another
        self._introduced, self._closing = threading.Event(), threading.Event()
        self.connected = threading.Event()
        self.refused: Future[None] = Future()
        self._event_loop = asyncio.new_event_loop()
        self._wakeup = asyncio.Event()
        self._thread = LoopThread("hub_link", self._turn, stale_after_s=STALE_AFTER_S)

    @property
    def loop(self) -> LoopStatus:
        """How the link's thread is."""
        return self._thread.status()

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def introduce(self) -> None:
        """Say hello from now on: the agent is ready for commands."""
        self._introduced.set()
        self._wake()

    def report(self, message: RankExit | FirstStep | Leaving) -> None:
        """Send it as soon as there is a connection, after everything reported before."""
        self._outbox.add_report(message)
        self._wake()

    def send_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Send it soon; one that was not sent yet is replaced."""
        self._outbox.set_heartbeat(heartbeat)
        self._wake()

    def close(self, flush_s: float = 1.0) -> None:
        """Send what is left for at most `flush_s`, then disconnect."""
        if self.connected.is_set():
            self._outbox.empty.wait(flush_s)
        self._closing.set()
        self._wake()
        self._thread.wake()
        if self._thread.stop(timeout_s=2.0) and not self._event_loop.is_closed():
            self._event_loop.run_until_complete(self._disconnect())
            self._event_loop.close()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody sends any more
            self._event_loop.call_soon_threadsafe(self._wakeup.set)

    # -- everything below runs on the link's thread -------------------------------------------------------

    def _turn(self) -> float:
        """Connect, or send what waits; the seconds until the next turn."""
        if self._closing.is_set():
            self._thread.stop()
            return 0.0
        return self._event_loop.run_until_complete(self._advance())

    async def _advance(self) -> float:
        try:
            if self._connection is None:
                await self._connect()
            else:
                await self._exchange(self._connection)
        except Unavailable as error:
            log.debug("hub_unreachable", error=str(error))
            self._notice.failed(str(error))
            self._hubs.rotate(-1)
            self._failed += 1
        except (AuthError, UsageError) as error:
            if not self._accepted:
                self.refused.set_exception(error)
                self._thread.stop()
                return 0.0
            log.warning("hub_refuses", error=str(error))
            self._failed = 0
        except Exception:
            await self._disconnect()
            raise
        else:
            return 0.0
        await self._disconnect()
        return self._wait_s()

    def _wait_s(self) -> float:
        """How long to wait after a failure: not before a hub that was not tried since the last wait."""
        if self._failed % len(self._hubs):
            return 0.0
        self._backoff_s, wait_s = min(self._backoff_s * 2, LAST_BACKOFF_S), self._backoff_s
        return wait_s

    async def _connect(self) -> None:
        connection = self._connection = await HubConnection.open(self._hubs[0], self._received)
        self._backoff_s = FIRST_BACKOFF_S
        self._wakeup.set()
        self._event_loop.call_later(SETTLED_S, self._settle, connection)
        if len(self._hubs) > 1:
            self._leader_watch = asyncio.create_task(self._until_another_leads(connection))

    async def _until_another_leads(self, connection: HubConnection) -> None:
        """Return once the hub does not answer and another one leads."""
        others = [hub.url for hub in list(self._hubs)[1:]]
        leader = ""
        while not leader:
            await asyncio.sleep(LOOK_S)
            if not await connection.answers(PONG_S):
                leader = await asyncio.to_thread(leading_url, others, self._hubs[0].ca, PONG_S)
        log.warning("another_hub_leads", leader=leader)
        self._wakeup.set()

    async def _exchange(self, connection: HubConnection) -> None:
        """Wait for something to send, at most `TURN_S`, and send it."""
        await connection.wait(self._wakeup, TURN_S)
        self._wakeup.clear()
        if self._leader_watch is not None and self._leader_watch.done():
            self._leader_watch.result()
            raise Unavailable(f"hub {self._hubs[0].url} does not answer, and another one leads")
        if not connection.greeted and self._introduced.is_set():
            greeting = self._greeting()
            self._outbox.remove_reports(greeting)
            for message in greeting:
                await connection.send(message)
                if connection.lead_check is not None:
                    connection.lead_check.node = message.node
            connection.greeted = True
            self.connected.set()
        if connection.greeted:
            await self._outbox.send_all(connection, connection.send)

    async def _disconnect(self) -> None:
        self.connected.clear()
        connection, self._connection = self._connection, None
        watch, self._leader_watch = self._leader_watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        if connection is not None:
            await connection.close()

    def _settle(self, connection: HubConnection) -> None:
        """The hub has kept the connection open for a while: it accepts this agent."""
        if connection is self._connection:
            self._notice.reached(self._hubs[0].url)
            self._accepted = self._accepted or self._introduced.is_set()

    def _received(self, connection: HubConnection, message: Message) -> None:
        if isinstance(message, Report):
            log.warning("unexpected_message", type=type(message).__name__)
            return
        self._accepted = True
        check = connection.lead_check
        if isinstance(message, Confirmed):
            self._carry_out(connection, check.confirmed(message) if check else None)
            return
        question = check.hold(message) if check else None
        if check is None or question is None:
            self._carry_out(connection, message)
            return
        self._answer(connection, question)
        give_up = functools.partial(check.give_up, message.id)
        self._event_loop.call_later(ANSWER_S, lambda: self._carry_out(connection, give_up()))

    def _carry_out(self, connection: HubConnection, message: Command | Reply | None) -> None:
        """Pass a command on, or send the reply that refuses one."""
        if isinstance(message, Reply):
            log.warning("command_refused", command=message.id, error=message.error)
            self._answer(connection, message)
        elif message is not None:
            self._on_command(message, functools.partial(self._answer, connection))

    def _answer(self, connection: HubConnection, reply: Reply | Confirm) -> None:
        self._outbox.add_reply(connection, reply)
        self._wake()
