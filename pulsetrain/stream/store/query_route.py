"""ClickHouse's HTTP interface over a store, for reading: ``/`` as far as clients need it.

A statement comes in the URL, the body, or both. Settings in the URL are not passed on: the endpoint has its
own. Errors have the codes and the headers that ClickHouse gives them.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import uuid
import zlib
from collections.abc import Callable, Mapping

import pyarrow as pa
from anyio import CapacityLimiter, to_thread
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.protocol.access import is_authorized
from pulsetrain.stream.store.body import read_body
from pulsetrain.stream.store.reader import QueryFailed, QueryResult, Reader
from pulsetrain.stream.store.readonly import check

MAX_QUERY_BYTES = 1 << 20

_STATUS = {60: 404, 81: 404, 62: 400, 47: 400, 43: 400, 42: 400, 46: 400, 164: 403, 497: 403, 516: 401}
_READONLY = 164
_AUTHENTICATION_FAILED = 516
_UNKNOWN_DATABASE = 81
_TOO_MANY_QUERIES = 202
_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*$", re.IGNORECASE | re.ASCII)
_QUERY_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)
"""Ids that may go back in a header."""
_MOST_FIELDS = 200
_MOST_AT_ONCE = 8
"""Statements that run at the same time, on threads of their own: those of ingest stay free."""
_HELD_BYTES = 4 << 30


class QueryRoute:
    """Answers statements with `reader`. `refused` names functions that may not be called. `asked` hears of
    each statement before it runs. While results of `most_held` bytes are on their way to clients, no further
    statement runs."""

    def __init__(
        self,
        reader: Reader,
        refused: frozenset[str],
        token: str,
        asked: Callable[[], None] = lambda: None,
        most_held: int = _HELD_BYTES,
    ) -> None:
        self._reader, self._refused, self._token, self._asked = reader, refused, token, asked
        self._threads = CapacityLimiter(_MOST_AT_ONCE)
        self._most_held, self._held = most_held, 0

    async def answer(self, request: Request) -> Response:
        """Run one statement and return its result or its error."""
        given = request.query_params.get("query_id", "")
        query_id = given if _QUERY_ID.fullmatch(given) else str(uuid.uuid4())
        if not is_authorized(request, self._token):
            return _error(_AUTHENTICATION_FAILED, "AUTHENTICATION_FAILED", "missing or wrong token", query_id)
        try:
            sql, fields = await _statement(request)
            if not sql.strip() and request.method == "GET":
                return PlainTextResponse("Ok.\n")
            self._asked()
            _check_database(request.query_params.get("database", ""))
            sql = check(sql, self._refused)
            output_format = _format(sql, request)
            params = {k[6:]: v for k, v in fields.items() if k.startswith("param_")}
            result = await to_thread.run_sync(self._read, sql, params, output_format, limiter=self._threads)
        except UsageError as error:
            return _error(_READONLY, "READONLY", str(error), query_id)
        except QueryFailed as error:
            return _failed(error.code, str(error), query_id)
        except Unavailable as error:
            return _error(_TOO_MANY_QUERIES, "TOO_MANY_SIMULTANEOUS_QUERIES", str(error), query_id)
        return self._counted(_response(result, output_format, query_id, _encoding(request)))

    def _read(self, sql: str, params: Mapping[str, str], output_format: str) -> QueryResult:
        """Run a statement, on a thread of its own. Raises `QueryFailed` or `Unavailable`."""
        if self._held >= self._most_held:
            raise Unavailable(f"results of {self._held} bytes are still being sent; try again")
        return self._reader.read(sql, params, output_format)

    def _counted(self, response: Response) -> Response:
        """The response. Its bytes count as held until it is sent, or its client is gone."""
        size = len(response.body)
        self._held += size
        return _Counted(response, lambda: self._let_go(size))

    def _let_go(self, size: int) -> None:
        self._held -= size


class _Counted(Response):
    """A response that says when it is sent, or its client is gone."""

    def __init__(self, response: Response, done: Callable[[], None]) -> None:
        super().__init__(response.body, response.status_code)
        self.raw_headers = response.raw_headers
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


async def _statement(request: Request) -> tuple[str, Mapping[str, str]]:
    """The SQL (?query= and the body, joined as ClickHouse does) and all fields. Raises `UsageError`."""
    fields = dict(request.query_params)
    parts = [fields.get("query", "")]
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
            fields |= {k: v for k, v in form.items() if not isinstance(v, UploadFile)}
        parts = [fields.get("query", "")]
    elif request.method == "POST":
        try:
            parts.append(_plain(request, await read_body(request, MAX_QUERY_BYTES)).decode())
        except UnicodeDecodeError as error:
            raise UsageError(f"statement is not UTF-8: {error.reason}") from error
    return "\n".join(p for p in parts if p), fields


def _plain(request: Request, body: bytes) -> bytes:
    """The body without its compression. Raises `UsageError`."""
    encoding = request.headers.get("content-encoding", "")
    if not encoding:
        return body
    if encoding != "gzip":
        raise UsageError(f"Content-Encoding {encoding!r}: allowed is gzip")
    try:
        with gzip.open(io.BytesIO(body)) as file:
            plain = file.read(MAX_QUERY_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"body is not gzip: {error}") from error
    if len(plain) > MAX_QUERY_BYTES:
        raise UsageError(f"statement is larger than {MAX_QUERY_BYTES} bytes")
    return plain


def _check_database(name: str) -> None:
    if name not in ("", "default"):
        raise QueryFailed(
            f"Code: {_UNKNOWN_DATABASE}. DB::Exception: Database {name} does not exist; "
            "the only one is default. (UNKNOWN_DATABASE)",
            _UNKNOWN_DATABASE,
        )


def _format(sql: str, request: Request) -> str:
    """The format of the result: named by the statement, the URL or a header."""
    clause = _FORMAT.search(sql)
    if clause:
        return clause.group(1)
    default = request.query_params.get("default_format") or request.headers.get("x-clickhouse-format", "")
    return default if re.fullmatch(r"\w+", default, re.ASCII) else "TabSeparated"


def _encoding(request: Request) -> str:
    """The compression of the response: one that the client accepts, if it enabled any. "": none."""
    if request.query_params.get("enable_http_compression") != "1":
        return ""
    accepted = {part.split(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")}
    return next((name for name in ("zstd", "gzip") if name in accepted), "")


def _response(result: QueryResult, output_format: str, query_id: str, encoding: str) -> Response:
    summary = {
        "read_rows": str(result.read_rows),
        "read_bytes": str(result.read_bytes),
        "elapsed_ns": str(result.elapsed_ns),
    }
    is_text = output_format.startswith("T")
    headers = {
        "X-ClickHouse-Query-Id": query_id,
        "X-ClickHouse-Format": output_format,
        "X-ClickHouse-Summary": json.dumps(summary),
        "Content-Type": "text/plain; charset=UTF-8" if is_text else "application/octet-stream",
    }
    body = result.body
    if encoding:
        body = _compressed(body, encoding)
        headers["Content-Encoding"] = encoding
    return Response(body, headers=headers)


def _compressed(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.compress(body, 1)
    return bytes(pa.compress(body, codec="zstd", asbytes=True))


def _error(code: int, name: str, message: str, query_id: str) -> Response:
    return _failed(code, f"Code: {code}. DB::Exception: {message}. ({name})", query_id)


def _failed(code: int, message: str, query_id: str) -> Response:
    headers = {"X-ClickHouse-Exception-Code": str(code), "X-ClickHouse-Query-Id": query_id}
    return PlainTextResponse(f"{message}\n", _STATUS.get(code, 500), headers)
