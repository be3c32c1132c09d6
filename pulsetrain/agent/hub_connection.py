"""One WebSocket from an agent to its hub."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog

from pulsetrain.agent.lead_check import LeadCheck
from pulsetrain.core.clock import SystemClock
from pulsetrain.core.errors import AuthError, CorruptData, Unavailable, UsageError
from pulsetrain.core.urls import split_url
from pulsetrain.protocol import tls
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import CONFIRM_HEADER, Message, Report, decode, encode

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = structlog.get_logger()

REFUSALS = (401, 403)
POLICY_VIOLATION = 1008
MAX_MESSAGE_BYTES = 16 << 20


def websocket_url(url: str) -> str:
    """Where agents connect at the hub `url` (http or https). Raises `UsageError` for anything else."""
    parts = split_url(url, "hub address")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"hub address {url!r}: allowed is http://HOST:PORT or https://HOST:PORT")
    return f"ws{parts.scheme[4:]}://{parts.netloc}{parts.path.rstrip('/')}/v1/agent"


OnMessage = Callable[["HubConnection", Message], None]


class HubConnection:
    """A connection to one hub. All calls belong to one event loop.

    They raise `AuthError` or `UsageError` where the hub turns this agent away, and `Unavailable` where the
    connection cannot be made or is gone. `greeted` says whether the agent has said hello on it. `lead_check`
    holds the commands of a hub that may lose the lead, None where they need no confirmation.
    """

    def __init__(self, socket: ClientConnection, url: str, on_message: OnMessage) -> None:
        self._socket, self._url = socket, url
        self._on_message = on_message
        confirms = socket.response is not None and CONFIRM_HEADER in socket.response.headers
        self.lead_check = LeadCheck(SystemClock()) if confirms else None
        self._reader = asyncio.create_task(self._read())
        self.greeted = False

    @classmethod
    async def open(cls, hub: HubAddress, on_message: OnMessage) -> HubConnection:
        """Connect. `on_message(connection, message)` gets each message of the hub and must return at once."""
        from websockets.asyncio.client import connect

        url = websocket_url(hub.url)
        context = tls.client_context(hub.ca) if url.startswith("wss:") else None
        with _hub_errors(url):
            socket = await connect(
                url,
                additional_headers={"Authorization": f"Bearer {hub.token}"},
                ssl=context,
                compression=None,
                proxy=None,
                open_timeout=5,
                close_timeout=0.5,
                ping_interval=10,
                ping_timeout=30,  # a hub that stands still for half a minute is slow, not gone
                max_size=MAX_MESSAGE_BYTES,
            )
        return cls(socket, url, on_message)

    async def send(self, message: Report) -> None:
        """Send one message."""
        with _hub_errors(self._url):
            await self._socket.send(encode(message))

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        """Return when `event` is set, or after `timeout_s`. Raises when the connection has ended."""
        waiter = asyncio.create_task(event.wait())
        try:
            await asyncio.wait({waiter, self._reader}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if self._reader.done():
            self._reader.result()
            raise Unavailable(f"hub {self._url} has closed the connection")

    async def answers(self, timeout_s: float) -> bool:
        """Whether the hub answers a ping in time."""
        with _hub_errors(self._url):
            pong = await self._socket.ping()
        done, _ = await asyncio.wait({asyncio.ensure_future(pong)}, timeout=timeout_s)
        return bool(done)

    async def close(self) -> None:
        """Disconnect."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._socket.close()

    async def _read(self) -> None:
        with _hub_errors(self._url):
            async for text in self._socket:
                try:
                    message = decode(text)
                except CorruptData as error:
                    log.warning("bad_message", error=str(error))
                    continue
                self._on_message(self, message)


@contextlib.contextmanager
def _hub_errors(url: str) -> Iterator[None]:
    """Raise what the WebSocket library raises as one of Pulsetrain's errors."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

    try:
        yield
    except InvalidStatus as error:
        status = error.response.status_code
        if status in REFUSALS:
            raise AuthError(f"hub {url} refuses the token: set PULSETRAIN_TOKEN or --token") from error
        raise Unavailable(f"hub {url} answers with status {status}") from error
    except ConnectionClosed as error:
        if error.rcvd is not None and error.rcvd.code == POLICY_VIOLATION:
            raise UsageError(f"hub: {error.rcvd.reason}") from error
        raise Unavailable(f"hub {url} has closed the connection") from error
    except (InvalidHandshake, OSError, EOFError, TimeoutError) as error:
        why = tls.refusal(error)
        if why:
            raise AuthError(f"hub {url}: {why}") from error
        raise Unavailable(f"hub {url} cannot be reached: {str(error) or type(error).__name__}") from error
