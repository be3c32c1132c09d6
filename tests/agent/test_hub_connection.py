"""One WebSocket to a hub: what it carries, and how it ends."""

import asyncio

import pytest

from pulsetrain.agent.hub_connection import HubConnection, websocket_url
from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import Hello, SelfCheck, encode
from tests.agent.fakehub import TOKEN, FakeHub

HELLO = Hello(
    node="a", address="127.0.0.1", job="job", pid=1, nproc_per_node=1, nnodes=1, max_restarts=0, peer_port=0
)


@pytest.fixture
def hub():
    hub = FakeHub()
    yield hub
    hub.down()


def connected(hub, talk, token=TOKEN):
    """Run `talk(connection, messages)` on a connection; `messages` are those of the hub."""

    async def run():
        messages = []
        connection = await HubConnection.open(
            HubAddress(url=hub.url, token=token), lambda _, message: messages.append(message)
        )
        try:
            await talk(connection, messages)
        finally:
            await connection.close()

    asyncio.run(run())


def test_messages_go_both_ways(hub):
    async def talk(connection, messages):
        await connection.send(HELLO)
        await asyncio.to_thread(hub.wait, Hello)
        hub.connection("a").send(encode(SelfCheck(id=7)))
        while not messages:
            await connection.wait(asyncio.Event(), 0.01)
        assert messages == [SelfCheck(id=7)]

    connected(hub, talk)


def test_waiting_ends_with_the_event(hub):
    async def talk(connection, messages):
        event = asyncio.Event()
        event.set()
        await connection.wait(event, 60.0)

    connected(hub, talk)


def test_a_hub_that_closes_is_unavailable_and_one_that_turns_away_says_why(hub):
    async def closed(connection, messages):
        await connection.send(HELLO)
        await asyncio.to_thread(hub.wait, Hello)
        closing = asyncio.create_task(asyncio.to_thread(hub.connection("a").close))
        try:
            await connection.wait(asyncio.Event(), 60.0)
        finally:
            await closing

    async def refused(connection, messages):
        await connection.send(HELLO)
        await asyncio.to_thread(hub.wait, Hello, lambda _: True, 60.0, len(hub.received) - 1)
        closing = asyncio.create_task(asyncio.to_thread(hub.refuse, "a", "node 'a' is already connected"))
        try:
            await connection.wait(asyncio.Event(), 60.0)
        finally:
            await closing

    with pytest.raises(Unavailable, match="has closed the connection"):
        connected(hub, closed)
    hub.received.clear()
    with pytest.raises(UsageError, match="already connected"):
        connected(hub, refused)


def test_a_wrong_token_is_an_error_of_its_own(hub):
    with pytest.raises(AuthError, match="refuses the token"):
        connected(hub, None, token="guessed")


def test_a_hub_that_is_away_is_unavailable(hub):
    hub.down()
    with pytest.raises(Unavailable, match="cannot be reached"):
        connected(hub, None)
    hub.up()


@pytest.mark.parametrize(
    ("url", "expected"),
    [("http://h:1", "ws://h:1/v1/agent"), ("https://h/base/", "wss://h/base/v1/agent")],
)
def test_where_agents_connect(url, expected):
    assert websocket_url(url) == expected


@pytest.mark.parametrize("url", ["h:8780", "ftp://h", "", "http://"])
def test_an_address_that_is_none_is_named(url):
    with pytest.raises(UsageError, match="hub address"):
        websocket_url(url)
