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
            f"max_memory_usage = {self._config.max_memory_bytes}, readonly = 1"
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
        }
        headers = {"X-ClickHouse-User": user, "X-ClickHouse-Key": password}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=config.max_seconds + 10)

    def read(self, sql: str, params: Mapping[str, str], default_format: str) -> QueryResult:
        """See `Reader`."""
        query = self._limits | {"default_format": default_format}
        query |= {f"param_{name}": value for name, value in params.items()}
        try:
            response = self._http.post("/", params=query, content=sql.encode())
        except httpx.HTTPError as error:
            raise Unavailable(f"store {self._http.base_url} does not answer: {error}") from error
        if response.status_code != 200:
            raise _failed(response.text)
        return QueryResult(body=response.content)

    def close(self) -> None:
        """See `Reader`."""
        self._http.close()


def _failed(message: str) -> QueryFailed:
    message = message[max(0, message.find("Code: ")) :].strip()
    code = _CODE.search(message)
    return QueryFailed(message, int(code.group(1)) if code else 1002)
