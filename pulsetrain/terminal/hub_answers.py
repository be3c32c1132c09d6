"""What a terminal asks a hub: its status and alerts each time, and incidents where there is a finding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.answer import worst_finding
from pulsetrain.dashboard.pulse import Pulse
from pulsetrain.terminal.view import Answers

INCIDENTS_S = 5.0  # incidents of the same findings are asked for again after so long


class Hub(Protocol):
    """The questions. `HubClient` answers them."""

    def status(self) -> JsonObject:
        """See `HubClient`."""
        ...

    def alerts(self) -> list[JsonObject]:
        """See `HubClient`."""
        ...

    def incidents(self) -> list[JsonObject]:
        """See `HubClient`."""
        ...


class HubQuestions:
    """Asks a hub. Each call raises as `HubClient` does. `clock` is monotonic seconds."""

    def __init__(self, hub: Hub, clock: Callable[[], float] = time.monotonic) -> None:
        self._hub, self._clock = hub, clock
        self._incidents: Sequence[JsonObject] = ()
        self._about: object = None
        self._asked_s = 0.0

    def __call__(self) -> JsonObject:
        """{"status", "alerts", "incidents"}."""
        status = self._hub.status()
        return {
            "status": status,
            "alerts": self._hub.alerts(),
            "incidents": list(self.incidents_of(status)),
        }

    def incidents_of(self, status: JsonObject) -> Sequence[JsonObject]:
        """The incidents, if a job has a finding that asks for action. They say what to do."""
        worst = [worst_finding(job) for job in [*status.get("jobs", []), *status.get("past_jobs", [])]]
        about = [(f["job"], f["kind"], f["subject"]) for f in worst if f is not None]
        if not about:
            self._incidents, self._about = (), None
        elif about != self._about or self._clock() - self._asked_s >= INCIDENTS_S:
            self._incidents = self._hub.incidents()
            self._about, self._asked_s = about, self._clock()
        return self._incidents


class KeptAnswers:
    """The newest answers and their age. A thread asks once a second, so nobody waits for a frozen hub.

    `first` is what the hub answered already.
    """

    def __init__(self, questions: Callable[[], JsonObject], first: JsonObject) -> None:
        self._questions, self._first = questions, [first]
        self._pulse = Pulse(self._ask)

    def __call__(self) -> Answers:
        """What the hub answered last."""
        return Answers(**self._pulse.status(), age_s=self._pulse.age_s, problem=self._pulse.away)

    def _ask(self) -> JsonObject:
        return self._first.pop() if self._first else self._questions()
