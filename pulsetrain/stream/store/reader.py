"""Reading the store as ClickHouse does over HTTP: SQL and text parameters in, bytes in any format out."""

from __future__ import annotations

import os
import queue
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import httpx

from pulsetrain.core.errors import PulsetrainError, Unavailable

if TYPE_CHECKING:
    from chdb.state.sqlitelike import Connection

_CODE = re.compile(r"\bCode:\s*(\d+)")
_TOO_LARGE = 396
_HANDLES = 4
_WAIT_S = 30.0


class QueryFailed(PulsetrainError):
    """The engine refused a statement. `code` is ClickHouse's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class ReaderConfig:
    """Limits of one statement that comes from outside."""

    max_seconds: float = 60.0
    """A statement that runs longer is ended."""
    max_memory_bytes: int = 4 << 30
    """A statement that needs more is ended."""
    max_result_bytes: int = 1 << 30
    """A statement whose result is larger is ended: the hub holds results whole."""

    @classmethod
    def of_memory(cls, total: int | None) -> ReaderConfig:
        """Limits for a process that may use `total` bytes: 1/8 of them for a statement, 1/32 for its result.
        None: nobody knows how many."""
        if total is None:
            return cls()
        most = cls()
        return cls(
            max_memory_bytes=min(most.max_memory_bytes, total // 8),
            max_result_bytes=min(most.max_result_bytes, total // 32),
        )


@dataclass(frozen=True, kw_only=True)
class QueryResult:
    """A result: its bytes in the requested format, and what it took."""

    body: bytes
    read_rows: int = 0
    read_bytes: int = 0
    elapsed_ns: int = 0


class EngineResult(Protocol):
    """What chDB returns of a statement."""

    def bytes(self) -> bytes | None: ...
    def rows_read(self) -> int: ...
    def bytes_read(self) -> int: ...
    def elapsed(self) -> float: ...


class Reader(Protocol):
    """Runs statements that only read, each with ``readonly = 1``."""

    def read(self, sql: str, params: Mapping[str, str], default_format: str) -> QueryResult:
        """The answer to `sql`. `params` are texts as ClickHouse's HTTP interface takes them, without their
        prefix ``param_``. Raises `QueryFailed` or `Unavailable`."""
        ...

    def close(self) -> None:
        """Let the store go. Idempotent."""
        ...


class ChdbReader:
    """Reads a chDB folder over four handles of its own. A fifth statement at the same time waits for one."""

    def __init__(self, folder: Path, config: ReaderConfig) -> None:
        self._path = os.path.realpath(folder)
        self._config = config
        self._handles: queue.LifoQueue[Connection | None] = queue.LifoQueue()
        for _ in range(_HANDLES):
            self._handles.put(None)  # opened when needed

    def read(self, sql: str, params: Mapping[str, str], default_format: str) -> QueryResult:
        """See `Reader`."""
        try:
            handle = self._handles.get(timeout=_WAIT_S)
        except queue.Empty as error:
            raise Unavailable(f"{_HANDLES} statements are running; try again") from error
        try:
            handle = handle or self._open()
            return _result(handle.query(sql, default_format, params=dict(params)))
        except RuntimeError as error:
            raise _failed(str(error)) from error
        finally:
            self._handles.put(handle)

    def close(self) -> None:
        """See `Reader`."""
        while not self._handles.empty():
            handle = self._handles.get_nowait()
            if handle is not None:
                handle.close()

    def _open(self) -> Connection:
        handle = _connect(self._path)
        handle.query(
            f"SET max_execution_time = {self._config.max_seconds}, "
            f"max_memory_usage = {self._config.max_memory_bytes}, "
            f"max_result_bytes = {self._config.max_result_bytes}, result_overflow_mode = 'throw', "
            "readonly = 1"
        )
        return handle


def _connect(path: str) -> Connection:
    import chdb  # loading it starts threads

    connection: Connection = chdb.connect(path)
    return connection


def _result(result: EngineResult) -> QueryResult:
    return QueryResult(
        body=result.bytes() or b"",
        read_rows=result.rows_read(),
        read_bytes=result.bytes_read(),
        elapsed_ns=int(result.elapsed() * 1e9),
    )


class HttpReader:
    """Passes statements on to a ClickHouse server."""

    def __init__(self, url: str, user: str, password: str, database: str, config: ReaderConfig) -> None:
        self._limits = {
            "readonly": "1",
            "database": database,
            "max_execution_time": str(config.max_seconds),
            "max_memory_usage": str(config.max_memory_bytes),
            "cancel_http_readonly_queries_on_client_close": "1",
        }
        self._most = config.max_result_bytes
        headers = {"X-ClickHouse-User": user, "X-ClickHouse-Key": password}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=config.max_seconds + 10)

    def read(self, sql: str, params: Mapping[str, str], default_format: str) -> QueryResult:
        """See `Reader`."""
        query = self._limits | {"default_format": default_format}
        query |= {f"param_{name}": value for name, value in params.items()}
        try:
            with self._http.stream("POST", "/", params=query, content=sql.encode()) as response:
                body = self._body(response)
        except httpx.HTTPError as error:
            raise Unavailable(f"store {self._http.base_url} does not answer: {error}") from error
        if response.status_code != 200:
            raise _failed(body.decode(errors="replace"))
        return QueryResult(body=body)

    def _body(self, response: httpx.Response) -> bytes:
        """What the server sends. Leaving earlier ends the statement there. Raises `QueryFailed`."""
        parts, size = [], 0
        for part in response.iter_bytes():
            size += len(part)
            if size > self._most:
                raise QueryFailed(
                    f"Code: {_TOO_LARGE}. DB::Exception: Limit for result exceeded, max bytes: {self._most}. "
                    "Select fewer rows or columns. (TOO_MANY_ROWS_OR_BYTES)",
                    _TOO_LARGE,
                )
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """See `Reader`."""
        self._http.close()


def _failed(message: str) -> QueryFailed:
    message = message[max(0, message.find("Code: ")) :].strip()
    code = _CODE.search(message)
    return QueryFailed(message, int(code.group(1)) if code else 1002)
