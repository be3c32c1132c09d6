"""Write simulated telemetry to Parquet files, to a store, or over a transport."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq
import xxhash

from pulsetrain.core.errors import UsageError
from pulsetrain.records.arrow import arrow_schema
from pulsetrain.records.batch import Batch, encode
from pulsetrain.records.schema import SCHEMA_VERSION
from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.telemetry import telemetry
from pulsetrain.stream.spool.queue import Entry
from pulsetrain.stream.spool.transport import Transport

Progress = Callable[[int], None]
CHUNK_ROWS = 250_000
MESSAGE_ROWS = 20_000
SOURCES = 8
"""Messages claim to come from this many nodes, so that they spread over the partitions of a topic."""


class Sink(Protocol):
    """Where batches go."""

    def put(self, batch: Batch) -> int:
        """Take the batch. Returns how many of its rows are new."""
        ...


def to_parquet(spec: FleetSpec, folder: Path, progress: Progress) -> Counter[str]:
    """Write ``<record>.parquet`` files that `pulsetrain import` reads. Returns rows by record.

    Raises `UsageError` where the folder cannot be written.
    """
    rows: Counter[str] = Counter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            files: dict[str, pq.ParquetWriter] = {}
            for record, table in telemetry(spec):
                if record not in files:
                    writer = pq.ParquetWriter(
                        folder / f"{record}.parquet", arrow_schema(record), compression="zstd"
                    )
                    files[record] = stack.enter_context(writer)
                files[record].write_table(table)
                rows[record] += table.num_rows
                progress(rows.total())
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror or error}") from error
    return rows


def to_sink(spec: FleetSpec, sink: Sink, progress: Progress) -> Counter[str]:
    """Send everything to `sink` and return new rows by record. The same specification adds no rows again."""
    source = f"simulate/{_fingerprint(spec)}"
    sent: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    for record, table in telemetry(spec, CHUNK_ROWS):
        for chunk in (table.slice(i, CHUNK_ROWS) for i in range(0, table.num_rows, CHUNK_ROWS)):
            batch = Batch(
                record=record, source=source, first_row=sent[record], version=SCHEMA_VERSION, table=chunk
            )
            stored[record] += sink.put(batch)
            sent[record] += chunk.num_rows
            progress(sent.total())
    return stored


def to_transport(spec: FleetSpec, transport: Transport, progress: Progress) -> Counter[str]:
    """Send everything over `transport` and return rows by record.

    The receiver stores the rows of a specification once, however often they are sent. Raises `Unavailable`,
    `AuthError` or `UsageError` as the transport does, and `UsageError` where it refuses a message.
    """
    sent: Counter[str] = Counter()
    for entries in _batches(_entries(spec, sent), 16):
        refused = transport.send(entries)
        if refused:
            raise UsageError(f"simulated records are refused: {refused[0].why}")
        progress(sent.total())
    return sent


def _entries(spec: FleetSpec, sent: Counter[str]) -> Iterator[Entry]:
    """Messages of at most `MESSAGE_ROWS` rows. Adds their rows to `sent`."""
    fingerprint = _fingerprint(spec)
    first: Counter[tuple[str, str]] = Counter()
    sources = itertools.cycle(range(SOURCES))
    for record, table in telemetry(spec, CHUNK_ROWS):
        for chunk in (table.slice(i, MESSAGE_ROWS) for i in range(0, table.num_rows, MESSAGE_ROWS)):
            source = f"simulate-{next(sources)}/{fingerprint}"
            data = encode(record, chunk, source=source, first_row=first[(source, record)])
            first[(source, record)] += chunk.num_rows
            sent[record] += chunk.num_rows
            yield Entry(segment=0, end=0, rows=chunk.num_rows, data=data)


def _batches(entries: Iterator[Entry], count: int) -> Iterator[list[Entry]]:
    while batch := list(itertools.islice(entries, count)):
        yield batch


def _fingerprint(spec: FleetSpec) -> str:
    return xxhash.xxh3_128(repr(spec).encode()).hexdigest()
