"""A hub that does only what a test tells it: takes messages, sends commands, goes away and comes back."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from pulsetrain.protocol.messages import (
    CONFIRM_HEADER,
    Command,
    Confirm,
    Confirmed,
    Message,
    Reply,
    Start,
    WorldNode,
    decode,
    encode,
)

M = TypeVar("M")
TOKEN = "let-me-in"


class FakeHub:
    """Listens on 127.0.0.1; `received` holds (monotonic time, message) of everything that agents said.

    With `leads_s` it is one of several hubs and answers so when it is asked whether it leads, below 0: never.
    """

    def __init__(self, leads_s: float | None = None) -> None:
        self.leads_s = leads_s
        self.received: list[tuple[float, Message]] = []
        self._new = threading.Condition()
        self._agents: dict[str, ServerConnection] = {}
        self._ids = itertools.count(1)
        self._server: Server | None = None
        self._port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def up(self) -> None:
        self._server = serve(
            self._serve, "127.0.0.1", self._port, process_request=self._admit, process_response=self._mark
        )
        self._port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def down(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        for connection in self._agents.values():
            connection.socket.close()
        self._agents.clear()

    def connection(self, node: str) -> ServerConnection:
        return self._agents[node]

    def refuse(self, node: str, reason: str) -> None:
        self._agents[node].close(1008, reason)

    def ask(self, node: str, kind: Callable[..., Command], timeout_s: float = 100.0, **fields: Any) -> Reply:
        """Send a command and wait for its one reply."""
        command = kind(id=next(self._ids), **fields)
        self._agents[node].send(encode(command))
        return self.wait(Reply, lambda reply: reply.id == command.id, timeout_s)

    def wait(
        self,
        kind: type[M],
        wanted: Callable[[M], bool] = lambda m: True,
        timeout_s: float = 100.0,
        skip: int = 0,
    ) -> M:
        """The first message of a kind that fits, after leaving `skip` messages of any kind out."""
        deadline = time.monotonic() + timeout_s
        with self._new:
            while True:
                for _, message in self.received[skip:]:
                    if isinstance(message, kind) and wanted(message):
                        return message
                left = deadline - time.monotonic()
                assert left > 0, f"no {kind.__name__} in {timeout_s} s; got {self.received[-3:]}"
                self._new.wait(left)

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for _, message in self.received)

    def start(
        self, node: str, store: Reply, *, attempt: int = 0, nproc: int = 2, restore_step: int = -1
    ) -> Reply:
        world_node = WorldNode(node=node, node_rank=0, address="127.0.0.1", peer_port=0, nproc=nproc)
        return self.ask(
            node,
            Start,
            job="job",
            attempt=attempt,
            node_rank=0,
            world=(world_node,),
            store_address="127.0.0.1",
            store_port=store.data["port"],
            restore_step=restore_step,
        )

    def _admit(self, connection: ServerConnection, request: Any) -> Any:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "wrong token\n")
        return None

    def _mark(self, connection: ServerConnection, request: Any, response: Any) -> None:
        if self.leads_s is not None:
            response.headers[CONFIRM_HEADER] = "1"

    def _serve(self, connection: ServerConnection) -> None:
        try:
            for text in connection:
                message = decode(text)
                with self._new:
                    self._agents[message.node] = connection  # type: ignore[union-attr]  # reports have a node
                    self.received.append((time.monotonic(), message))
                    self._new.notify_all()
                if isinstance(message, Confirm) and self.leads_s is not None and self.leads_s >= 0:
                    connection.send(encode(Confirmed(id=message.id, leads_s=self.leads_s)))
        except ConnectionClosed:
            return
