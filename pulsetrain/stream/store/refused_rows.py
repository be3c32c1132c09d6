"""Rows that the store refuses again and again, although it answers. They do not hold up what is behind them.

What the store says of an insert seldom tells whether it will ever take it: there may be too little memory for
so many rows, or for a moment. So an insert is tried again for a while. Then its halves are stored, each under
a token of its own, and what is refused is halved again. A row that is refused alone goes to the quarantine.
Each time another insert must show first that the store takes rows. Where it does not, everything is kept and
tried again: what was refused may have been stored before, and its token would have told.

A refused insert may have happened: a view over the table failed behind it. So the whole is tried once more
under its own token, without heed to views, before any part of it has another token.

The journal holds the parts before any of them is tried. Where Kafka is the journal, the ranges of each part
are saved instead. A process that is killed between the two stores that part again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import structlog

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import Refused, SchemaMismatch
from pulsetrain.records import ddl
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.store import quarantine
from pulsetrain.stream.store.clickhouse import ipc
from pulsetrain.stream.store.insert_group import InsertGroup, halves, is_part, pieces_of
from pulsetrain.stream.store.journal import Journal
from pulsetrain.stream.store.row_store import RowStore
from pulsetrain.stream.store.stored_rows import ranges_table

log = structlog.get_logger()

PATIENCE_S = 30.0
"""An insert that is refused for so long, and `PATIENCE` times at least, is stored in parts."""
PATIENCE = 3
MOST_TRIES = 512
"""So many parts of an insert are refused at most before what is refused next is set aside as it is."""


@dataclass
class _Refusals:
    since_s: float
    times: int = 0


@dataclass
class _Parts:
    """What is left of an insert, the next part last. `aside`: rows of it that went to the quarantine."""

    left: list[InsertGroup] = field(default_factory=list)
    tries: int = 0
    aside: int = 0
    why: str = ""


class RefusedRows:
    """Does inserts. Belongs to one thread. `stored` is called for each part that is done with."""

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        metrics: IngestMetrics,
        journal: Journal | None,
        stored: Callable[[InsertGroup], None],
    ) -> None:
        self._store, self._clock, self._metrics, self._journal = store, clock, metrics, journal
        self._stored = stored
        self._refusals: dict[str, _Refusals] = {}
        self._parts: dict[str, _Parts] = {}

    def insert(self, group: InsertGroup) -> int:
        """Store the rows of a group. Returns how many of them went to the quarantine instead.

        Raises `SchemaMismatch` where the engine cannot read them. After any other error it may be called
        again with the same group, and goes on where it ended.
        """
        parts = self._parts.get(group.token)
        if parts is None:
            if self._journal is not None:
                self._journal.write(group)
            try:
                self._insert(group)
            except Refused as error:
                if not self._lasts(group.token):
                    raise
                parts = self._parts[group.token] = self._begin(group, error)
            else:
                self.forget(group.token)
                return 0
        while parts.left:
            self._try_part(parts, parts.left[-1])
        self.forget(group.token)
        if parts.aside:
            log.warning("rows_set_aside", record=group.record, rows=parts.aside, why=parts.why)
        return parts.aside

    def quarantine(self, token: str, rows: pa.Table) -> None:
        """Put rows into the quarantine. Where it refuses them for long, without what they hold.

        Raises `Unavailable` or `Refused` where it may work later.
        """
        try:
            self._store.insert_raw(ddl.QUARANTINE, rows.column_names, ipc(rows), token=token)
        except (Refused, SchemaMismatch) as error:
            if not self._lasts(token):
                raise Refused(f"{ddl.QUARANTINE}: {error}") from error
            self._check_it_takes_rows()
            log.warning("quarantine_refused_for_long", rows=rows.num_rows, error=str(error))
            empty = quarantine.without_data(rows)
            self._store.insert_raw(ddl.QUARANTINE, empty.column_names, ipc(empty), token=token)
        self.forget(token)

    def forget(self, token: str) -> None:
        """An insert is done with, or given up."""
        self._refusals.pop(token, None)
        self._parts.pop(token, None)

    def _lasts(self, token: str) -> bool:
        """Whether an insert has been refused for long. Of a part it is known."""
        now_s = self._clock.monotonic_s()
        refusals = self._refusals.setdefault(token, _Refusals(since_s=now_s))
        refusals.times += 1
        long = refusals.times >= PATIENCE and now_s - refusals.since_s >= PATIENCE_S
        return long or is_part(token)

    def _begin(self, group: InsertGroup, error: Refused) -> _Parts:
        """The parts of an insert that is refused for long. None where it happens now, despite its views."""
        log.warning("insert_refused_for_long", record=group.record, rows=group.rows, error=str(error))
        parts = _Parts()
        self._try_part(parts, group)
        return parts

    def _try_part(self, parts: _Parts, part: InsertGroup) -> None:
        """Store a part. What is refused is halved, and set aside where that is not possible."""
        try:
            self._insert(part, despite_views=True)
        except (Refused, SchemaMismatch) as error:
            parts.tries, parts.why = parts.tries + 1, str(error)
        else:
            self._done(parts, part)
            return
        self._check_it_takes_rows()
        halved = halves(part)
        if (halved is None or parts.tries > MOST_TRIES) and self._set_aside(part, parts.why, halved is None):
            self._done(parts, part)
            parts.aside += part.rows
            self._metrics.set_aside.labels(part.record).inc(part.rows)
        elif halved is not None:
            if self._journal is not None:
                for half in halved:
                    self._journal.write(half)
                self._journal.forget(part.token)
            parts.left[-1:] = reversed(halved)

    def _check_it_takes_rows(self) -> None:
        """Raise where the store takes no row at all. It has stored this one before, or does so now."""
        rows = ranges_table({("", "", 0): 0})
        self._store.insert_raw(ddl.OFFSETS, rows.column_names, ipc(rows), token=None)

    def _done(self, parts: _Parts, part: InsertGroup) -> None:
        self._stored(part)
        parts.left[-1:] = []

    def _set_aside(self, part: InsertGroup, why: str, last: bool) -> bool:
        """Put rows into the quarantine, as `last` way without what they hold. Whether that was done.

        Raises `Refused` where the store takes no row at all.
        """
        token = f"{part.token}:refused"
        rows = quarantine.table(pieces_of(part, f"refused by the store: {why}"[:200]))
        try:
            self._store.insert_raw(ddl.QUARANTINE, rows.column_names, ipc(rows), token=token)
        except (Refused, SchemaMismatch):
            if not last:
                return False
            empty = quarantine.without_data(rows)
            self._store.insert_raw(ddl.QUARANTINE, empty.column_names, ipc(empty), token=token)
        return True

    def _insert(self, group: InsertGroup, *, despite_views: bool = False) -> None:
        with self._metrics.insert(group.record):
            if despite_views:
                self._store.insert_raw(
                    group.record, group.columns, group.data, token=group.token, despite_views=True
                )
            else:
                self._store.insert_raw(group.record, group.columns, group.data, token=group.token)
