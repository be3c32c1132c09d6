"""Follows a job through the hub's API and its ClickHouse endpoint, as any tool outside would."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.demo.score import Seen
from pulsetrain.demo.sentences import event_line, finding_line
from pulsetrain.protocol.client import HubAddress, HubClient
from pulsetrain.stream.queries import demo as queries
from pulsetrain.stream.store.clickhouse import Store, open_store

LOOK_S = 0.25
LATE_NS = 15_000_000_000  # a row may arrive so much later than the time it bears
TELL_STEPS = 10

Say = Callable[[str, str], None]  # who, what


class JobMonitor:
    """What is known of one job. `look` asks the hub once; times are UTC nanoseconds."""

    def __init__(self, hub: HubAddress, job: str, say: Say) -> None:
        self.findings: list[Seen] = []
        self.recoveries: list[dict[str, Any]] = []
        self.state = ""
        self.failure = ""
        self.attempt = -1
        self.step = -1
        self.nodes: dict[str, Mapping[str, Any]] = {}
        self.failures = 0
        self._client = HubClient(hub)
        parts = urlsplit(hub.url)
        self._store: Store = open_store(f"{parts.scheme}://{parts.netloc}", token=hub.token)
        self._job, self._say = job, say
        self._since_ns = time.time_ns()
        self._known: set[tuple[Any, ...]] = set()
        self._told_step = 0
        self._written_rows = 0

    @property
    def store(self) -> Store:
        """The hub's store, read-only."""
        return self._store

    def look(self) -> None:
        """Ask for state, new events and new findings, and tell them; a hub that is away is asked again."""
        try:
            written_rows = self._look_at_status()
            if written_rows != self._written_rows:
                self._read()
            self._written_rows = written_rows
            self._tell_progress()
        except PulsetrainError:
            self.failures += 1

    def _read(self) -> None:
        """Take what is new among the store's events and findings."""
        since_ns = self._since_ns - LATE_NS
        for row in queries.events_since(self._store, self._job, since_ns).to_pylist():
            self._take_event(row)
        for row in queries.findings_since(self._store, self._job, since_ns).to_pylist():
            self._take_finding(row)

    def wait(self, until: Callable[[], bool], timeout_s: float, each: Callable[[], None]) -> bool:
        """Look until `until` holds; False after `timeout_s`. `each` runs before every look and may raise."""
        deadline_s = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline_s:
                return False
            each()
            time.sleep(LOOK_S)
            self.look()
        return True

    def close(self) -> None:
        """Let go of the connections."""
        self._store.close()

    def node_of(self, rank: int) -> str:
        """The node that runs a rank now; "" where nobody does."""
        return next((n for n, row in self.nodes.items() if rank in row.get("ranks", ())), "")

    def _look_at_status(self) -> int:
        """Take the job's state; how many events and findings the hub has written."""
        status = self._client.status()
        written_rows = int(status["hub"]["written_rows"])
        job = next((j for j in status["jobs"] if j["job"] == self._job), None)
        if job is None:
            return written_rows
        self.state, self.failure = str(job["state"]), str(job.get("failure", ""))
        self.attempt, self.step = int(job["attempt"]), int(job["step"])
        self.nodes = {n["node"]: n for n in job["nodes"]}
        return written_rows

    def _take_event(self, row: Mapping[str, Any]) -> None:
        if not self._fresh("event", row["ts_ns"], row["kind"], row["node"], row["rank"]):
            return
        if row["kind"] == "recovery":
            self.recoveries.append(json.loads(row["detail"]) | {"ts_ns": row["ts_ns"]})
        line = event_line(row)
        if line:
            self._say(row["actor"], line)

    def _take_finding(self, row: Mapping[str, Any]) -> None:
        subject = (row["subject_type"], row["subject"])
        if not self._fresh("finding", row["ts_ns"], row["kind"], *subject):
            return
        now_ns = time.time_ns()
        self.findings.append(
            Seen(kind=row["kind"], subject=subject, summary=row["summary"], seen_ns=now_ns, step=self.step)
        )
        self._say("analysis", finding_line(row))

    def _fresh(self, *key: Any) -> bool:
        known = key in self._known
        self._known.add(key)
        return not known

    def _tell_progress(self) -> None:
        """A line when another `TELL_STEPS` steps are done. Steps are counted from 0, as records have them."""
        if self.step < self._told_step + TELL_STEPS:
            return
        self._told_step = self.step - self.step % TELL_STEPS
        loss = queries.loss(self._store, self._job, self.step)
        self._say("training", f"step {self.step}" + ("" if loss is None else f", loss {loss:.3f}"))
