"""The agent's control connection: a thread of its own, which comes back for ever when the hub goes away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from urllib.parse import urlsplit

import structlog

from pulsetrain.core.errors import AuthError, CorruptData, UsageError
from pulsetrain.protocol.messages import (
    Command,
    FirstStep,
    Heartbeat,
    Hello,
    RankExit,
    Reply,
    Report,
    decode,
    encode,
)

log = structlog.get_logger()

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.05, 2.0
REFUSALS = (401, 403)
POLICY_VIOLATION = 1008
SETTLED_S = 1.0
MAX_MESSAGE_BYTES = 16 << 20

Answer = Callable[[Reply], None]
OnCommand = Callable[[Command, Answer], None]
Greeting = Callable[[], Sequence[Hello | RankExit]]


def websocket_url(url: str) -> str:
    """Where agents connect at the hub `url` (http or https). Raises `UsageError` for anything else."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"hub address {url!r}: allowed is http://HOST:PORT or https://HOST:PORT")
    return f"ws{parts.scheme[4:]}://{parts.netloc}{parts.path.rstrip('/')}/v1/agent"


class Link:
    """Sends reports, hands out commands. No method blocks; a slow hub costs memory for one heartbeat only.

    `greeting` is asked for at each connection, so that a restarted hub learns the present state: a `Hello`,
    then the exits of the present attempt. `on_command` runs on the link's thread and must return at once; its
    second argument sends the one reply, which is dropped where the connection that brought the command is
    gone. Exits and first steps wait for the next connection.
    """

    def __init__(self, url: str, token: str, greeting: Greeting, on_command: OnCommand) -> None:
        self._url, self._token = websocket_url(url), token
        self._greeting, self._on_command = greeting, on_command
        self._urgent: deque[Report] = deque()
        self._replies: deque[tuple[int, Reply]] = deque()
        self._heartbeat: Heartbeat | None = None
        self._connection = 0
        self._settled = False
        self._closing = False
        self._idle = threading.Event()
        self.connected = threading.Event()
        self.refused: Future[None] = Future()
        self._open_to_speak = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._something = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        """Begin to connect. `refused` gets an `AuthError` or `UsageError` where the hub turns us away."""
        self._thread.start()

    def introduce(self) -> None:
        """Say hello from now on: the agent is ready for commands."""
        self._open_to_speak.set()
        self._wake()

    def report(self, message: RankExit | FirstStep) -> None:
        """Send it as soon as there is a connection, after everything reported before."""
        self._urgent.append(message)
        self._wake()

    def beat(self, heartbeat: Heartbeat) -> None:
        """Send it soon; one that was not sent yet is replaced."""
        self._heartbeat = heartbeat
        self._wake()

    def close(self, flush_s: float = 1.0) -> None:
        """Send what is left for at most `flush_s`, then disconnect."""
        if self.connected.is_set():
            self._idle.wait(flush_s)
        self._closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(2.0)

    # -- everything below runs on the link's thread, but `_wake` and `_answer` ----------------------------

    def _wake(self) -> None:
        self._idle.clear()
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self._loop.call_soon_threadsafe(self._something.set)

    def _answer(self, connection: int) -> Answer:
        def answer(reply: Reply) -> None:
            self._replies.append((connection, reply))
            self._wake()

        return answer

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._stay_connected())
        finally:
            self._loop.close()

    async def _stay_connected(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while not self._closing and not self.refused.done():
            was = self._connection
            try:
                await self._connect()
            except (OSError, EOFError, TimeoutError) as error:
                log.debug("hub_unreachable", url=self._url, error=str(error))
            except (AuthError, UsageError) as error:
                if not self._settled:
                    self.refused.set_exception(error)
                    return
                log.warning("hub_refuses", error=str(error))
            backoff_s = FIRST_BACKOFF_S if self._connection != was else min(backoff_s * 2, LAST_BACKOFF_S)
            if not self._closing:
                await asyncio.sleep(backoff_s)

    async def _connect(self) -> None:
        """One connection, from its first byte to its last."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

        socket = connect(
            self._url,
            additional_headers={"Authorization": f"Bearer {self._token}"},
            compression=None,
            proxy=None,
            open_timeout=5,
            close_timeout=0.5,
            ping_interval=10,
            ping_timeout=30,  # a hub that stands still for half a minute is slow, not gone
            max_size=MAX_MESSAGE_BYTES,
        )
        try:
            async with socket as ws:
                await self._converse(ws)
        except InvalidStatus as error:
            if error.response.status_code in REFUSALS:
                raise AuthError(
                    f"hub {self._url} refuses the token: set PULSETRAIN_TOKEN or --token"
                ) from error
            log.debug("hub_unreachable", url=self._url, status=error.response.status_code)
        except InvalidHandshake as error:
            log.debug("hub_unreachable", url=self._url, error=str(error))
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == POLICY_VIOLATION:
                raise UsageError(f"hub: {error.rcvd.reason}") from error
        finally:
            self.connected.clear()

    async def _converse(self, ws: object) -> None:
        self._connection += 1
        self._something.set()
        reader = asyncio.create_task(self._read(ws, self._connection))
        writer = asyncio.create_task(self._write(ws, self._connection))
        settle = self._loop.call_later(SETTLED_S, self._settle)
        try:
            done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            settle.cancel()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
        for task in done:
            task.result()

    def _settle(self) -> None:
        self._settled = self._settled or self._open_to_speak.is_set()

    async def _read(self, ws: object, connection: int) -> None:
        async for text in ws:  # type: ignore[attr-defined]  # a websockets ClientConnection
            try:
                message = decode(text)
            except CorruptData as error:
                log.warning("bad_message", error=str(error))
                continue
            if isinstance(message, Report):
                log.warning("unexpected_message", type=type(message).__name__)
                continue
            self._settled = True
            self._on_command(message, self._answer(connection))

    async def _write(self, ws: object, connection: int) -> None:
        greeted = False
        while not self._closing:
            await self._something.wait()
            self._something.clear()
            if not greeted and self._open_to_speak.is_set():
                await self._greet(ws)
                greeted = True
                self.connected.set()
            if greeted:
                await self._drain(ws, connection)

    async def _greet(self, ws: object) -> None:
        greeting = self._greeting()
        self._urgent = deque(m for m in self._urgent if m not in greeting)
        for message in greeting:
            await ws.send(encode(message))  # type: ignore[attr-defined]  # as above

    async def _drain(self, ws: object, connection: int) -> None:
        """Send what waits: reports first, then the heartbeat (a reply may depend on it), then replies."""
        while self._urgent:
            await ws.send(encode(self._urgent[0]))  # type: ignore[attr-defined]  # as above
            self._urgent.popleft()
        if self._heartbeat is not None:
            heartbeat, self._heartbeat = self._heartbeat, None
            await ws.send(encode(heartbeat))  # type: ignore[attr-defined]  # as above
        while self._replies:
            came_by, reply = self._replies.popleft()
            if came_by == connection:
                await ws.send(encode(reply))  # type: ignore[attr-defined]  # as above
        if not self._urgent and self._heartbeat is None and not self._replies:
            self._idle.set()
