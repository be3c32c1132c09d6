"""Batches that wait until an insert is worth its cost."""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import Unavailable
from pulsetrain.records.batch import Batch


@dataclass(frozen=True, kw_only=True)
class IntakeConfig:
    """How batches gather."""

    linger_s: float = 0.1
    """Shortest time a batch waits for others. Nodes of a job send at about the same time."""
    period_s: float = 0.6
    """Shortest time between two inserts of a record that are not full. Each costs 4 to 6 ms of a core."""
    share: float = 0.02
    """How much of the time such inserts may take. On a busy machine, as one that trains as well, each takes
    several times as long, and they come less often."""
    longest_period_s: float = 2.0
    """Longest time between them, however long they take."""
    hurry_s: float = 5.0
    """For how long they come as often as they may, once somebody waits for rows."""
    group_rows: int = 5_000
    """Rows of one record that are stored at once without waiting."""
    insert_rows: int = 250_000
    """Rows of one insert at most. A single batch may have more."""
    insert_bytes: int = 256 << 20
    """Bytes of them at most, for rows of long texts. Arrow takes no more than 2 GiB of one column."""
    waiting_rows: int = 2_000_000
    """Rows that wait at most. Above that, senders keep theirs for now. A single batch may have more."""
    waiting_bytes: int = 512 << 20
    """Bytes of them at most, as for rows."""
    save_s: float = 5.0
    """How often ranges are saved. Until then the journal keeps the rows."""


@dataclass(frozen=True, kw_only=True)
class WaitingBatch:
    """A batch and where its sender waits for the number of rows stored.

    `copies` are where those wait who sent the same rows again meanwhile. None of their rows is new.
    """

    batch: Batch
    result: Future[int]
    copies: list[Future[int]] = field(default_factory=list)

    def stored(self, rows: int) -> None:
        """Tell everybody that `rows` of the batch were new."""
        self.result.set_result(rows)
        for copy in self.copies:
            copy.set_result(0)

    def failed(self, error: Exception) -> None:
        """Tell everybody why the rows are not stored."""
        for each in (self.result, *self.copies):
            each.set_exception(error)


Key = tuple[str, int, int]
"""Source, first row and number of rows of a batch."""


@dataclass(kw_only=True)
class _Gathering:
    """What waits of one record."""

    since_s: float
    rows: int = 0
    size_bytes: int = 0
    batches: dict[Key, WaitingBatch] = field(default_factory=dict)

    def take(self, most_rows: int, most_bytes: int) -> list[WaitingBatch]:
        """Take out the oldest batches: one, and more while they have no more rows and bytes together."""
        taken: list[WaitingBatch] = []
        rows = size_bytes = 0
        for waiting in self.batches.values():
            rows += waiting.batch.rows
            size_bytes += waiting.batch.table.nbytes
            if taken and (rows > most_rows or size_bytes > most_bytes):
                break
            taken.append(waiting)
        for waiting in taken:
            del self.batches[_key(waiting.batch)]
            self.rows -= waiting.batch.rows
            self.size_bytes -= waiting.batch.table.nbytes
        return taken


def _key(batch: Batch) -> Key:
    return batch.source, batch.first_row, batch.rows


class BatchQueue:
    """Batches by record. Safe to use from many threads."""

    def __init__(self, clock: Clock, config: IntakeConfig) -> None:
        self._clock, self._config = clock, config
        self._changed = threading.Condition()
        self._gathering: dict[str, _Gathering] = {}
        self._taken_s: dict[str, float] = {}  # when rows of a record were last taken
        self._pace_s, self._hurried_until_s = config.period_s, -math.inf
        self._full = False  # whether a record that was taken last was full

    @property
    def rows(self) -> int:
        """How many rows wait."""
        with self._changed:
            return self._waiting_rows()

    def put(self, batch: Batch) -> Future[int]:
        """Add a batch. A sender that leaves does not stop its rows: the future cannot be cancelled.

        A batch that waits already is not added again. Raises `Unavailable` where too many rows wait.
        """
        result: Future[int] = Future()
        result.set_running_or_notify_cancel()
        with self._changed:
            gathering = self._gathering.get(batch.record)
            same = gathering.batches.get(_key(batch)) if gathering is not None else None
            if same is not None:
                same.copies.append(result)
                return result
            waiting_rows = self._waiting_rows()
            if waiting_rows and waiting_rows + batch.rows > self._config.waiting_rows:
                raise Unavailable(f"{waiting_rows} rows wait for the store already")
            waiting_bytes = sum(each.size_bytes for each in self._gathering.values())
            if waiting_bytes and waiting_bytes + batch.table.nbytes > self._config.waiting_bytes:
                raise Unavailable(f"{waiting_bytes} bytes wait for the store already")
            if gathering is None:
                gathering = self._gathering[batch.record] = _Gathering(since_s=self._clock.monotonic_s())
            gathering.batches[_key(batch)] = WaitingBatch(batch=batch, result=result)
            gathering.rows += batch.rows
            gathering.size_bytes += batch.table.nbytes
            self._changed.notify_all()
        return result

    def take(self, *, everything: bool = False) -> dict[str, list[WaitingBatch]]:
        """What is due of each record, or something of every record. It waits here no longer.

        Not more than one insert may hold: the rest goes on waiting. Nothing where nothing is due.
        """
        with self._changed:
            due = {r: g for r, g in self._gathering.items() if everything or self._due_in_s(r, g) <= 0}
            self._full = any(each.rows >= self._config.group_rows for each in due.values())
            taken = {}
            for record, gathering in due.items():
                taken[record] = gathering.take(self._config.insert_rows, self._config.insert_bytes)
                if not gathering.batches:
                    del self._gathering[record]
                self._taken_s[record] = self._clock.monotonic_s()
            return taken

    def took(self, seconds: float) -> None:
        """What was taken last took so long to store. It sets the pace of what is not full.

        Full inserts say nothing: they take long because they hold much.
        """
        config = self._config
        wanted_s = config.period_s if self._full else seconds / config.share
        with self._changed:
            self._pace_s = (self._pace_s + min(max(wanted_s, config.period_s), config.longest_period_s)) / 2

    def hurry(self) -> None:
        """Somebody waits for rows."""
        with self._changed:
            self._hurried_until_s = self._clock.monotonic_s() + self._config.hurry_s
            self._changed.notify_all()

    def wait(self) -> None:
        """Return after a while, at once where something is due, and early when something comes."""
        with self._changed:
            if not self._gathering:
                self._changed.wait(self._config.save_s)
                return
            due_s = min(self._due_in_s(record, each) for record, each in self._gathering.items())
            if due_s > 0:
                self._changed.wait(due_s)

    def wake(self) -> None:
        """End every `wait`."""
        with self._changed:
            self._changed.notify_all()

    def _waiting_rows(self) -> int:
        return sum(gathering.rows for gathering in self._gathering.values())

    def _due_in_s(self, record: str, gathering: _Gathering) -> float:
        """Seconds until the rows of a record are due, 0 or less where they are."""
        if gathering.rows >= self._config.group_rows:
            return 0.0
        now_s, due_s = self._clock.monotonic_s(), gathering.since_s + self._config.linger_s
        if record in self._taken_s:
            period_s = self._config.period_s if now_s < self._hurried_until_s else self._pace_s
            due_s = max(due_s, self._taken_s[record] + period_s)
        return due_s - now_s
