"""Which rows of every source are stored or on their way into the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

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


class StoredRows:
    """The row ranges of each (source, record) that are known. Belongs to one thread."""

    def __init__(self) -> None:
        self._known: defaultdict[tuple[str, str], Ranges] = defaultdict(Ranges)

    def load(self, store: Queryable) -> None:
        """Know what the store has saved, and nothing else."""
        self._known.clear()
        for row in stored_ranges(store).to_pylist():
            self._known[(row["source"], row["record"])].add(row["first_row"], row["next_row"])

    def claim(self, record: str, wanted: RowRange) -> list[Claim]:
        """The parts of `wanted` that were not known. They are known from here on."""
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
