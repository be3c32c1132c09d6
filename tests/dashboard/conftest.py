"""Draw a page without a browser, over answers that a test chooses."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.testing.v1 import AppTest

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard import page


@dataclass
class FakeClient:
    """Keeps what a page told the hub to do. `refusal` is raised instead, `plan` answers a dry run."""

    done: list[tuple[object, ...]] = field(default_factory=list)
    refusal: PulsetrainError | None = None
    plan: JsonObject = field(default_factory=dict)
    seen: JsonObject | None = None

    def _do(self, *action: object) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.done.append(action)

    def acknowledge(self, alert: str, note: str) -> None:
        self._do("acknowledge", alert, note)

    def silence(self, matchers: JsonObject, seconds: float, note: str) -> None:
        self._do("silence", dict(matchers), seconds, note)

    def end_silence(self, silence: str) -> None:
        self._do("end_silence", silence)

    def stacks(self, job: str) -> None:
        self._do("stacks", job)

    def evict(
        self,
        node: str,
        reason: str,
        *,
        dry_run: bool = False,
        actor: str = "",
        job: str = "",
        seen: JsonObject | None = None,
    ) -> JsonObject:
        self.seen = seen
        self._do("evict", node, job, reason, dry_run)
        return self.plan

    def move(
        self,
        job: str,
        what: str,
        reason: str,
        *,
        node: str = "",
        dry_run: bool = False,
        actor: str = "",
        devices: int = 0,
        nodes: Sequence[str] = (),
        seen: JsonObject | None = None,
    ) -> JsonObject:
        self.seen = seen
        more = [*([devices] if devices else []), *([list(nodes)] if nodes else [])]
        self._do("move", job, what, reason, node, *more, dry_run)
        told = {
            "job": job,
            "what": what,
            "node": node,
            "on_nodes": list(nodes),
            "can_do": True,
            "why_not": "",
        }
        return {**told, **self.plan}

    def decide_hang(
        self,
        job: str,
        decision: str,
        reason: str,
        *,
        seconds: float,
        dry_run: bool = False,
        actor: str = "",
        seen: JsonObject | None = None,
    ) -> JsonObject:
        self.seen = seen
        self._do("decide_hang", job, decision, reason, dry_run)
        return {"job": job, "can_do": True, "pending_hang": {"rank": 5, "since_ns": 1}}


@dataclass
class FakeSource:
    """What `Source` answers. `answers` are of the hub, `stored` are rows by the name of the view."""

    answers: JsonObject = field(default_factory=dict)
    stored: dict[str, list[JsonObject]] = field(default_factory=dict)
    error: PulsetrainError | None = None
    client: FakeClient = field(default_factory=FakeClient)
    problem: str = ""
    away: str = ""
    age_s: float = 0.0
    forgotten: list[object] = field(default_factory=list)
    profiled: list[tuple[str, list[int], int]] = field(default_factory=list)
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def forget(self, *keys: object) -> None:
        self.forgotten += keys

    def profile(self, job: str, ranks: list[int], steps: int) -> JsonObject:
        self.profiled.append((job, ranks, steps))
        return self._answer("profile", {})

    def _answer(self, name: str, empty: object) -> object:
        if self.error is not None:
            raise self.error
        return self.answers.get(name, empty)

    def status(self) -> JsonObject:
        return self._answer("status", {"jobs": [], "hub": {}})

    def job(self, name: str) -> JsonObject:
        jobs = [] if self.error else self.status()["jobs"]
        return next((job for job in jobs if job["job"] == name), {})

    def nodes(self) -> list[JsonObject]:
        return self._answer("nodes", [])

    def alerts(self) -> list[JsonObject]:
        return self._answer("alerts", [])

    def silences(self) -> list[JsonObject]:
        return self._answer("silences", [])

    def incidents(self) -> list[JsonObject]:
        return self._answer("incidents", [])

    def read_stacks(self, job: str) -> None:
        self.client.stacks(job)

    def stacks(self, job: str) -> JsonObject:
        return self._answer("stacks", {})

    def rank(self, job: str, rank: int) -> JsonObject:
        self.asked.append(("rank", (job, rank), ()))
        return self._answer("rank", {})

    def rows(self, view: Callable[..., object], *args: object, **options: object) -> Sequence[JsonObject]:
        self.asked.append((view.__name__, args, tuple(sorted(options.items()))))
        if self.error is not None:
            raise self.error
        return self.stored.get(view.__name__, [])

    def table(self, view: Callable[..., object], *args: object, **options: object) -> pa.Table:
        return pa.Table.from_pylist(list(self.rows(view)))


@dataclass
class DrawnPage:
    """A page that was drawn."""

    app: AppTest

    @property
    def html(self) -> str:
        """All HTML that the page wrote."""
        return "\n".join(element.proto.body for element in self.app.get("html"))

    @property
    def text(self) -> str:
        """What a person reads of it."""
        return html.unescape(re.sub(r"<[^>]+>", " ", self.html))

    def rows(self, table: int = 0) -> list[list[str]]:
        """The cells of a table, without its head."""
        body = re.findall(r"<tbody>(.*?)</tbody>", self.html, flags=re.S)[table]
        cells = [re.findall(r"<td.*?>(.*?)</td>", row, flags=re.S) for row in body.split("</tr>") if row]
        return [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells]

    def click(self, key: str) -> DrawnPage:
        """Press a button."""
        self.app.button(key=key).click().run()
        return self


JOB: JsonObject = {
    "job": "gpt", "state": "running", "attempt": 1, "step": 119, "world_size": 8, "nodes": [],
    "verdict": {"state": "hung", "sentence": "Rank 5 is <b>stopped</b>.", "since_ns": 10**18}, "findings": [],
    "detectors": [], "recoveries": [{}],
}  # fmt: skip


@pytest.fixture
def source(monkeypatch) -> FakeSource:
    """A hub that runs the job "gpt". Pages read from it."""
    fake = FakeSource(answers={"status": {"jobs": [dict(JOB)], "hub": {}}})
    monkeypatch.setattr(page, "_connect", lambda: fake)
    monkeypatch.setattr(page, "now_ns", time.time_ns)
    monkeypatch.setattr(BidiComponentManager, "discover_and_register_components", lambda *_, **__: None)
    return fake


@pytest.fixture
def draw(source) -> Callable[..., DrawnPage]:
    """Draw the page of this name, with these parameters in the address."""

    def run(name: str, **address: str) -> DrawnPage:
        app = AppTest.from_string(
            f"from pulsetrain.dashboard import {name}\n{name}.show()", default_timeout=30
        )
        for key, value in {"job": "gpt", **address}.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception
        return DrawnPage(app)

    return run
