"""Where pages get their data: the hub's API and its store, behind a small cache.

The cache keeps the last answers for the time in which the hub does not answer. Every question runs on a
thread of its own, so that no page waits for a hub that is frozen.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import pyarrow as pa

from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.pulse import Pulse
from pulsetrain.protocol.client import PROFILE_PATIENCE_S, HubAddress, HubClient
from pulsetrain.stream.store.clickhouse import Store, open_store

T = TypeVar("T")
Questions = Sequence[Callable[[], object]]

PATIENCE_S = 5.0
STACKS_PATIENCE_S = 20.0  # an agent that does not answer takes the hub 6 to 8 s
_KEPT = 64
_FRESH_S = 0.9
_RETRY_S = 1.5
_PROBLEM_S = 10.0
_SLICE_S = 0.2  # how often a page that waits looks whether the hub is still there
_COST_FACTOR = 5.0
"""An answer is kept five times as long as it took: a page costs the hub a sixth of a core at most."""
_SPARE_FACTOR, _SPARE_S = 10.0, 5.0
"""For ten times as long as it took more, 5 s at most, it is given out while a new one is asked for. So a page
that opens shows at once what other tabs know. Answers that come quickly are never that old."""


@dataclass(kw_only=True)
class _Answer:
    value: object
    until_s: float
    spare_until_s: float
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
        self._failures: OrderedDict[Hashable, tuple[PulsetrainError, float, float]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def problem(self) -> str:
        """Why some question cannot be answered now. "" for none."""
        with self._lock:
            recent = [e for e, at, _ in self._failures.values() if self._clock() - at < _PROBLEM_S]
        return str(recent[-1]) if recent else ""

    def ask(self, key: Hashable, question: Callable[[], T]) -> T:
        """The answer to `question`, fresh or kept. Raises its `PulsetrainError` where nothing is kept."""
        now_s = self._clock()
        kept = self._answers.get(key)
        if kept is not None and now_s < kept.until_s:
            return cast("T", kept.value)
        try:
            self._refuse_if_failed(key)
            running = self._question(key, question)
            if kept is not None and now_s < kept.spare_until_s:
                return cast("T", kept.value)
            return cast("T", self._wait(running))
        except PulsetrainError as error:
            self._fail(key, error)
            if kept is None:
                raise
            return cast("T", kept.value)

    def _refuse_if_failed(self, key: Hashable) -> None:
        """Raise why the question failed a moment ago. What took long to fail is asked again the later."""
        failed = self._failures.get(key)
        if failed is None:
            return
        error, at_s, took_s = failed
        if self._clock() - at_s < max(_RETRY_S, _COST_FACTOR * took_s):
            raise error

    def _question(self, key: Hashable, question: Callable[[], object]) -> Future[object]:
        """The answer that will come, once for all that ask at the same time."""
        future: Future[object] = Future()
        with self._lock:
            running = self._running.setdefault(key, future)
        if running is future:
            self._start(lambda: self._run(key, question, future))
        return running

    def _wait(self, running: Future[object]) -> object:
        """The answer when it comes. Raises `Unavailable` while nobody answers."""
        while True:
            try:
                return running.result(timeout=_SLICE_S)
            except TimeoutError:
                if reason := self._away():
                    raise Unavailable(reason) from None

    def _run(self, key: Hashable, question: Callable[[], object], future: Future[object]) -> None:
        started = self._clock()
        try:
            value = question()
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is wanted
            if self._end(key, future) and isinstance(error, PulsetrainError):
                self._fail(key, error, self._clock() - started)
            future.set_exception(error)
        else:
            if self._end(key, future):
                self._keep(key, value, started)
            future.set_result(value)

    def _end(self, key: Hashable, future: Future[object]) -> bool:
        """The question is answered. Whether nobody has made its answer stale meanwhile."""
        with self._lock:
            wanted = self._running.get(key) is future
            if wanted:
                del self._running[key]
            return wanted

    def age_s(self, key: Hashable) -> float | None:
        """How old the kept answer is. None if there is none."""
        kept = self._answers.get(key)
        return None if kept is None else self._clock() - kept.at_s

    def forget(self, *keys: Hashable) -> None:
        """Drop the answers of these keys, after an action that changes them."""
        with self._lock:
            for key in keys:
                self._answers.pop(key, None)
                self._running.pop(key, None)

    def _keep(self, key: Hashable, value: object, started: float) -> None:
        now, took = self._clock(), self._clock() - started
        until = now + max(_FRESH_S, _COST_FACTOR * took)
        spare = until + min(_SPARE_FACTOR * took, _SPARE_S) if took > _FRESH_S / _COST_FACTOR else until
        with self._lock:
            self._failures.pop(key, None)
            _put(self._answers, key, _Answer(value=value, until_s=until, spare_until_s=spare, at_s=now))

    def _fail(self, key: Hashable, error: PulsetrainError, took_s: float = 0.0) -> None:
        with self._lock:
            before = self._failures.get(key)
            if before is None or before[0] is not error:
                _put(self._failures, key, (error, self._clock(), took_s))


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
        self.client = HubClient(address, timeout_s=PATIENCE_S)
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
    def away(self) -> str:
        """Why the hub does not answer. "" where it does, though it may not answer every question."""
        return self.pulse.away

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

    def read_stacks(self, job: str) -> None:
        """Have the stacks of a job read now. It returns once they are."""
        HubClient(self.address, timeout_s=STACKS_PATIENCE_S).stacks(job)

    def rank(self, job: str, rank: int) -> JsonObject:
        """What the hub knows of one rank now. {} where it does not run it. See `HubClient.rank`."""
        return self.cache.ask(("rank", job, rank), lambda: self._rank(job, rank))

    def _rank(self, job: str, rank: int) -> JsonObject:
        try:
            return self.client.rank(job, rank)
        except AuthError:
            raise
        except UsageError:
            return {}

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


def begin(questions: Questions) -> None:
    """Ask what a page is going to need, all at the same time. Nobody waits here.

    A page costs what its slowest question costs then, and not the sum of all.
    """
    for question in questions:
        _in_thread(partial(_quietly, question))


def _quietly(question: Callable[[], object]) -> None:
    """Ask. Where it fails, whoever needs the answer is told."""
    with contextlib.suppress(PulsetrainError):
        question()
