"""The hub's routes for records: ingest, and a read-only ClickHouse HTTP interface over the same store.

``POST /v1/records/{record}`` takes one encoded batch, ``POST /v1/records`` several; they answer when the rows
are stored. ``/metrics`` is for Prometheus. ``/`` and ``/ping`` speak ClickHouse's HTTP protocol as far as
clients need it to read the store.
Settings in the URL are not passed on; the endpoint has its own.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
import tempfile
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.errors import CorruptData, PulsetrainError, SchemaMismatch, Unavailable, UsageError
from pulsetrain.protocol.access import is_authorized
from pulsetrain.records.batch import decode
from pulsetrain.stream.queries.storage import outside_functions
from pulsetrain.stream.spool import segment
from pulsetrain.stream.store.clickhouse import Store
from pulsetrain.stream.store.intake import Intake
from pulsetrain.stream.store.reader import Answer, QueryFailed, ReaderConfig
from pulsetrain.stream.store.readonly import check

MAX_BATCH_BYTES = 64 << 20
MAX_QUERY_BYTES = 1 << 20

_STATUS = {60: 404, 81: 404, 62: 400, 47: 400, 43: 400, 42: 400, 46: 400, 164: 403, 497: 403, 516: 401}
_READONLY = 164
_AUTHENTICATION_FAILED = 516
_UNKNOWN_DATABASE = 81
_TOO_MANY_QUERIES = 202
_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*$", re.IGNORECASE)
_log = structlog.get_logger()


def routes(
    store: Store,
    *,
    token: str,
    journal: Path | None = None,
    clock: Clock | None = None,
    intake: Intake | None = None,
) -> list[BaseRoute]:
    """Ingest and query routes over `store`; all but /ping ask for `token`.

    `intake` is started by its owner; without one it is made here. All of its metrics are at /metrics.
    `journal` is a folder for batches on their way into the store; a chDB store has its own. Without one, a
    hub that is killed while it inserts may store those rows twice.
    """
    if intake is None:
        folder = journal or (store.folder / "journal" if store.folder else Path(tempfile.mkdtemp("-journal")))
        intake = Intake(store, folder, clock or SystemClock())
        store.before_close(intake.close)
        intake.start()
    query = _QueryRoute(store, token)

    async def ingest(request: Request) -> Response:
        if not is_authorized(request, token):
            return JSONResponse({"error": "missing or wrong token"}, 401)
        return await _ingest(request, intake)

    async def ping(request: Request) -> Response:
        return PlainTextResponse("Ok.\n")

    async def show_metrics(request: Request) -> Response:
        if not is_authorized(request, token):
            return JSONResponse({"error": "missing or wrong token"}, 401)
        return Response(intake.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/metrics", show_metrics),
        Route("/v1/records", ingest, methods=["POST"]),
        Route("/v1/records/{record}", ingest, methods=["POST"]),
        Route("/ping", ping),
        Route("/", query.answer, methods=["GET", "POST"]),
    ]


async def _ingest(request: Request, intake: Intake) -> Response:
    """One batch of the record in the path, or, without one, several as entries of a segment."""
    record = request.path_params.get("record")
    try:
        body = await _body(request, MAX_BATCH_BYTES)
        results = await run_in_threadpool(_submit, intake, [body] if record else _entries(body), record)
        outcome = await asyncio.gather(*map(_outcome, results))
    except ClientDisconnect:
        return Response(status_code=400)
    except UsageError as error:
        return JSONResponse({"error": str(error)}, 413)
    except CorruptData as error:
        return JSONResponse({"error": str(error)}, 422)
    except PulsetrainError as error:
        return JSONResponse({"error": str(error)}, 503)
    if record is None:
        return JSONResponse({"results": outcome})
    return JSONResponse(outcome[0], 422 if "error" in outcome[0] else 200)


def _entries(body: bytes) -> list[bytes]:
    found = segment.scan(body)
    if found.torn or found.lost_rows or found.corrupt_regions:
        raise CorruptData("body is damaged: not every entry matches its checksum")
    return [body[place.offset : place.end] for place in found.places]


def _submit(intake: Intake, bodies: list[bytes], record: str | None) -> list[Future[int] | str]:
    """For each batch what will be its outcome, or why it is refused."""
    results: list[Future[int] | str] = []
    for body in bodies:
        intake.metrics.bytes.inc(len(body))
        try:
            batch = decode(body)
            if record not in (None, batch.record):
                raise SchemaMismatch(f"batch of {batch.record} sent as {record}")  # noqa: TRY301 - one way out
            results.append(intake.submit(batch))
        except (CorruptData, SchemaMismatch) as error:
            _log.warning("batch_refused", error=str(error))
            intake.metrics.refused.inc()
            results.append(str(error))
    return results


async def _outcome(result: Future[int] | str) -> dict[str, int | str]:
    """{"stored": rows} or {"error": why}. Raises `Unavailable` where the rows may not be stored."""
    if isinstance(result, str):
        return {"error": result}
    stored: asyncio.Future[int] = asyncio.wrap_future(result)
    try:
        return {"stored": await stored}
    except SchemaMismatch as error:
        return {"error": str(error)}


async def _body(request: Request, limit: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise UsageError(f"body is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


class _QueryRoute:
    """ClickHouse's HTTP interface, for reading."""

    def __init__(self, store: Store, token: str) -> None:
        self._token = token
        self._reader = store.reader(ReaderConfig())
        self._refused = frozenset(outside_functions(store).column("name").to_pylist())

    async def answer(self, request: Request) -> Response:
        """One statement."""
        query_id = request.query_params.get("query_id") or str(uuid.uuid4())
        if not is_authorized(request, self._token):
            return _error(_AUTHENTICATION_FAILED, "AUTHENTICATION_FAILED", "missing or wrong token", query_id)
        try:
            sql, fields = await _statement(request)
            if not sql.strip() and request.method == "GET":
                return PlainTextResponse("Ok.\n")
            _check_database(request.query_params.get("database", ""))
            sql = check(sql, self._refused)
            chosen = _format(sql, request)
            params = {k[6:]: v for k, v in fields.items() if k.startswith("param_")}
            answer = await run_in_threadpool(self._reader.read, sql, params, chosen)
        except UsageError as error:
            return _error(_READONLY, "READONLY", str(error), query_id)
        except QueryFailed as error:
            return _failed(error.code, str(error), query_id)
        except Unavailable as error:
            return _error(_TOO_MANY_QUERIES, "TOO_MANY_SIMULTANEOUS_QUERIES", str(error), query_id)
        return _result(answer, chosen, query_id, _encoding(request))


async def _statement(request: Request) -> tuple[str, Mapping[str, str]]:
    """The SQL (?query= and the body, joined as ClickHouse does) and all fields. Raises `UsageError`."""
    fields = dict(request.query_params)
    parts = [fields.get("query", "")]
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with request.form(max_files=0) as form:
            fields |= {k: v for k, v in form.items() if not isinstance(v, UploadFile)}
        parts = [fields.get("query", "")]
    elif request.method == "POST":
        try:
            parts.append(_plain(request, await _body(request, MAX_QUERY_BYTES)).decode())
        except UnicodeDecodeError as error:
            raise UsageError(f"statement is not UTF-8: {error.reason}") from error
    return "\n".join(p for p in parts if p), fields


def _plain(request: Request, body: bytes) -> bytes:
    encoding = request.headers.get("content-encoding", "")
    if not encoding:
        return body
    if encoding != "gzip":
        raise UsageError(f"Content-Encoding {encoding!r}: allowed is gzip")
    with gzip.open(io.BytesIO(body)) as file:
        return file.read(MAX_QUERY_BYTES)


def _check_database(name: str) -> None:
    if name not in ("", "default"):
        raise QueryFailed(
            f"Code: {_UNKNOWN_DATABASE}. DB::Exception: Database {name} does not exist; "
            "the only one is default. (UNKNOWN_DATABASE)",
            _UNKNOWN_DATABASE,
        )


def _format(sql: str, request: Request) -> str:
    found = _FORMAT.search(sql)
    if found:
        return found.group(1)
    asked = request.query_params.get("default_format") or request.headers.get("x-clickhouse-format", "")
    return asked if re.fullmatch(r"\w+", asked) else "TabSeparated"


def _encoding(request: Request) -> str:
    """The compression to answer with: one that the client takes and, as with ClickHouse, asked for."""
    if request.query_params.get("enable_http_compression") != "1":
        return ""
    taken = {part.split(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")}
    return next((name for name in ("zstd", "gzip") if name in taken), "")


def _result(answer: Answer, chosen: str, query_id: str, encoding: str) -> Response:
    summary = {
        "read_rows": str(answer.read_rows),
        "read_bytes": str(answer.read_bytes),
        "elapsed_ns": str(answer.elapsed_ns),
    }
    headers = {
        "X-ClickHouse-Query-Id": query_id,
        "X-ClickHouse-Format": chosen,
        "X-ClickHouse-Summary": json.dumps(summary),
        "Content-Type": "text/plain; charset=UTF-8" if chosen.startswith("T") else "application/octet-stream",
    }
    body = answer.body
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
