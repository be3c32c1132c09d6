"""A whole hub without sockets, processes or a store, in virtual time."""

import asyncio
import heapq
import itertools
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pulsetrain.analytics.watch import WatchConfig
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.assembly import assemble
from pulsetrain.hub.config import HubConfig
from pulsetrain.hub.job_memory import KeptMemory
from pulsetrain.hub.settings import Settings
from pulsetrain.kv.files import FileStore
from pulsetrain.recovery.policy import Policy
from tests.hub.fakes import Clock


class Store:
    """An empty store that keeps what is inserted."""

    def __init__(self):
        self.rows = []

    def query(self, sql, params=None):
        return pa.table({"attempt": [-1], "n": [0]}) if "count() AS n" in sql else pa.table({})

    def inserts(self, *tables):
        return None

    def insert(self, record, table, *, token):
        self.rows += [(record, row) for row in table.to_pylist()]


class VirtualTime:
    """Sleepers wake in order, and the clock jumps from one to the next: an hour costs milliseconds."""

    def __init__(self):
        self.clock, self._sleepers, self._order = Clock(), [], itertools.count()

    async def sleep(self, seconds):
        if seconds <= 0:
            return await asyncio.sleep(0)
        waken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.clock.now_s + seconds, next(self._order), waken))
        return await waken

    async def pass_(self, seconds):
        end_s = self.clock.now_s + seconds
        while True:
            for _ in range(60):
                await asyncio.sleep(0)
            if not self._sleepers or self._sleepers[0][0] > end_s:
                break
            self.clock.now_s, _, waken = heapq.heappop(self._sleepers)
            if not waken.done():
                waken.set_result(None)
        self.clock.now_s = end_s


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """`make` assembles a hub whose clock is `time`."""

    async def at_once(work, *args, **more):
        return work(*args, **more)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    settings = Settings(hub=HubConfig(), policy=Policy(), watch=WatchConfig(), channels={})
    time = VirtualTime()

    def make():
        loops = TaskSupervisor(time.clock, sleep=time.sleep)
        memory = KeptMemory(kept)
        memory.load()
        return assemble(Store(), memory, tmp_path, "http://hub", "t", settings, time.clock, loops)

    kept = FileStore(tmp_path / "kv", time.clock)
    yield SimpleNamespace(time=time, make=make)
    kept.close()
