"""Where records rest: one ClickHouse client API over a chDB folder or a ClickHouse server.

Rows go in as Arrow IPC streams. With chDB 26.9 on two cores that took 4.4 to 5.9 million span rows/s
(200,000 rows an insert, no rollup). `insert_arrow` took 2.0 million. An insert of 100 rows costs about 4 ms.
Queries run beside inserts, on handles of their own.
"""

from __future__ import annotations

import contextlib
import io
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import IOBase
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect import common
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from clickhouse_connect.driver.httpclient import HttpClient
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from pulsetrain.core.errors import (
    AuthError,
    PulsetrainError,
    Refused,
    SchemaMismatch,
    Unavailable,
    UsageError,
)
from pulsetrain.core.folder_lock import FolderLock
from pulsetrain.core.urls import split_url
from pulsetrain.protocol import tls
from pulsetrain.records import ddl
from pulsetrain.records.batch import conform
from pulsetrain.records.schema import RECORDS, SCHEMA_VERSION
from pulsetrain.stream.queries import storage
from pulsetrain.stream.store.lost_parts import forget_lost_parts
from pulsetrain.stream.store.reader import ChdbReader, HttpReader, Reader, ReaderConfig
from pulsetrain.stream.store.scratch import ScratchFiles

Write = Callable[[BinaryIO], object]
"""Writes an Arrow IPC stream."""

_AUTH_CODES = (516, 192, 193, 194)
_DATA_CODES = (6, 27, 33, 41, 53, 70, 72, 117, 349)
"""The engine could not read the rows it was given. None of them is stored."""
_AWAY_CODES = frozenset(
    {16, 60, 75, 76, 81, 107, 164, 201, 202, 203, 209, 210, 218, 225, 236, 242, 243, 252, 254, 279, 285, 286}
    | {319, 341, 394, 439, 473, 497, 499, 999}
)
"""The table or the server takes nothing now, whatever rows come: it is read-only or full, lacks a table, a
right or its replicas, is overloaded, or ends."""
_IDLE_CLIENTS = 8
CONNECT_S = 5
SILENT_S = 25
"""A ClickHouse server that says nothing for so long does not answer. It reports the progress of a query more
often. Agents that send rows wait for 30 s."""
STATEMENT_S = 300
"""The same for a statement that changes tables, which a cluster carries out in silence."""
_INSERT_SETTINGS: Mapping[str, object] = MappingProxyType(
    {"async_insert": 0, "max_partitions_per_insert_block": 0, "optimize_on_insert": 0}
)
"""Of every insert. Asynchronous inserts are the default from ClickHouse 26.3 on. Older servers refuse them
together with `_TOKEN_SETTINGS`."""
_TOKEN_SETTINGS: Mapping[str, object] = MappingProxyType(
    {"insert_deduplicate": 1, "deduplicate_blocks_in_dependent_materialized_views": 1}
)
_DESPITE_VIEWS: Mapping[str, object] = MappingProxyType({"materialized_views_ignore_errors": 1})
_SMALL_BYTES = 1 << 20  # up to so many, more threads cost an insert more than they save


class Store:
    """Tables of records. Safe to use from many threads: each call has a client of its own for its time."""

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        name: str,
        engine: ddl.Engine | None = None,
        lock: FolderLock | None = None,
        open_reader: Callable[[ReaderConfig], Reader],
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self._open_reader = open_reader
        self._closers: list[Callable[[], None]] = []
        self.engine = engine or ddl.Engine()
        self._connect = connect
        self._lock = lock
        self._idle: queue.LifoQueue[Client] = queue.LifoQueue(_IDLE_CLIENTS)
        self._inserted: Counter[str] = Counter()
        self._counting = threading.Lock()
        # a small insert gives up the pages of a large one, so busy tables have files of their own
        self._scratch = {busy: ScratchFiles() for busy in (True, False)}
        with self.client():
            pass  # raises at once where the store cannot be opened

    def migrate(self) -> None:
        """Create what is missing. Existing tables only gain columns. Raises `SchemaMismatch` where a column
        exists with another type."""
        for record in RECORDS.values():
            self.command(ddl.create_table(record, self.engine))
        self.command(ddl.create_offsets(self.engine))
        self.command(ddl.create_quarantine(self.engine))
        present = self._columns()
        for record in RECORDS.values():
            for field in record.fields:
                present_type = present.get((record.name, field.name))
                if present_type is None:
                    self.command(ddl.add_column(record, field, self.engine))
                elif present_type != field.kind.clickhouse:
                    where = f"{self.name}: {record.name}.{field.name}"
                    raise SchemaMismatch(f"{where} is {present_type}, not {field.kind.clickhouse}")
        self.command(ddl.create_rollup(self.engine))
        fed = {name for table, name in present if table == ddl.ROLLUP_FEED}
        if fed and "blocked_known" not in fed:
            for statement in ddl.extend_rollup(self.engine):
                self.command(statement)
        else:
            self.command(ddl.create_rollup_feed(self.engine))
        self._tune()
        self._project()

    def _project(self) -> None:
        """Give tables the projections that they lack."""
        made = {row["name"]: row["statement"] for row in storage.statements(self).to_pylist()}
        for table, wanted in ddl.PROJECTIONS.items():
            missing = [name for name in wanted if f"PROJECTION {name} " not in made[table]]
            for statement in ddl.add_projections(table, missing, self.engine):
                self.command(statement)

    def has_records(self) -> bool:
        """Whether `migrate` was ever here."""
        return any(table in RECORDS for table, _ in self._columns())

    def _tune(self) -> None:
        """Give tables the settings that they lack and that this engine knows."""
        known = set(storage.table_settings(self)["name"].to_pylist())
        engines = {row["name"]: row["engine_full"] for row in storage.engines(self).to_pylist()}
        for table, wanted in self.engine.tuned.items():
            lacking = ddl.lacking({k: v for k, v in wanted.items() if k in known}, engines[table])
            if lacking:
                self.command(ddl.set_settings(table, lacking, self.engine))

    def insert(self, record: str, table: pa.Table | pa.RecordBatch, *, token: str | None = None) -> None:
        """Store rows that have the record's Arrow schema. Rows that come again with the same `token` are
        stored once. Raises `SchemaMismatch` or `Unavailable`."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if table.num_rows:
            rows = conform(table, RECORDS[record], SCHEMA_VERSION)
            self._insert(record, rows.column_names, partial(write_ipc, rows), token, rows.nbytes)

    def insert_raw(
        self,
        table: str,
        columns: Sequence[str],
        stream: bytes,
        *,
        token: str | None,
        despite_views: bool = False,
    ) -> None:
        """Store an uncompressed Arrow IPC stream as it is. See `RowStore`."""
        more = _DESPITE_VIEWS if despite_views else {}
        self._insert(table, columns, lambda sink: sink.write(stream), token, len(stream), more)

    def _insert(
        self,
        table: str,
        columns: Sequence[str],
        write: Write,
        token: str | None,
        size_bytes: int,
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        settings = {**_INSERT_SETTINGS, **more}
        if size_bytes <= _SMALL_BYTES:
            settings["max_threads"] = 1
        if token is not None:
            settings |= {**_TOKEN_SETTINGS, "insert_deduplication_token": token}
        with self.client() as client, self._counted(table):
            if self.folder is None:
                sink = io.BytesIO()
                write(sink)
                client.raw_insert(f"`{table}`", list(columns), sink.getvalue(), settings, "ArrowStream")
            else:
                with self._scratch[table in ddl.BUSY].written(write) as path:
                    client.command(ddl.insert_file(table, columns, path, settings))

    def inserts(self, *tables: str) -> tuple[int, ...] | None:
        """How many inserts into each table have ended, failed ones included. None where others insert too.

        Where the numbers are the same as before a query, the query would give the same again.
        """
        return tuple(self._inserted[table] for table in tables) if self.folder is not None else None

    @contextlib.contextmanager
    def _counted(self, table: str) -> Iterator[None]:
        try:
            yield
        finally:
            with self._counting:
                self._inserted[table] += 1

    def query(self, sql: str, params: Mapping[str, object] | None = None) -> pa.Table:
        """The result of a SELECT. ``{name:Type}`` in `sql` takes its value from `params`.

        Times are timestamp[ns, UTC], names plain strings. Raises `UsageError` where the statement is wrong.
        """
        with self.client() as client:
            return client.query_arrow(sql, parameters=dict(params or {}), use_strings=True)

    def command(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        with self.client() as client, _patience(client):
            client.command(sql)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """A client for the time of the block. Its errors are raised as Pulsetrain's."""
        with _errors(self.name):
            try:
                client = self._idle.get_nowait()
            except queue.Empty:
                client = self._connect()
            try:
                yield client
            finally:
                try:
                    self._idle.put_nowait(client)
                except queue.Full:
                    client.close()

    def reader(self, config: ReaderConfig) -> Reader:
        """What runs statements from outside, with ``readonly = 1``. It is closed with the store."""
        reader = self._open_reader(config)
        self.before_close(reader.close)
        return reader

    def before_close(self, call: Callable[[], None]) -> None:
        """Have `call` run when the store is about to close, last added first."""
        self._closers.append(call)

    def close(self) -> None:
        """Close what belongs to the store, every client, and give the folder up. Idempotent."""
        while self._closers:
            self._closers.pop()()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()
        for files in self._scratch.values():
            files.close()
        if self._lock is not None:
            self._lock.release()

    def _columns(self) -> dict[tuple[str, str], str]:
        rows = storage.columns(self).to_pylist()
        return {(row["table"], row["name"]): row["type"] for row in rows}


def write_ipc(table: pa.Table, sink: BinaryIO) -> None:
    """Write `table` to `sink` as an uncompressed Arrow IPC stream of one batch."""
    table = table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
    with pa.ipc.new_stream(cast("IOBase", sink), table.schema) as writer:
        writer.write_table(table)


def ipc(table: pa.Table) -> bytes:
    """`table` as `write_ipc` writes it."""
    sink = io.BytesIO()
    write_ipc(table, sink)
    return sink.getvalue()


def open_store(
    url: str, *, token: str | None = None, engine: ddl.Engine | None = None, ca: str = ""
) -> Store:
    """A store at ``chdb:///folder`` or ``http(s)://[user[:password]@]host[:port][/database]``.

    `token` is the password where the URL holds none. `ca` is the file of the CA that a certificate must be
    by, "" for those that the system knows. Raises `UsageError` for another scheme, a folder that
    is in use or cannot be written, or a cluster of chDB. Raises `AuthError` and `Unavailable`.
    """
    parts = split_url(url, "store")
    if parts.scheme == "chdb":
        if engine is not None and engine.cluster:
            raise UsageError(f"store.cluster = {engine.cluster!r}: {url} is no ClickHouse server")
        return _open_folder(url, Path(parts.netloc + parts.path), engine)
    if parts.scheme in ("http", "https") and parts.hostname:
        return Store(
            lambda: _connect_http(url, token, ca),
            name=_public(url),
            engine=engine,
            open_reader=lambda config: _read_http(url, token, config),
        )
    raise UsageError(f"store {url!r}: allowed are chdb:///folder and http(s)://host:port")


def _open_folder(url: str, folder: Path, engine: ddl.Engine | None) -> Store:
    if not folder.is_absolute():
        raise UsageError(f"store {url!r}: chdb:// needs an absolute path, as in chdb:///var/lib/pulsetrain")
    lock = FolderLock.take(folder, "store")
    try:
        forget_lost_parts(folder)
        return Store(
            lambda: _connect_chdb(folder),
            name=f"chdb://{folder}",
            engine=engine,
            lock=lock,
            folder=folder,
            open_reader=lambda config: ChdbReader(folder, config),
        )
    except BaseException:
        lock.release()
        raise


def _connect_chdb(folder: Path) -> Client:
    return clickhouse_connect.get_client(interface="chdb", path=str(folder))


def _connect_http(url: str, token: str | None, ca: str) -> Client:
    parts = urlsplit(url)
    common.set_setting("autogenerate_session_id", False)
    return clickhouse_connect.get_client(
        interface=parts.scheme,
        host=parts.hostname,
        port=parts.port or (8443 if parts.scheme == "https" else 8123),
        username=unquote(parts.username or "default"),
        password=unquote(parts.password or "") or token or "",
        database=parts.path.strip("/") or "default",
        ca_cert=ca or None,
        connect_timeout=CONNECT_S,
        send_receive_timeout=SILENT_S,
    )


@contextlib.contextmanager
def _patience(client: Client) -> Iterator[None]:
    """Let a client wait longer for its server in the block."""
    if not isinstance(client, HttpClient):
        yield
        return
    usual, client.timeout = client.timeout, Timeout(connect=CONNECT_S, read=STATEMENT_S)
    try:
        yield
    finally:
        client.timeout = usual


def _read_http(url: str, token: str | None, config: ReaderConfig) -> Reader:
    parts = urlsplit(url)
    port = parts.port or (8443 if parts.scheme == "https" else 8123)
    return HttpReader(
        f"{parts.scheme}://{parts.hostname}:{port}",
        unquote(parts.username or "default"),
        unquote(parts.password or "") or token or "",
        parts.path.strip("/") or "default",
        config,
    )


def _public(url: str) -> str:
    """The URL without its password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except (OperationalError, HTTPError, OSError) as error:
        why = tls.refusal(error)
        if why:
            raise AuthError(f"store {name}: {why}") from error
        raise Unavailable(f"store {name} does not answer: {_line(error)}") from error
    except ClickHouseError as error:
        code = getattr(error, "code", None)
        if code in _AUTH_CODES:
            raise AuthError(f"store {name} refuses the token") from error
        if code in _DATA_CODES:
            raise SchemaMismatch(f"store {name}: {_line(error)}") from error
        refused = Refused if code is not None and code not in _AWAY_CODES else PulsetrainError
        raise refused(f"store {name}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
