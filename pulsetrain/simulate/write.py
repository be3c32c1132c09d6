"""Simulated telemetry to where records go: Parquet files, a store, a hub."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq
import xxhash

from pulsetrain.simulate.spec import FleetSpec
from pulsetrain.simulate.telemetry import telemetry
from pulsetrain.stream.batch import Batch
from pulsetrain.stream.errors import UsageError
from pulsetrain.stream.schema import SCHEMA_VERSION, arrow_schema

Progress = Callable[[int], None]
CHUNK_ROWS = 250_000


class Sink(Protocol):
    """Where batches go."""

    def put(self, batch: Batch) -> int:
        """Take the batch; returns how many of its rows are new."""
        ...


def to_parquet(spec: FleetSpec, folder: Path, progress: Progress) -> Counter[str]:
    """Write ``<record>.parquet`` files that `pulsetrain import` reads; returns rows by record.

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
    """Send everything to `sink` and return new rows by record; the same specification again adds none."""
    source = f"simulate/{xxhash.xxh3_128(repr(spec).encode()).hexdigest()}"
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
