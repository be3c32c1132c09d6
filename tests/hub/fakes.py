"""Fakes of what the hub's parts depend on."""

from __future__ import annotations

import asyncio

import httpx
from starlette.applications import Starlette

from pulsetrain.records.findings import Finding
from tests.recovery.builders import S, job_snapshot

TOKEN = "let-me-in"


class Clock:
    """Time stands still until a test moves it."""

    def __init__(self, now_s=1000.0):
        self.now_s = now_s

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return int(self.now_s * S)


class FakeJob:
    """A job whose snapshot a test sets; it keeps the findings that it is given."""

    def __init__(self, **changes):
        self.changes, self.observed, self.still_open = changes, [], []

    def snapshot(self):
        if isinstance(self.changes.get("broken"), Exception):
            raise self.changes["broken"]
        return job_snapshot(**self.changes)

    def observe(self, new, still_open):
        self.observed += new
        self.still_open = list(still_open)


class Sink:
    """Keeps what was reported, as a reporter would get it."""

    def __init__(self):
        self.new, self.still_open, self.detected = [], {}, {}

    def report(self, job, source, new, still_open):
        self.new += new
        self.still_open[job, source] = list(still_open)

    def detectors(self, job, attempt, verdicts):
        self.detected[job] = list(verdicts)


class Client:
    """Asks an application without a socket."""

    def __init__(self, routes):
        self._app = Starlette(routes=routes)

    def get(self, path, token=TOKEN):
        return self._ask("GET", path, token)

    def post(self, path, json, token=TOKEN):
        return self._ask("POST", path, token, json)

    def _ask(self, method, path, token, json=None):
        async def ask():
            headers = {"Authorization": f"Bearer {token}"}
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://hub", headers=headers) as http:
                return await http.request(method, path, json=json)

        return asyncio.run(ask())


def finding(kind="hang", subject="3", **changes):
    fields = {
        "ts_ns": 1000 * S, "job": "j", "attempt": 0, "kind": kind, "subject_type": "rank", "subject": subject,
        "severity": "critical", "confidence": 0.95, "summary": f"{kind} at rank {subject}",
    }  # fmt: skip
    return Finding(**(fields | changes))
