"""A web server on this machine that answers as it is told and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FakeHub:
    """`answers` are (status, JSON value or bytes), one per request; the last one stays."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.asked = []
        self.connections = set()

    def next_answer(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextlib.contextmanager
def fake_hub(*answers):
    """Yields a `FakeHub` with its `url`."""
    hub = FakeHub(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.asked.append(Asked(self.command, self.path, dict(self.headers), body))
            hub.connections.add(self.client_address)
            status, content = hub.next_answer()
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
