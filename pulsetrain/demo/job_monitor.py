"""Follows a job through the hub's API and its ClickHouse endpoint, as any outside tool would."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.demo.score import SeenFinding
from pulsetrain.demo.sentences import event_line, finding_line
from pulsetrain.protocol.client import HubAddress, HubClient
from pulsetrain.stream.queries import demo as queries
from pulsetrain.stream.store.clickhouse import Store, open_store

POLL_S = 0.25
LATE_NS = 15_000_000_000  # a row may arrive so much later than its own time
PROGRESS_STEPS = 10

Say = Callable[[str, str], None]
"""Prints one line of the timeline: who, what."""


class Status(Protocol):
    """Where the hub's status comes from."""

    def status(self) -> JsonObject: ...


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """What the hub last said of the job. `ranks` are global ranks by node."""

    state: str = ""
    failure: str = ""
    attempt: int = -1
    step: int = -1
    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, job: JsonObject) -> JobStatus:
        """One job of the hub's status."""
        return cls(
            state=str(job["state"]),
            failure=str(job.get("failure", "")),
            attempt=int(job["attempt"]),
            step=int(job["step"]),
            ranks={node["node"]: tuple(node.get("ranks", ())) for node in job["nodes"]},
        )


class JobMonitor:
    """What is known of one job. `poll` asks the hub once and prints what is new."""

    def __init__(self, client: Status, store: Store, job: str, say: Say) -> None:
        self.status = JobStatus()
        self.findings: list[SeenFinding] = []
        self.recoveries: list[JsonObject] = []
        self.failures = 0
        self.store = store
        self._client, self._job, self._say = client, job, say
        self._since_ns = time.time_ns()
        self._seen_rows: set[tuple[Hashable, ...]] = set()
        self._printed_step = 0
        self._written_rows = 0

    @classmethod
    def of_hub(cls, hub: HubAddress, job: str, say: Say) -> JobMonitor:
        """A monitor with connections of its own; `close` ends them."""
        parts = urlsplit(hub.url)
        store = open_store(f"{parts.scheme}://{parts.netloc}", token=hub.token, ca=hub.ca)
        return cls(HubClient(hub), store, job, say)

    def poll(self) -> None:
        """Read the state, new events and new findings, and print them. A failure is counted, no more."""
        try:
            written_rows = self._read_status()
            if written_rows != self._written_rows:
                self._read_rows()
            self._written_rows = written_rows
            self._print_progress()
        except PulsetrainError:
            self.failures += 1

    def wait(self, until: Callable[[], bool], timeout_s: float, before_poll: Callable[[], None]) -> bool:
        """Poll until `until` holds; False after `timeout_s`. `before_poll` may raise to end the wait."""
        deadline_s = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline_s:
                return False
            before_poll()
            time.sleep(POLL_S)
            self.poll()
        return True

    def close(self) -> None:
        """End the connections."""
        self.store.close()

    def _read_status(self) -> int:
        """Read the job's state; how many events and findings the hub has written."""
        status = self._client.status()
        for job in status["jobs"]:
            if job["job"] == self._job:
                self.status = JobStatus.read(job)
        return int(status["hub"]["written_rows"])

    def _read_rows(self) -> None:
        """Read what is new among the store's events and findings."""
        since_ns = self._since_ns - LATE_NS
        for row in queries.events_since(self.store, self._job, since_ns).to_pylist():
            self._take_event(row)
        for row in queries.findings_since(self.store, self._job, since_ns).to_pylist():
            self._take_finding(row)

    def _take_event(self, row: JsonObject) -> None:
        if not self._is_new("event", row["ts_ns"], row["kind"], row["node"], row["rank"]):
            return
        if row["kind"] == "recovery":
            self.recoveries.append(json.loads(row["detail"]) | {"ts_ns": row["ts_ns"]})
        line = event_line(row)
        if line:
            self._say(row["actor"], line)

    def _take_finding(self, row: JsonObject) -> None:
        subject = (row["subject_type"], row["subject"])
        if not self._is_new("finding", row["ts_ns"], row["kind"], *subject):
            return
        self.findings.append(
            SeenFinding(
                kind=row["kind"],
                subject=subject,
                summary=row["summary"],
                seen_ns=time.time_ns(),
                step=self.status.step,
            )
        )
        self._say("analysis", finding_line(row))

    def _is_new(self, *row: Hashable) -> bool:
        seen = row in self._seen_rows
        self._seen_rows.add(row)
        return not seen

    def _print_progress(self) -> None:
        """Print a line when `PROGRESS_STEPS` more steps are done. Steps are counted from 0, as in records."""
        step = self.status.step
        if step < self._printed_step + PROGRESS_STEPS:
            return
        self._printed_step = step - step % PROGRESS_STEPS
        loss = queries.loss(self.store, self._job, step)
        self._say("training", f"step {step}" + ("" if loss is None else f", loss {loss:.3f}"))
