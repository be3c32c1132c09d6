"""Rows of one record that are inserted together, under one deduplication token.

A group is one uncompressed Arrow IPC stream: the bytes that the store's engine reads are also the bytes that
a journal keeps. What the group is (record, token, row ranges) stands in the metadata of the stream's schema.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pulsetrain.core.errors import CorruptData
from pulsetrain.stream.store.quarantine import Quarantined

_METADATA = b"pulsetrain.group"
_PART = "~"


@dataclass(frozen=True, kw_only=True)
class RowRange:
    """Rows [first, end) of one source. A source numbers the rows of each record from 0."""

    source: str
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class InsertGroup:
    """`data` holds `rows` rows as an Arrow IPC stream. `ranges` say whose rows are stored by its insert.

    The ranges may hold more rows than `data`: rows that went to the quarantine count as stored. `kept` are
    those of `data`, in its order. Empty: a group of an older version does not say.
    """

    record: str
    token: str
    columns: tuple[str, ...]
    ranges: tuple[RowRange, ...]
    rows: int
    data: bytes = field(repr=False)
    kept: tuple[RowRange, ...] = ()


def encode_group(
    record: str,
    token: str,
    ranges: Sequence[RowRange],
    table: pa.Table,
    kept: Sequence[RowRange] | None = None,
) -> InsertGroup:
    """The group of `table`'s rows, which are those of `kept`. None: those of `ranges`."""
    kept = ranges if kept is None else kept
    identity: dict[str, object] = {
        "record": record,
        "token": token,
        "shares": [(r.source, r.first, r.end) for r in ranges],
        "rows": table.num_rows,
    }
    if list(kept) != list(ranges):
        identity["kept"] = [(r.source, r.first, r.end) for r in kept]
    metadata = {_METADATA: json.dumps(identity).encode()}
    table = table.unify_dictionaries().combine_chunks().replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return InsertGroup(
        record=record,
        token=token,
        columns=tuple(table.column_names),
        ranges=tuple(ranges),
        rows=table.num_rows,
        data=sink.getvalue().to_pybytes(),
        kept=tuple(kept),
    )


def part_of(group: InsertGroup, wanted: Sequence[RowRange], token: str = "") -> InsertGroup | None:
    """The group with only the rows of `wanted`, which lie in its ranges, under `token`, else under its own.

    None where it is not known which rows those are: an older version has not noted which of them went to the
    quarantine.
    """
    if sum(r.end - r.first for r in group.kept) != group.rows:
        return None
    table = pa.ipc.open_stream(group.data).read_all()
    pieces, kept, begin = [table.slice(0, 0)], [], 0
    for rows in group.kept:
        for part in wanted:
            first, end = max(rows.first, part.first), min(rows.end, part.end)
            if rows.source == part.source and first < end:
                pieces.append(table.slice(begin + first - rows.first, end - first))
                kept.append(RowRange(source=rows.source, first=first, end=end))
        begin += rows.end - rows.first
    return encode_group(group.record, token or group.token, wanted, pa.concat_tables(pieces), kept)


def halves(group: InsertGroup) -> tuple[InsertGroup, InsertGroup] | None:
    """The two halves of a group's rows. The token of each tells which rows of the group they are.

    None where there is one row, or it is not known which rows they are.
    """
    middle, at = group.rows // 2, 0
    first: list[RowRange] = []
    second: list[RowRange] = []
    for rows in group.kept:
        cut = min(max(rows.first, rows.first + middle - at), rows.end)
        first += [RowRange(source=rows.source, first=rows.first, end=cut)] * (rows.first < cut)
        second += [RowRange(source=rows.source, first=cut, end=rows.end)] * (cut < rows.end)
        at += rows.end - rows.first
    if not first or not second:
        return None
    one, other = (part_of(group, half, _part_token(group.token, half)) for half in (first, second))
    return (one, other) if one is not None and other is not None else None


def is_part(token: str) -> bool:
    """Whether a token is that of a part which `halves` made."""
    return _PART in token


def _part_token(token: str, rows: Sequence[RowRange]) -> str:
    identity = json.dumps([(r.source, r.first, r.end) for r in rows]).encode()
    return token.partition(_PART)[0] + _PART + hashlib.blake2b(identity, digest_size=8).hexdigest()


def pieces_of(group: InsertGroup, reason: str) -> list[Quarantined]:
    """The group's rows for the quarantine. Where it is not known whose they are, as those of the first."""
    table = pa.ipc.open_stream(group.data).read_all()
    known = sum(r.end - r.first for r in group.kept) == group.rows
    pieces, begin = [], 0
    for rows in group.kept if known else group.ranges[:1]:
        count = rows.end - rows.first if known else group.rows
        part = table.slice(begin, count)
        pieces.append(
            Quarantined(
                record=group.record, source=rows.source, first_row=rows.first, rows=part, reason=reason
            )
        )
        begin += count
    return pieces


def decode_group(data: bytes) -> InsertGroup:
    """The group whose `data` these bytes are. Raises `CorruptData`."""
    try:
        schema = pa.ipc.open_stream(data).schema
        identity = json.loads((schema.metadata or {})[_METADATA])
        ranges, rows = _ranges(identity["shares"]), int(identity["rows"])
        is_whole = sum(r.end - r.first for r in ranges) == rows
        return InsertGroup(
            record=identity["record"],
            token=identity["token"],
            columns=tuple(schema.names),
            ranges=ranges,
            rows=rows,
            data=data,
            kept=ranges if is_whole else _ranges(identity.get("kept", ())),
        )
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"not a group of rows: {error}") from error


def _ranges(noted: Iterable[tuple[str, int, int]]) -> tuple[RowRange, ...]:
    return tuple(RowRange(source=s, first=f, end=e) for s, f, e in noted)
