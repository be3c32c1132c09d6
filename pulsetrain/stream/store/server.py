"""The hub's routes for records: ingest, metrics, and queries over the same store.

``POST /v1/records/{record}`` takes one encoded batch, ``POST /v1/records`` several. They answer when the rows
are stored. ``/metrics`` is for Prometheus. ``/`` and ``/ping`` speak ClickHouse's HTTP protocol for reading.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from pulsetrain.core.clock import Clock, SystemClock
from pulsetrain.core.errors import CorruptData, PulsetrainError, SchemaMismatch, UsageError
from pulsetrain.core.memory_total import memory_total
from pulsetrain.protocol.access import is_authorized
from pulsetrain.records.batch import Batch, decode
from pulsetrain.stream.queries.storage import outside_functions
from pulsetrain.stream.spool import segment
from pulsetrain.stream.store.body import read_body
from pulsetrain.stream.store.clickhouse import Store
from pulsetrain.stream.store.intake import Intake
from pulsetrain.stream.store.query_route import QueryRoute
from pulsetrain.stream.store.reader import ReaderConfig

MAX_BATCH_BYTES = 64 << 20

log = structlog.get_logger()

Refusal = Callable[[Request, Batch], str]
"""Why the sender of a request may not send this batch, "" where it may."""


class Pace(Protocol):
    """How soon a sender should send again."""

    async def rest(self) -> None:
        """Return when a sender whose rows are stored may be told so, and send more."""
        ...

    def looked(self) -> None:
        """Somebody has asked for stored rows."""
        ...


class NoRest:
    """Answers at once."""

    async def rest(self) -> None:
        """See `Pace`."""

    def looked(self) -> None:
        """See `Pace`."""


def routes(
    store: Store,
    *,
    token: str,
    journal: Path | None = None,
    clock: Clock | None = None,
    intake: Intake | None = None,
    refusal: Refusal | None = None,
    pace: Pace | None = None,
) -> list[BaseRoute]:
    """Ingest and query routes over `store`. All but /ping require `token`.

    `intake` is started by its owner. Without one it is created and started here. All of its metrics are at
    /metrics. `journal` is a folder for batches on their way into the store. A chDB store has its own. Without
    one, a hub that is killed while it inserts may store those rows twice. `refusal` says which batches a
    sender may not send. `pace` says when those who send are answered.
    """
    pace = pace or NoRest()
    intake = intake or _start_intake(store, journal, clock or SystemClock())
    refused = frozenset(map(str, outside_functions(store).column("name").to_pylist()))
    limits = ReaderConfig.of_memory(memory_total())
    query = QueryRoute(store.reader(limits), refused, token, pace.looked, 4 * limits.max_result_bytes)

    async def ingest(request: Request) -> Response:
        if not is_authorized(request, token):
            return JSONResponse({"error": "missing or wrong token"}, 401)
        answer = await _ingest(request, intake, refusal)
        from_an_agent = "record" not in request.path_params  # it gathers rows meanwhile
        if answer.status_code == 200 and from_an_agent:
            await pace.rest()
        return answer

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


def _start_intake(store: Store, journal: Path | None, clock: Clock) -> Intake:
    folder = journal or (store.folder / "journal" if store.folder else Path(tempfile.mkdtemp("-journal")))
    intake = Intake(store, folder, clock)
    store.before_close(intake.close)
    intake.start()
    return intake


async def _ingest(request: Request, intake: Intake, refusal: Refusal | None) -> Response:
    """Store one batch of the record in the path; without a record, the entries of a segment."""
    record = request.path_params.get("record")
    try:
        body = await read_body(request, MAX_BATCH_BYTES)
        bodies = [body] if record else _entries(body)
        may = None if refusal is None else partial(refusal, request)
        results = await run_in_threadpool(_submit, intake, bodies, record, may)
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
    scan = segment.scan(body)
    if scan.torn or scan.lost_rows or scan.corrupt_regions:
        raise CorruptData("body is damaged: not every entry matches its checksum")
    return [body[entry.offset : entry.end] for entry in scan.positions]


def _submit(
    intake: Intake, bodies: list[bytes], record: str | None, refusal: Callable[[Batch], str] | None
) -> list[Future[int] | str]:
    """For each batch the future number of stored rows, or why it is refused."""
    results: list[Future[int] | str] = []
    for body in bodies:
        intake.metrics.bytes.inc(len(body))
        try:
            batch = decode(body)
            if record not in (None, batch.record):
                raise SchemaMismatch(f"batch of {batch.record} sent as {record}")  # noqa: TRY301 - one way out
            why = refusal(batch) if refusal is not None else ""
            if why:
                raise SchemaMismatch(why)  # noqa: TRY301 - one way out
            results.append(intake.submit(batch))
        except (CorruptData, SchemaMismatch) as error:
            log.warning("batch_refused", error=str(error))
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
