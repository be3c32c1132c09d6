"""Which rows of every source are stored or on their way into the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from pulsetrain.core.clock import Clock
from pulsetrain.records import ddl
from pulsetrain.stream.queries.queryable import Queryable
from pulsetrain.stream.queries.storage import stored_ranges
from pulsetrain.stream.store.insert_group import RowRange
from pulsetrain.stream.store.ranges import Ranges

RangeEnds = Mapping[tuple[str, str, int], int]
"""(source, record, first row) of stored ranges to the row after their last."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Rows that were new, and the range of known rows that they are part of since then."""

    rows: RowRange
    merged: RowRange


KEPT_S = ddl.OFFSETS_DAYS * 86_400
"""A source that sends nothing for so long is forgotten, here as in the store. Each process of an agent is a
source of its own."""
FORGET_S = 3600.0


class StoredRows:
    """The row ranges of each (source, record) that are known. Belongs to one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: defaultdict[tuple[str, str], Ranges] = defaultdict(Ranges)
        self._seen_s: dict[str, float] = {}
        self._forgot_s = clock.monotonic_s()

    def load(self, store: Queryable) -> None:
        """Know what the store has saved, and nothing else."""
        self._known.clear()
        for row in stored_ranges(store).to_pylist():
            self._known[(row["source"], row["record"])].add(row["first_row"], row["next_row"])
        now_s = self._clock.monotonic_s()
        self._seen_s = {source: self._seen_s.get(source, now_s) for source, _ in self._known}

    def forget_old(self) -> set[str]:
        """Forget sources that have sent nothing for long, once an hour. Returns their nodes, but not those
        of which another source is known."""
        now_s = self._clock.monotonic_s()
        if now_s - self._forgot_s < FORGET_S:
            return set()
        self._forgot_s = now_s
        old = {source for source, seen_s in self._seen_s.items() if now_s - seen_s > KEPT_S}
        for name in [name for name in self._known if name[0] in old]:
            del self._known[name]
        for source in old:
            del self._seen_s[source]
        return set(map(node_of, old)) - set(map(node_of, self._seen_s)) if old else set()

    def claim(self, record: str, wanted: RowRange) -> list[Claim]:
        """The parts of `wanted` that were not known. They are known from here on."""
        self._seen_s[wanted.source] = self._clock.monotonic_s()
        known = self._known[(wanted.source, record)]
        claims = []
        for first, end in known.missing(wanted.first, wanted.end):
            low, high = known.add(first, end)
            rows = RowRange(source=wanted.source, first=first, end=end)
            claims.append(Claim(rows=rows, merged=RowRange(source=wanted.source, first=low, end=high)))
        return claims

    def release(self, record: str, claims: Iterable[Claim]) -> None:
        """Forget rows that were claimed and will not be stored."""
        for claim in claims:
            self._known[(claim.rows.source, record)].remove(claim.rows.first, claim.rows.end)


def node_of(source: str) -> str:
    """The node of a source.

    >>> node_of("node-7/4b0c")
    'node-7'
    """
    return source.partition("/")[0]


_COLUMNS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "source": pa.string(),
        "record": pa.string(),
        "first_row": pa.uint64(),
        "next_row": pa.uint64(),
    }
)
_SCHEMA = pa.schema(_COLUMNS)


def ranges_table(ends: RangeEnds) -> pa.Table:
    """Rows for the table of stored ranges (`ddl.OFFSETS`). Storing them twice changes nothing."""
    rows = [
        {"source": source, "record": record, "first_row": first, "next_row": end}
        for (source, record, first), end in ends.items()
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)
