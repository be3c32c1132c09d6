"""Keeps what jobs must not forget in the key-value store, off the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import islice
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote

import structlog

from pulsetrain.core.errors import CorruptData, Unavailable
from pulsetrain.kv.ordered import MOST, OrderedWrites
from pulsetrain.kv.store import Compare, Entries, Write
from pulsetrain.recovery.memory import (
    EndedRun,
    HangMemory,
    JobMemory,
    NodeMemory,
    Preemption,
    ReplacementMemory,
    RestartMemory,
    SizeMemory,
    StopMemory,
    TimeMemory,
    UpdateMemory,
    WorldMemory,
)

log = structlog.get_logger()

T = TypeVar("T")

JOBS = "jobs/"
EVICTIONS, NODES, PREEMPTION, PAUSES = "evictions", "nodes/", "preemption", "pauses"
RESTARTS, WORLD, REPLACEMENTS, SIZE, TIME = "restarts", "world", "replacements", "size", "time"
UPDATE, HANGS, STOP = "update", "hangs", "stop"
ENDED, EXIT_CODES = "ended", "exit_codes"
ENDED_JOBS = 500  # that much is kept of so many jobs that are over
IDLE_S = 30.0
STORED_S = 2.0  # an eviction waits for so long, then it goes on without its memory


class KeptMemory:
    """A `Memory` with the keys ``evictions``, ``nodes/NODE``, ``preemption``, ``pauses``, ``restarts``,
    ``world``, ``replacements``, ``size``, ``time``, ``update``, ``hangs`` and ``stop`` below ``jobs/JOB/``.
    The values are JSON. ``ended`` has the newest attempts of jobs that are over: a new job of that name
    counts on from there if the store cannot be asked. ``exit_codes`` has what their agents ended with.

    `load` reads the store. `turn` writes and belongs to the supervisor of loops. A write that fails is tried
    again. Every write has the conditions `fence()`, and comes after all writes before it. Where they do not
    hold, `refused` is called.
    `patience_s` is how long `stored` waits, None for ever.
    """

    def __init__(
        self,
        store: Entries,
        *,
        fence: Callable[[], Sequence[Compare]] = tuple,
        refused: Callable[[], None] = lambda: None,
        patience_s: float | None = STORED_S,
    ) -> None:
        self._store, self._refused = store, refused
        self._writes = OrderedWrites(store, fence)
        self._patience_s = patience_s
        self._values: dict[str, str] = {}
        self._unwritten: dict[str, str | None] = {}
        self._ended: dict[str, int] = {}
        self._exit_codes: dict[str, int] = {}
        self._changed, self._written = asyncio.Event(), asyncio.Event()
        self._written.set()

    def load(self) -> None:
        """Read the store. Blocks. Raises `CorruptData` for a value that no hub has written."""
        self._values = {entry.key: entry.value for entry in self._store.entries(JOBS).entries}
        for key in self._values:
            self.recall(unquote(key.removeprefix(JOBS).split("/")[0]))
        self._ended, self._exit_codes = self._of_ended(ENDED), self._of_ended(EXIT_CODES)
        self._writes.load()

    def _of_ended(self, key: str) -> dict[str, int]:
        kept = self._store.get(key)
        return _by_ended_job(kept.value) if kept is not None else {}

    def jobs(self) -> set[str]:
        """The jobs that something is kept of: those that are not over. May be called from any thread."""
        keys = [key for key in list(self._values) if key.startswith(JOBS)]
        return {unquote(key.removeprefix(JOBS).split("/")[0]) for key in keys}

    def recall(self, job: str) -> JobMemory:
        """See `Memory.recall`."""
        prefix = _prefix(job)
        nodes = prefix + NODES
        pauses = self._values.get(prefix + PAUSES, "{}")
        try:
            return JobMemory(
                evictions_ns=tuple(map(int, json.loads(self._values.get(prefix + EVICTIONS, "[]")))),
                nodes={
                    unquote(key.removeprefix(nodes)): _kept(NodeMemory, value)
                    for key, value in self._values.items()
                    if key.startswith(nodes)
                },
                preemption=self._value(Preemption, prefix + PREEMPTION),
                pauses_ns={place: int(longest_ns) for place, longest_ns in json.loads(pauses).items()},
                restarts=self._value(RestartMemory, prefix + RESTARTS),
                world=self._value(WorldMemory, prefix + WORLD),
                replacements=self._value(ReplacementMemory, prefix + REPLACEMENTS),
                size=self._value(SizeMemory, prefix + SIZE),
                time=self._value(TimeMemory, prefix + TIME),
                update=self._value(UpdateMemory, prefix + UPDATE),
                hangs=self._value(HangMemory, prefix + HANGS),
                stop=self._value(StopMemory, prefix + STOP),
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptData(f"what is kept of job {job!r} cannot be read: {error}") from error

    def ended(self, job: str) -> EndedRun:
        """See `Memory.ended`."""
        return EndedRun(attempt=self._ended.get(job, -1), exit_code=self._exit_codes.get(job, 1))

    def _value(self, kind: type[T], key: str) -> T | None:
        """The kept value of a key, None where there is none."""
        text = self._values.get(key)
        return _kept(kind, text) if text else None

    def evictions(self, job: str, times_ns: Sequence[int]) -> None:
        """See `Memory.evictions`."""
        self._note(_prefix(job) + EVICTIONS, json.dumps(list(times_ns)))

    def node(self, job: str, name: str, memory: NodeMemory | None) -> None:
        """See `Memory.node`."""
        text = json.dumps(asdict(memory), ensure_ascii=False) if memory is not None else None
        self._note(_prefix(job) + NODES + quote(name, safe=""), text)

    def preemption(self, job: str, memory: Preemption | None) -> None:
        """See `Memory.preemption`."""
        text = json.dumps(asdict(memory), ensure_ascii=False) if memory is not None else None
        self._note(_prefix(job) + PREEMPTION, text)

    def pauses(self, job: str, longest_ns: Mapping[str, int]) -> None:
        """See `Memory.pauses`."""
        self._note(_prefix(job) + PAUSES, json.dumps(dict(longest_ns), ensure_ascii=False))

    def hangs(self, job: str, memory: HangMemory) -> None:
        """See `Memory.hangs`."""
        self._note(_prefix(job) + HANGS, json.dumps(asdict(memory), ensure_ascii=False))

    def restarts(self, job: str, memory: RestartMemory) -> None:
        """See `Memory.restarts`."""
        self._note(_prefix(job) + RESTARTS, json.dumps(asdict(memory), ensure_ascii=False))

    def world(self, job: str, memory: WorldMemory) -> None:
        """See `Memory.world`."""
        self._note(_prefix(job) + WORLD, json.dumps(asdict(memory), ensure_ascii=False))

    def replacements(self, job: str, memory: ReplacementMemory) -> None:
        """See `Memory.replacements`."""
        self._note(_prefix(job) + REPLACEMENTS, json.dumps(asdict(memory)))

    def size(self, job: str, memory: SizeMemory) -> None:
        """See `Memory.size`."""
        self._note(_prefix(job) + SIZE, json.dumps(asdict(memory)))

    def time(self, job: str, memory: TimeMemory) -> None:
        """See `Memory.time`."""
        self._note(_prefix(job) + TIME, json.dumps(asdict(memory)))

    def update(self, job: str, memory: UpdateMemory | None) -> None:
        """See `Memory.update`."""
        text = json.dumps(asdict(memory), ensure_ascii=False) if memory is not None else None
        self._note(_prefix(job) + UPDATE, text)

    def stop(self, job: str, memory: StopMemory | None) -> None:
        """See `Memory.stop`."""
        text = json.dumps(asdict(memory), ensure_ascii=False) if memory is not None else None
        self._note(_prefix(job) + STOP, text)

    def forget(self, job: str, exit_code: int) -> None:
        """See `Memory.forget`."""
        world = self._value(WorldMemory, _prefix(job) + WORLD)
        if world is not None:
            self._ended = _with_newest(self._ended, job, world.attempt)
            self._exit_codes = _with_newest(self._exit_codes, job, exit_code)
            self._note(ENDED, json.dumps(self._ended, ensure_ascii=False))
            self._note(EXIT_CODES, json.dumps(self._exit_codes, ensure_ascii=False))
        for key in [key for key in self._values if key.startswith(_prefix(job))]:
            self._note(key, None)

    async def stored(self) -> None:
        """See `Memory.stored`."""
        try:
            await asyncio.wait_for(self._written.wait(), self._patience_s)
        except TimeoutError:
            log.warning("memory_not_stored", keys=len(self._unwritten))

    async def turn(self) -> float:
        """Wait for changes and store them."""
        if not self._unwritten:
            try:
                await asyncio.wait_for(self._changed.wait(), IDLE_S)
            except TimeoutError:
                return 0.0
        self._changed.clear()
        while self._unwritten:
            batch = dict(islice(self._unwritten.items(), MOST))
            writes = [Write(key=key, value=value) for key, value in batch.items()]
            if not await asyncio.to_thread(self._writes.commit, writes):
                self._refused()
                raise Unavailable("the state was not written: another hub leads")
            for key, value in batch.items():
                if self._unwritten[key] == value:
                    del self._unwritten[key]
        self._written.set()
        return 0.0

    def _note(self, key: str, value: str | None) -> None:
        if self._values.get(key) == value:
            return
        if value is None:
            del self._values[key]
        else:
            self._values[key] = value
        self._unwritten[key] = value
        self._written.clear()
        self._changed.set()


def _kept(kind: type[T], text: str) -> T:
    """A kept value. Fields of a newer hub, which led before this one, are left out."""
    known = {field.name for field in fields(cast("Any", kind))}
    return kind(**{name: value for name, value in json.loads(text).items() if name in known})


def _with_newest(by_job: Mapping[str, int], job: str, number: int) -> dict[str, int]:
    """The same with a job that has just ended, at the end. Those that ended first are dropped."""
    others = {name: value for name, value in by_job.items() if name != job}
    return dict(list({**others, job: number}.items())[-ENDED_JOBS:])


def _by_ended_job(text: str) -> dict[str, int]:
    """A number by job, the job that ended last at the end. Raises `CorruptData`."""
    try:
        return {job: int(number) for job, number in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptData(f"what is kept of jobs that are over cannot be read: {error}") from error


def _prefix(job: str) -> str:
    return f"{JOBS}{quote(job, safe='')}/"
