"""What the agent has to tell the hub and has not sent yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, TypeVar

from pulsetrain.protocol.messages import Confirm, Heartbeat, Reply, Report

C = TypeVar("C")

Send = Callable[[Report], Awaitable[None]]


class Outbox(Generic[C]):
    """Messages in the order in which they must arrive: reports, then the heartbeat, then replies.

    A reply may depend on the heartbeat before it. Reports wait for the next connection. Only the newest
    heartbeat is kept. A reply belongs to the connection that brought its command, and is dropped on any
    other. Any thread may add, one thread sends.
    """

    def __init__(self) -> None:
        self._reports: deque[Report] = deque()
        self._heartbeat: Heartbeat | None = None
        self._replies: deque[tuple[C, Reply | Confirm]] = deque()
        self.empty = threading.Event()
        self.empty.set()

    def add_report(self, report: Report) -> None:
        """Send it after every report added before."""
        self._reports.append(report)
        self.empty.clear()

    def set_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Send it instead of one that is still here."""
        self._heartbeat = heartbeat
        self.empty.clear()

    def add_reply(self, connection: C, reply: Reply | Confirm) -> None:
        """Send it, if `connection` is still the present one by then."""
        self._replies.append((connection, reply))
        self.empty.clear()

    def remove_reports(self, sent: Collection[Report]) -> None:
        """Drop the reports that were sent in another way."""
        self._reports = deque(report for report in self._reports if report not in sent)

    async def send_all(self, connection: C, send: Send) -> None:
        """Send everything. A report that `send` raises for stays here."""
        while self._reports:
            await send(self._reports[0])
            self._reports.popleft()
        if self._heartbeat is not None:
            heartbeat, self._heartbeat = self._heartbeat, None
            await send(heartbeat)
        while self._replies:
            brought_by, reply = self._replies.popleft()
            if brought_by is connection:
                await send(reply)
        if not self._reports and self._heartbeat is None and not self._replies:
            self.empty.set()
