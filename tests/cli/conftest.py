"""Run commands in this process, against a hub that answers from a table."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner, Result

from pulsetrain.cli import pulsetrain

TOKEN = "secret"


@dataclass
class CannedHub:
    """A hub whose answers are in `answers` by "METHOD path". `requests` keeps what was asked for."""

    answers: dict[str, object] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    url: str = ""
    token: str = TOKEN


@pytest.fixture
def cli(monkeypatch, tmp_path) -> Callable[..., Result]:
    """Run a command. No hub is known unless the test names one."""
    for name in ("PULSETRAIN_HUB", "PULSETRAIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PULSETRAIN_DATA", str(tmp_path / "no-hub-here"))

    def invoke(*words: object, **options: object) -> Result:
        return CliRunner().invoke(pulsetrain, [str(w) for w in words], standalone_mode=False, **options)

    return invoke


@pytest.fixture
def canned_hub() -> Iterator[CannedHub]:
    """A hub on a free loopback port."""
    hub = CannedHub()

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            key = f"{self.command} {self.path}"
            if self.headers["Authorization"] != f"Bearer {hub.token}":
                status, answer = 401, {"error": "token"}
            else:
                hub.requests.append((key, json.loads(body) if body[:1] == b"{" else {}))
                status = 200 if key in hub.answers else 404
                answer = hub.answers.get(key, {"error": f"no answer to {key}"})
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = reply

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def ask(cli, canned_hub) -> Callable[..., Result]:
    """Run a command that talks to `canned_hub`."""

    def invoke(*words: object) -> Result:
        return cli(*words, "--hub", canned_hub.url, "--token", canned_hub.token)

    return invoke
