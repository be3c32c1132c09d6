"""Parquet files named after records (``spans.parquet``, ...) into a store or a hub, each row once.

A file is identified by its content. Importing it again, from anywhere, stores nothing.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pulsetrain.core.clock import SystemClock
from pulsetrain.core.errors import AuthError, SchemaMismatch, Unavailable, UsageError
from pulsetrain.core.progress import Report, unseen
from pulsetrain.protocol import tls
from pulsetrain.protocol.client import HubAddress
from pulsetrain.records.arrow import to_table
from pulsetrain.records.batch import Batch, adopt, conform, encode
from pulsetrain.records.columns import Columns, record_of
from pulsetrain.records.schema import RECORDS, SCHEMA_VERSION
from pulsetrain.stream.store.clickhouse import open_store
from pulsetrain.stream.store.intake import Intake

_ROWS = 100_000
_GATHERED_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The result of one file: the rows that it holds, and how many of them were not stored before."""

    file: str
    record: str
    rows: int
    stored: int


class Sink(Protocol):
    """Where imported batches go."""

    def put(self, batch: Batch) -> int:
        """Store the batch and return how many of its rows are new."""
        ...


class StoreSink:
    """Straight into a store that this process opened, through an intake that is not started."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def put(self, batch: Batch) -> int:
        """See `Sink`."""
        future = self._intake.submit(batch)
        self._intake.run(everything=True)
        return future.result(timeout=0)


class HubSink:
    """Over a running hub."""

    def __init__(self, address: HubAddress) -> None:
        headers = {"Authorization": f"Bearer {address.token}"}
        self._http = httpx.Client(
            base_url=address.url,
            headers=headers,
            timeout=60.0,
            trust_env=False,
            verify=tls.client_context(address.ca),
        )

    def put(self, batch: Batch) -> int:
        """See `Sink`. Raises `AuthError`, `Unavailable` or `SchemaMismatch`."""
        data = encode(batch.record, batch.table, source=batch.source, first_row=batch.first_row)
        try:
            response = self._http.post(f"/v1/records/{batch.record}", content=data)
        except httpx.HTTPError as error:
            if why := tls.refusal(error):
                raise AuthError(f"hub {self._http.base_url}: {why}") from error
            raise Unavailable(f"hub {self._http.base_url} does not answer: {error}") from error
        if response.status_code == 401:
            raise AuthError(f"hub {self._http.base_url} refuses the token: set PULSETRAIN_TOKEN or --token")
        if response.status_code >= 500:
            raise Unavailable(f"hub {self._http.base_url}: {response.text[:200]}")
        if response.status_code != 200:
            raise SchemaMismatch(f"hub {self._http.base_url}: {response.text[:200]}")
        return int(response.json()["stored"])

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


@contextlib.contextmanager
def open_sink(where: HubAddress | str, *, token: str | None = None) -> Iterator[Sink]:
    """The hub at an address, or the store at a URL. `token` is the password of a URL that holds none."""
    with contextlib.ExitStack() as stack:
        if isinstance(where, HubAddress):
            sink = HubSink(where)
            stack.callback(sink.close)
            yield sink
            return
        opened = open_store(where, token=token)
        stack.callback(opened.close)
        opened.migrate()
        folder = opened.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        intake = Intake(opened, folder / "journal", SystemClock())
        opened.before_close(intake.close)
        yield StoreSink(intake)


def files(folder: Path, *, required: bool = True) -> dict[str, Path]:
    """Record name to its file. Raises `UsageError` where there is no folder or no such file.

    There may be none of them unless they are `required`.
    """
    if not folder.is_dir():
        raise UsageError(f"folder {folder}: not a directory")
    paths = {r: folder / f"{r}.parquet" for r in RECORDS if (folder / f"{r}.parquet").is_file()}
    if required and not paths:
        raise UsageError(f"folder {folder}: no file named after a record: {', '.join(RECORDS)} (.parquet)")
    return paths


def rows_of(path: Path) -> int:
    """The rows that a file says it holds. Raises `UsageError` for a file that cannot be read."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def load(record: str, path: Path, sink: Sink, *, now_ns: int, report: Report = unseen) -> Imported:
    """Send the rows of one file. A missing time becomes `now_ns`. `report` takes the rows that are sent.

    Raises `UsageError` naming the file where it cannot be read or does not hold the record.
    """
    rows = stored = 0
    try:
        source = f"import/{_digest(path)}"
        for table in _tables(path):
            fitted = adopt(record, table, now_ns=now_ns)
            stored += sink.put(
                Batch(record=record, source=source, first_row=rows, version=SCHEMA_VERSION, table=fitted)
            )
            rows += fitted.num_rows
            report(rows)
    except SchemaMismatch as error:
        raise UsageError(f"file {path}: {error}") from error
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    return Imported(file=str(path), record=record, rows=rows, stored=stored)


def load_rows(record: str, path: Path, batches: Iterable[Columns], sink: Sink) -> Imported:
    """Send rows that were made of a file of another format. Raises `UsageError` where it cannot be read."""
    rows = stored = 0
    try:
        source = f"import/{_digest(path)}"
        for batch in _gathered(batches):
            table = conform(to_table(batch), record_of(record), SCHEMA_VERSION)
            stored += sink.put(
                Batch(record=record, source=source, first_row=rows, version=SCHEMA_VERSION, table=table)
            )
            rows += table.num_rows
    except OSError as error:
        raise UsageError(f"file {path} cannot be read: {error.strerror}") from error
    return Imported(file=str(path), record=record, rows=rows, stored=stored)


def _gathered(batches: Iterable[Columns]) -> Iterator[Columns]:
    """The same rows in larger batches: each costs an insert."""
    waiting: list[Columns] = []
    for batch in batches:
        waiting.append(batch)
        if sum(b.num_rows for b in waiting) >= _GATHERED_ROWS:
            yield Columns.concat(waiting)
            waiting = []
    if waiting:
        yield Columns.concat(waiting)


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(f"file {path} cannot be read as Parquet: {str(error).splitlines()[0]}")


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return str(digest.hexdigest())


def _tables(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS):
            yield pa.Table.from_batches([batch])
