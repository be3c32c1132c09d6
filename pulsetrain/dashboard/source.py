"""Where pages get their data: the hub's API and its store, behind a small cache.

The cache keeps the last answers for the time in which the hub does not answer. Every question runs on a
thread of its own, so that no page waits for a hub that is frozen.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar, cast

import pyarrow as pa

from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.pulse import Pulse
from pulsetrain.protocol.client import HubAddress, HubClient
from pulsetrain.stream.store.clickhouse import Store, open_store

T = TypeVar("T")

PROFILE_PATIENCE_S = 660.0  # the hub gives up after 600
_KEPT = 64
_FRESH_S = 0.9
_RETRY_S = 1.5
_PROBLEM_S = 10.0
_SLICE_S = 0.2  # how often a page that waits looks whether the hub is still there
_COST_FACTOR = 5.0
"""An answer is kept five times as long as it took: a page costs the hub a sixth of a core at most."""


@dataclass(kw_only=True)
class _Answer:
    value: object
    until_s: float
    at_s: float


def _in_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="question", daemon=True).start()


class Cache:
    """The last 64 answers by key. Safe for many threads. `clock` is monotonic seconds.

    Where a question fails and an older answer is kept, `ask` returns that one, and `problem` says why.
    `away` says why nobody can answer now, "" where somebody can. Then `ask` does not wait.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        away: Callable[[], str] = lambda: "",
        start: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        self._clock, self._away, self._start = clock, away, start
        self._running: dict[Hashable, Future[object]] = {}
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()
        self._failures: OrderedDict[Hashable, tuple[PulsetrainError, float]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def problem(self) -> str:
        """Why some question cannot be answered now. "" for none."""
        with self._lock:
            recent = [e for e, at in self._failures.values() if self._clock() - at < _PROBLEM_S]
        return str(recent[-1]) if recent else ""

    def ask(self, key: Hashable, question: Callable[[], T]) -> T:
        """The answer to `question`, fresh or kept. Raises its `PulsetrainError` where nothing is kept."""
        started = self._clock()
        with self._lock:
            kept = self._answers.get(key)
            failed = self._failures.get(key)
        if kept is not None and started < kept.until_s:
            return cast("T", kept.value)
        try:
            if failed is not None and started - failed[1] < _RETRY_S:
                raise failed[0]
            value = self._answer(key, question)
        except PulsetrainError as error:
            self._fail(key, error, failed)
            if kept is None:
                raise
            return cast("T", kept.value)
        self._keep(key, value, started)
        return value

    def _answer(self, key: Hashable, question: Callable[[], T]) -> T:
        """The answer, once for all that ask at the same time. Raises `Unavailable` while nobody answers."""
        future: Future[object] = Future()
        with self._lock:
            running = self._running.setdefault(key, future)
        if running is future:
            self._start(lambda: self._run(key, question, future))
        while True:
            try:
                return cast("T", running.result(timeout=_SLICE_S))
            except TimeoutError:
                if reason := self._away():
                    raise Unavailable(reason) from None

    def _run(self, key: Hashable, question: Callable[[], T], future: Future[object]) -> None:
        try:
            value = question()
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is wanted
            self._end(key)
            future.set_exception(error)
        else:
            self._end(key)
            future.set_result(value)

    def _end(self, key: Hashable) -> None:
        with self._lock:
            self._running.pop(key, None)

    def age_s(self, key: Hashable) -> float | None:
        """How old the kept answer is. None if there is none."""
        kept = self._answers.get(key)
        return None if kept is None else self._clock() - kept.at_s

    def forget(self, *keys: Hashable) -> None:
        """Drop the answers of these keys, after an action that changes them."""
        with self._lock:
            for key in keys:
                self._answers.pop(key, None)

    def _keep(self, key: Hashable, value: object, started: float) -> None:
        now = self._clock()
        until = now + max(_FRESH_S, _COST_FACTOR * (now - started))
        with self._lock:
            self._failures.pop(key, None)
            _put(self._answers, key, _Answer(value=value, until_s=until, at_s=now))

    def _fail(
        self, key: Hashable, error: PulsetrainError, before: tuple[PulsetrainError, float] | None
    ) -> None:
        if before is None or before[0] is not error:
            with self._lock:
                _put(self._failures, key, (error, self._clock()))


def _put(kept: OrderedDict[Hashable, T], key: Hashable, value: T) -> None:
    """Make `key` the newest. Drop the oldest if there are too many."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)


class Source:
    """One hub: its API (`client`) and its store, opened on first use."""

    def __init__(self, address: HubAddress) -> None:
        self.address = address
        self.client = HubClient(address, timeout_s=5.0)
        self.pulse = Pulse(self.client.status)
        self.cache = Cache(away=lambda: self.pulse.away)
        self._lock = threading.Lock()
        self._store: Store | None = None

    def status(self) -> JsonObject:
        """The hub's status, as it was when the hub last answered. See `HubClient.status`."""
        return self.pulse.status()

    @property
    def problem(self) -> str:
        """Why the hub, or some question to it, cannot be answered now. "" for none."""
        return self.pulse.away or self.cache.problem

    @property
    def age_s(self) -> float:
        """How old the status is."""
        return self.pulse.age_s

    def forget(self, *keys: Hashable) -> None:
        """Have the answers of these keys asked for again, and the status."""
        self.cache.forget(*keys)
        self.pulse.forget()

    def job(self, name: str) -> JsonObject:
        """The live state of one job, {} for one that the hub does not run, or if it does not answer."""
        try:
            jobs = self.status().get("jobs", [])
        except PulsetrainError:
            return {}
        return next((dict(job) for job in jobs if job["job"] == name), {})

    def past_job(self, name: str) -> JsonObject:
        """What the hub knows of a job that it does not run. {} as for `job`."""
        try:
            jobs = self.status().get("past_jobs", [])
        except PulsetrainError:
            return {}
        return next((dict(job) for job in jobs if job["job"] == name), {})

    def nodes(self) -> list[JsonObject]:
        """See `HubClient.nodes`."""
        return self.cache.ask("nodes", self.client.nodes)

    def alerts(self) -> list[JsonObject]:
        """See `HubClient.alerts`."""
        return self.cache.ask("alerts", self.client.alerts)

    def silences(self) -> list[JsonObject]:
        """See `HubClient.silences`."""
        return self.cache.ask("silences", self.client.silences)

    def incidents(self) -> list[JsonObject]:
        """See `HubClient.incidents`."""
        return self.cache.ask("incidents", self.client.incidents)

    def stacks(self, job: str) -> JsonObject:
        """The stacks of a job that were read last. See `HubClient.stacks`."""
        return self.cache.ask(("stacks", job), lambda: self.client.stacks(job, fresh=False))

    def rows(self, view: Callable[..., pa.Table], *args: object, **options: object) -> Sequence[JsonObject]:
        """The rows of one of `stream.queries.views`, as dictionaries."""
        key = (view.__name__, args, tuple(sorted(options.items())))
        return self.cache.ask(key, lambda: list(view(self.store(), *args, **options).to_pylist()))

    def table(self, view: Callable[..., pa.Table], *args: object, **options: object) -> pa.Table:
        """The answer of one of `stream.queries` as it comes, for what is too much as dictionaries."""
        key = ("table", view.__name__, args, tuple(sorted(options.items())))
        return self.cache.ask(key, lambda: view(self.store(), *args, **options))

    def profile(self, job: str, ranks: list[int], steps: int) -> JsonObject:
        """See `HubClient.profile`. It returns once the steps are over, so call it on a thread."""
        return HubClient(self.address, timeout_s=PROFILE_PATIENCE_S).profile(job, ranks, steps)

    def store(self) -> Store:
        """The hub's store. Raises `Unavailable` while the hub does not answer. The next call tries again."""
        with self._lock:
            if self._store is None:
                self._store = open_store(self.address.url, token=self.address.token, ca=self.address.ca)
            return self._store
