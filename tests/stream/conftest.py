from __future__ import annotations

import asyncio
import socket
import threading

import pytest
import uvicorn
from starlette.applications import Starlette

from pulsetrain.stream.store.clickhouse import open_store
from pulsetrain.stream.store.server import routes

TOKEN = "secret-token"


@pytest.fixture(scope="module")
def chdb_store(tmp_path_factory):
    """A chDB folder for one module: a process may hold only one. Tests use job names of their own."""
    store = open_store(f"chdb://{tmp_path_factory.mktemp('chdb')}/store")
    store.migrate()
    yield store
    store.close()


@pytest.fixture(scope="module")
def hub(chdb_store):
    """Address of a real web server with the hub's record routes over `chdb_store`."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    app = Starlette(routes=routes(chdb_store, token=TOKEN))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(serve_and_close(server, listener)), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)
    listener.close()


async def serve_and_close(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve, and leave no connection behind. One that is collected later fails whatever test runs then."""
    await server.serve(sockets=[listener])
    for connection in list(server.server_state.connections):  # a request outlived the graceful second
        connection.transport.abort()
    await asyncio.sleep(0)


@pytest.fixture(scope="module")
def hub_store(hub):
    """The same store through the hub's ClickHouse endpoint."""
    store = open_store(hub, token=TOKEN)
    yield store
    store.close()
