"""A real hub is killed and started again: it still knows its budget, a cordon and an evicted node."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time

import httpx
import pytest
from websockets.asyncio.client import connect

from pulsetrain.protocol.messages import encode
from tests.kv.cluster import free_ports
from tests.recovery.builders import hello
from tests.recovery.fakes import FakeAgent

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(150)]

TOKEN = "t"


class Hub:
    """`pulsetrain serve` with a budget of one eviction an hour."""

    def __init__(self, folder):
        self.folder, (self.port,) = folder, free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self):
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pulsetrain.cli", "serve", "--no-dashboard"),
                    *("--data", str(self.folder / "data"), "--port", str(self.port), "--token", TOKEN),
                ],
                env=os.environ | {"PULSETRAIN_CONTROLLER_EVICTIONS_PER_HOUR": "1"},
                stdout=log,
                stderr=log,
            )

    def ask(self, method, path, **more):
        with contextlib.suppress(httpx.TransportError):
            headers = {"Authorization": f"Bearer {TOKEN}"}
            return httpx.request(method, self.url + path, headers=headers, timeout=5, **more)
        return None

    def nodes(self):
        answer = self.ask("GET", "/v1/nodes")
        return {n["node"]: n for n in answer.json()["nodes"]} if answer is not None else {}

    def refusals(self):
        sql = "SELECT detail FROM events WHERE kind = 'eviction_refused'"
        return self.ask("POST", "/", content=sql).text


class Wire:
    """Takes a fake agent's reports to a real hub, and its commands back."""

    def __init__(self, hub):
        self.hub, self.reports = hub, asyncio.Queue()

    def connected(self, hello, send):
        self.task = asyncio.create_task(self.speak(hello, send))
        return hello.node

    def received(self, node, message):
        self.reports.put_nowait(encode(message))

    async def speak(self, hello, send):
        url = f"ws{self.hub.url[4:]}/v1/agent"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            await socket.send(encode(hello))
            listening = asyncio.create_task(self.listen(socket, send))
            try:
                while True:
                    await socket.send(await self.reports.get())
            finally:
                listening.cancel()

    async def listen(self, socket, send):
        async for text in socket:
            await send(text)


class Site:
    """A hub and agents without processes, which send a heartbeat five times a second."""

    def __init__(self, hub):
        self.hub, self.agents = hub, {}

    def join(self, name, attempt=-1, node_rank=-1, steps=(), **more):
        greeting = hello(name, attempt=attempt, node_rank=node_rank, pid=ord(name))
        agent = self.agents[name] = FakeAgent(Wire(self.hub), greeting, **more)
        agent.attempt, agent.steps = attempt, dict.fromkeys(steps, 5)

    async def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < deadline, (self.hub.nodes(), self.hub.refusals())
            for agent in self.agents.values():
                agent.send_heartbeat()
            await asyncio.sleep(0.2)

    def leave(self):
        for agent in self.agents.values():
            agent.controller.task.cancel()
        self.agents = {}


@pytest.fixture
def hub(tmp_path):
    hub = Hub(tmp_path)
    hub.start()
    yield hub
    hub.process.terminate()
    hub.process.wait(60)


def state(hub, name):
    return hub.nodes().get(name, {}).get("state")


def test_a_hub_that_was_killed_knows_its_budget_a_cordon_and_an_evicted_node(hub):
    async def scenario():
        site = Site(hub)
        await site.until(lambda: hub.ask("GET", "/ping") is not None)
        for name in "abz":
            site.join(name, sick=name == "b")
        await site.until(lambda: [state(hub, n) for n in "abz"] == ["active", "active", "standby"])
        site.agents["b"].complete(5, peer_of=(0, 1))
        site.agents["a"].complete(5, peer_of=(2, 3))
        site.agents["b"].rank_exits(2, -9)
        await site.until(lambda: (state(hub, "b"), state(hub, "z")) == ("evicted", "active"))
        site.join("y", sick=True)
        await site.until(lambda: hub.nodes().get("y", {}).get("cordon", "").startswith("light check: "))
        cordon = hub.nodes()["y"]["cordon"]
        hub.process.kill()
        hub.process.wait()
        site.leave()
        hub.start()
        await site.until(lambda: hub.ask("GET", "/ping") is not None)
        site.join("a", 1, 0, steps=(0, 1))
        site.join("z", 1, 1, steps=(2, 3), sick=True)
        site.join("y", sick=True)
        site.join("b", sick=True)
        await site.until(lambda: [state(hub, n) for n in "azb"] == ["active", "active", "evicted"])
        assert hub.nodes()["y"]["cordon"] == cordon
        site.agents["z"].rank_exits(2, -9)
        await site.until(lambda: "budget of 1 evictions an hour is used up" in hub.refusals())
        assert state(hub, "z") == "active"
        site.leave()

    asyncio.run(scenario())
