from __future__ import annotations

import random
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter

import httpx
import pytest

from pulsetrain.stream.spool.queue import Spool
from pulsetrain.stream.spool.shipper import Shipper, ShipperConfig
from pulsetrain.stream.spool.transport import HttpTransport
from tests.stream.rows import columns

HUB = textwrap.dedent(
    """
    import asyncio, socket, sys
    import uvicorn
    from starlette.applications import Starlette
    from pulsetrain.stream.store.server import routes
    from pulsetrain.stream.store.clickhouse import open_store

    store = open_store(f"chdb://{sys.argv[1]}")
    store.migrate()
    app = Starlette(routes=routes(store, token="t"))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[2])))
    listener.listen(64)
    asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[listener]))
    """
)
ASK = textwrap.dedent(
    """
    import sys
    from pulsetrain.stream.store.clickhouse import open_store
    store = open_store(f"chdb://{sys.argv[1]}")
    print(*store.query("SELECT seq FROM spans")["seq"].to_pylist())
    print(store.query("SELECT sum(spans) AS n FROM span_rollup")["n"][0].as_py())
    store.close()
    """
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder, port):
    hub = subprocess.Popen([sys.executable, "-c", HUB, str(folder), str(port)])
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/ping", timeout=1)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return hub
    hub.kill()
    raise AssertionError("the hub does not start")


@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_hub_killed_again_and_again_loses_and_doubles_nothing(tmp_path):
    """Proven by ids: every row has its own number in `seq`."""
    folder, port, chance = tmp_path / "store", free_port(), random.Random(7)
    spool = Spool(tmp_path / "spool")
    transport = HttpTransport(f"http://127.0.0.1:{port}", "t", timeout_s=5)
    shipper = Shipper(spool, transport, config=ShipperConfig(first_backoff_s=0.02, max_backoff_s=0.1))
    shipper.start()
    hub, sent = start(folder, port), 0
    try:
        for _ in range(5):
            until = time.monotonic() + chance.uniform(0.2, 1.0)
            while time.monotonic() < until:
                rows = chance.randint(1, 40)
                numbers = list(range(sent, sent + rows))
                assert spool.append(columns("spans", rows, seq=numbers, step=numbers))
                sent += rows
                time.sleep(0.005)
            hub.kill()
            hub.wait()
            hub = start(folder, port)
        assert shipper.flush(90)
    finally:
        shipper.stop()
        hub.kill()
        hub.wait()
        spool.close()
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(folder)], capture_output=True, text=True, check=True
    )
    numbers, summed = done.stdout.splitlines()
    assert Counter(map(int, numbers.split())) == Counter(range(sent))
    assert int(summed) == sent
    assert not spool.dropped
