"""What agents say, on its way to the controller. Heartbeats may wait here, the newest of each node.

Thousands of nodes send one each second, and reading one takes some hundredths of a millisecond. If each were
read when it comes, requests would wait for as long as nodes send. So reading takes two fifths of the event
loop's time at most, in pieces of some hundredths of a second. A heartbeat that comes while time is left is
read at once: that is so in all but the largest jobs.

An older heartbeat of a node is dropped when a newer one comes, as agents do that cannot send. Nothing else
that a node says overtakes its heartbeat, nor does its next connection or the end of this one. Whether a
connection may say what it says is asked when it is read. Where it may not, the connection ends: at once, or
at its next message where the heartbeat had to wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.core.supervisor import FailureCollector
from pulsetrain.protocol.messages import HEARTBEAT, Command, Confirmed, Hello, Report, decode
from pulsetrain.recovery.controller import Controller
from pulsetrain.recovery.nodes import Key, Node, Send

log = structlog.get_logger()

SHARE = 0.4
BURST_S = 0.025
"""So much beyond its share may be used at once. A stretch of reading is 1 / (1 - SHARE) times as long."""
PAUSE_S = 0.005
IDLE_S = 0.1

Takes = Callable[[Report], bool]
"""Whether a message counts. Raises `UsageError` where its connection must end."""
Said = tuple[Node, Send, str, Takes]
"""A message: the node, the connection on which it came, its text, and whether that may say it."""


class HeartbeatInbox:
    """All methods run on the hub's event loop. Only `look_up` waits. `news` hears of all but heartbeats."""

    def __init__(self, controller: Controller, clock: Clock, news: Callable[[], None] = lambda: None) -> None:
        self._controller, self._clock, self._news = controller, clock, news
        self._waiting: OrderedDict[Key, Said] = OrderedDict()  # the first of a plain dict is found slowly
        self._refused: dict[Send, UsageError] = {}
        self._left_s, self._counted_s = BURST_S, clock.monotonic_s()

    @property
    def waiting(self) -> int:
        """Of how many nodes a heartbeat waits."""
        return len(self._waiting)

    async def look_up(self, hello: Hello) -> None:
        """An agent is about to connect. See `Controller.look_up`."""
        await self._controller.look_up(hello)

    def connected(self, hello: Hello, send: Send) -> Node:
        """An agent said hello on a new connection. See `Controller.connected`."""
        self._news()
        self._settle((hello.job, hello.node))
        return self._controller.connected(hello, send)

    def disconnected(self, node: Node, send: Send) -> None:
        """A connection closed. See `Controller.disconnected`."""
        self._news()
        self._settle(node.key)
        self._refused.pop(send, None)
        self._controller.disconnected(node, send)

    def take(self, node: Node, send: Send, text: str, takes: Takes) -> None:
        """One message of a node, as it came over the connection `send`. A damaged one is skipped.

        Raises `UsageError` where the connection may not say this, or what it said before. A hundred thousand
        come in a second, so a heartbeat that has to wait is only put down.
        """
        if not text.startswith(HEARTBEAT):
            self._news()
        elif self._waiting or not self._has_time():
            self._raise_refused(send)
            self._waiting[node.key] = node, send, text, takes  # keeps the turn of the one that it replaces
            self._controller.arrived(node)
            return
        self._settle(node.key)
        self._raise_refused(send)
        self._read((node, send, text, takes))

    async def turn(self) -> float:
        """One turn of the loop that reads what waits, the oldest first."""
        failures = FailureCollector()
        while self._waiting and self._has_time():
            key = next(iter(self._waiting))
            with failures.collect(f"node {key[1]}"):
                self._settle(key)
        failures.raise_any()
        return PAUSE_S if self._waiting else IDLE_S

    def _settle(self, key: Key) -> None:
        """Read what waits of a node."""
        said = self._waiting.pop(key, None)
        if said is None:
            return
        try:
            self._read(said)
        except UsageError as error:
            self._refused[said[1]] = error

    def _raise_refused(self, send: Send) -> None:
        """Raise why the connection has to end, where what it said before has shown that."""
        if self._refused and send in self._refused:
            raise self._refused.pop(send)

    def _read(self, said: Said) -> None:
        """Read a message. The time that it takes counts."""
        began_s = self._clock.monotonic_s()
        try:
            self._hear(*said)
        finally:
            self._left_s -= self._clock.monotonic_s() - began_s

    def _hear(self, node: Node, send: Send, text: str, takes: Takes) -> None:
        try:
            message = decode(text)
        except CorruptData as error:
            log.warning("bad_message", node=node.name, error=str(error))
            return
        if isinstance(message, Command | Confirmed):
            log.warning("unexpected_message", node=node.name, type=type(message).__name__)
        elif node.owns(send) and takes(message):  # else it was given up since the message came
            self._controller.received(node, message)

    def _has_time(self) -> bool:
        now_s = self._clock.monotonic_s()
        self._left_s = min(BURST_S, self._left_s + SHARE * (now_s - self._counted_s))
        self._counted_s = now_s
        return self._left_s > 0
