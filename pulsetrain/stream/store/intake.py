"""Batches that come over HTTP, into the store: many by one insert, each row once.

A submitted batch waits until 5,000 rows of its record have gathered, or for 0.1 s, and for 0.6 s after the
last insert of that record. Then one insert stores them all, and only then the senders hear so. An insert
costs about 6 ms whether it holds 100 rows or 5,000. Where it takes longer, because the machine is busy, small
inserts keep a distance of up to 2 s, unless somebody is in a hurry.

`ExactlyOnceWriter` stores each row once. Its journal lets a restarted hub finish what a killed one began. The
token of an insert is random. An insert that failed is tried again before anything else of its record.

Of several hubs on one store the one that takes the lead does not have the journal of the last one. So each
saves the ranges of its inserts before it tells the senders, and reads them before its first insert. Until
then it waits, and leaves its own journal alone: the leader does not hear of what others store.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path

import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import PulsetrainError, SchemaMismatch, Unavailable, UsageError
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.records.batch import Batch
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.store.batch_queue import BatchQueue, IntakeConfig, WaitingBatch
from pulsetrain.stream.store.exactly_once import ExactlyOnceWriter, PreparedInsert
from pulsetrain.stream.store.journal import Journal
from pulsetrain.stream.store.row_store import RowStore

log = structlog.get_logger()

STALE_S = 60.0  # an insert may take long
OWN_TOKENS_S = 3600.0
"""One of several hubs inserts a group of its journal again only while it is younger. The store remembers the
last 10,000 inserts of a table, and meanwhile the others insert."""
CLOSE_S = 30.0


class Intake:
    """Stores batches. `submit` may be called from any thread. `run` belongs to one, which `start` makes.

    `folder` keeps the journal. What an earlier hub left there is stored before the constructor returns.
    `shared`: other hubs may store rows of the same senders before this one and after it. What the journal
    holds is then stored before the first insert, by which this hub leads, unless it is older than
    `OWN_TOKENS_S`. `may_store` says whether this hub may store rows: one that was deposed may not.
    `remembered_s`: see `ExactlyOnceWriter`.
    """

    def __init__(
        self,
        store: RowStore,
        folder: Path,
        clock: Clock,
        config: IntakeConfig | None = None,
        metrics: IngestMetrics | None = None,
        *,
        shared: bool = False,
        may_store: Callable[[], bool] = lambda: True,
        remembered_s: float | None = None,
    ) -> None:
        self.metrics = metrics or IngestMetrics()
        self._clock = clock
        self._config = config or IntakeConfig()
        self._queue = BatchQueue(clock, self._config)
        if shared:
            remembered_s = min(remembered_s or OWN_TOKENS_S, OWN_TOKENS_S)
        self._writer = ExactlyOnceWriter(
            store, clock, self.metrics, Journal(folder), remembered_s=remembered_s
        )
        self._shared, self._may_store = shared, may_store
        self._recovered = False
        self._stored: list[tuple[WaitingBatch, int]] = []  # batches whose senders are to be told
        self._unfinished: dict[str, PreparedInsert] = {}
        self._inserts: Counter[str] = Counter()
        self.spent_s = 0.0  # seconds that inserts have taken together
        self._thread = LoopThread(
            "intake", self._turn, stale_after_s=STALE_S, clock=clock, interrupt=self._queue.wake
        )
        self._saved_s = clock.monotonic_s()
        self.metrics.waiting.set_function(lambda: self._queue.rows)
        if not shared:
            self._try_to_recover()

    def start(self) -> None:
        """Begin to store what is submitted."""
        self._thread.start()

    def submit(self, batch: Batch) -> Future[int]:
        """Store the batch's rows that are not stored yet. The result is their number, and comes when they can
        be queried. Its exception is `SchemaMismatch` where the engine cannot read the batch, or `Unavailable`
        where the rows may not be stored. Raises `Unavailable` where too many rows wait."""
        return self._queue.put(batch)

    def close(self) -> None:
        """Store what waits if this hub still may, save the ranges and end. Idempotent."""
        if not self._thread.stop(CLOSE_S):
            log.warning("intake_not_ended", seconds=CLOSE_S, what="the journal keeps what is not stored")
            return
        self.run(everything=True)
        self._save()

    def run(self, *, everything: bool = False) -> None:
        """Store what is due, or everything that waits. Save the ranges when it is time."""
        while self._run_once(everything=everything) and everything:
            pass
        if self._clock.monotonic_s() - self._saved_s >= self._config.save_s:
            self._save()

    def _run_once(self, *, everything: bool) -> bool:
        """One insert of each record that is due. Whether there was any."""
        due, began_s = self._queue.take(everything=everything), self._clock.monotonic_s()
        for record, waiting in due.items():
            self._store(record, waiting)
        if self._shared and self._stored and not self._save():
            unsaved, self._stored = self._stored, []
            _fail([each for each, _ in unsaved], "the store does not know yet that the rows are stored")
        self._tell()
        if due:
            took_s = self._clock.monotonic_s() - began_s
            self._queue.took(took_s)
            self.spent_s += took_s
        self._inserts.update(due.keys())
        return bool(due)

    def hurry(self) -> None:
        """Store rows as soon as possible for some seconds: somebody waits for them."""
        self._queue.hurry()

    def inserts(self, records: Collection[str]) -> int:
        """How often rows of these records were stored. It grows when all that was due is stored."""
        return sum(self._inserts[record] for record in records)

    def status(self) -> LoopStatus:
        """How the thread that stores batches is."""
        return self._thread.status()

    def _turn(self) -> float:
        self._queue.wait()
        self.run()
        return 0.0

    def _store(self, record: str, waiting: Sequence[WaitingBatch]) -> None:
        """Store batches by one insert and answer the sender of each."""
        try:
            self._make_sure()
            self._retry_unfinished(record)
            new_rows = self._insert(record, [each.batch for each in waiting])
        except SchemaMismatch as error:
            if len(waiting) == 1:
                waiting[0].failed(error)
            else:
                self._store_apart(record, waiting)
        except (PulsetrainError, OSError) as error:
            log.warning("batches_not_stored", record=record, batches=len(waiting), error=str(error))
            _fail(waiting, str(error))
        except Exception as error:
            log.exception("batches_not_stored", record=record, batches=len(waiting))
            if len(waiting) > 1 and record not in self._unfinished:
                self._store_apart(record, waiting)
            else:
                _fail(waiting, f"{type(error).__name__}: {error}")
        else:
            self._stored += zip(waiting, new_rows, strict=True)
            if not self._shared:
                self._tell()

    def _store_apart(self, record: str, waiting: Sequence[WaitingBatch]) -> None:
        """Store each batch by an insert of its own: one that cannot be stored does not hold up the others."""
        for alone in waiting:
            self._store(record, [alone])

    def _make_sure(self) -> None:
        """Raise `Unavailable` where this hub may not store rows, or cannot learn which are stored."""
        if not self._may_store():
            raise Unavailable("this hub does not lead any more")
        if not self._recovered:
            self._recover()

    def _recover(self) -> None:
        """Read which rows are stored, and finish what the journal holds."""
        self._writer.recover()
        self._recovered = True

    def _try_to_recover(self) -> None:
        """Recover now, or before the first insert: a store that refuses keeps no hub from its jobs."""
        try:
            self._recover()
        except UsageError:
            raise
        except (PulsetrainError, OSError) as error:
            log.warning("journal_not_stored_yet", error=str(error))

    def _tell(self) -> None:
        """Tell the senders of stored rows."""
        told, self._stored = self._stored, []
        for waiting, new_rows in told:
            waiting.stored(new_rows)

    def _insert(self, record: str, batches: Sequence[Batch]) -> tuple[int, ...]:
        """Store what of `batches` is not stored yet. Returns how many rows of each that was."""
        prepared = self._writer.prepare(record, batches, token=uuid.uuid4().hex)
        self._unfinished[record] = prepared
        self._finish(record, prepared)
        return prepared.new_rows

    def _retry_unfinished(self, record: str) -> None:
        """Do the insert of which it is not known whether it happened. Where the engine now refuses it, its
        senders were not told that it is stored and send again."""
        prepared = self._unfinished.get(record)
        if prepared is not None:
            try:
                self._finish(record, prepared)
            except SchemaMismatch as error:
                log.warning("unfinished_insert_refused", record=record, error=str(error))

    def _finish(self, record: str, prepared: PreparedInsert) -> None:
        try:
            self._writer.insert(prepared)
        except SchemaMismatch:
            del self._unfinished[record]
            self._writer.discard(prepared)
            raise
        del self._unfinished[record]

    def _save(self) -> bool:
        self._saved_s = self._clock.monotonic_s()
        try:
            self._writer.save_ranges()
        except PulsetrainError as error:
            log.warning("ranges_not_saved", error=str(error))
            return False
        return True


def _fail(waiting: Sequence[WaitingBatch], why: str) -> None:
    for each in waiting:
        each.failed(Unavailable(why))
