"""A job's spans and events as a trace that ui.perfetto.dev and chrome://tracing open.

Format: Chrome's JSON trace events (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMh4h6I0nSsKchNAySU).
A rank is a process of the trace, and a lane is one of its threads. Timestamps are microseconds since the
first span, so that a double keeps nanoseconds. `otherData.origin_ns` is the start of the first span in UTC
nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from pulsetrain.analytics.trace_flows import FlowRow, TraceEvent, flow_events, flows
from pulsetrain.core.errors import UsageError
from pulsetrain.core.whole_file import write_whole
from pulsetrain.stream.queries import views
from pulsetrain.stream.queries.queryable import Queryable

MAX_SPANS = 1_000_000
MAX_EVENTS = 1_000


class SpanRow(FlowRow):
    """A row of `views.spans`. `spans_in_all` counts the spans of the range, also beyond the limit."""

    node: str
    step: int
    microbatch: int
    bytes: int
    open: bool
    spans_in_all: int


class RankRow(TypedDict):
    """A row of `views.topology`. Mesh coordinates are -1 where they are not known."""

    rank: int
    tp: int
    pp: int
    dp: int


class EventRow(TypedDict):
    """A row of `views.events`. `rank` is -1 for an event of no rank."""

    ts_ns: int
    kind: str
    node: str
    rank: int
    actor: str
    detail: str


class TraceDocument(TypedDict):
    """The trace as Chrome's format has it."""

    displayTimeUnit: str
    otherData: Mapping[str, object]
    traceEvents: list[TraceEvent]


def export(
    store: Queryable,
    job: str,
    *,
    first: int,
    last: int,
    ranks: Sequence[int] = (),
    attempt: int | None = None,
    limit: int = MAX_SPANS,
) -> bytes:
    """Return the trace of steps `first`..`last` as JSON bytes. `ranks` empty: all ranks.

    Of a step that several attempts have done, the newest one's spans are in it, or those of `attempt`. The
    newest `MAX_EVENTS` events of that time are in it. A rank has the coordinates of the newest attempt of
    these spans. Raises `UsageError` where no span is stored in the range, or more than `limit`.
    """
    table = views.spans(store, job, ranks=ranks, first=first, last=last, limit=limit)
    spans = cast(list[SpanRow], table.to_pylist())
    if not spans:
        raise UsageError(f"job {job!r} has no spans in steps {first}:{last} on record")
    if (count := spans[0]["spans_in_all"]) > limit:
        raise UsageError(
            f"steps {first}:{last} hold {count:,} spans; allowed: {limit:,}; give fewer steps or ranks"
        )
    spans = _of_one_attempt(spans, attempt)
    if not spans:
        raise UsageError(f"job {job!r} has no spans of attempt {attempt} in steps {first}:{last} on record")
    mesh = [
        row
        for attempt in sorted({row["attempt"] for row in spans})
        for row in cast(list[RankRow], views.topology(store, job, attempt=attempt).to_pylist())
    ]
    origin, end = _extent(spans)
    newest = views.events(store, job, limit=MAX_EVENTS, from_ns=origin, to_ns=end)
    events = cast(list[EventRow], newest.to_pylist())
    return json.dumps(trace(job, spans, mesh, events), separators=(",", ":")).encode()


def export_file(
    store: Queryable,
    job: str,
    path: Path,
    *,
    first: int,
    last: int,
    ranks: Sequence[int] = (),
    attempt: int | None = None,
) -> int:
    """Write the trace to a file, as a whole or not at all, and return its bytes.

    Raises as `export`, and where it cannot write.
    """
    document = export(store, job, first=first, last=last, ranks=ranks, attempt=attempt)
    try:
        return write_whole(path, document)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def trace(
    job: str, spans: Sequence[SpanRow], mesh: Sequence[RankRow], events: Sequence[EventRow]
) -> TraceDocument:
    """Return the trace of at least one span.

    Events outside the time of the spans are left out. An open span has `open: true`. Sends and collectives
    are flows. `otherData.flows` counts them, and those that are left out because they go back in time.
    """
    origin, end = _extent(spans)
    lanes = {key: index for index, key in enumerate(sorted({(r["rank"], r["lane"]) for r in spans}))}
    found = flows(spans)
    forward = sum(flow.goes_forward for flow in found)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "job": job,
            "origin_ns": origin,
            "source": "pulsetrain",
            "flows": {"drawn": forward, "left_out": len(found) - forward},
        },
        "traceEvents": [
            *_names(lanes, spans, mesh),
            *(_span(row, origin, lanes) for row in spans),
            *flow_events(found, origin, lambda row: lanes[row["rank"], row["lane"]]),
            *(_event(row, origin) for row in events if origin <= row["ts_ns"] <= end),
        ],
    }


def _of_one_attempt(spans: Sequence[SpanRow], attempt: int | None) -> list[SpanRow]:
    """Of each step the spans of one attempt: steps that were done again ran elsewhere the second time."""
    newest: dict[int, int] = {}
    for row in spans:
        newest[row["step"]] = max(row["attempt"], newest.get(row["step"], -1))
    return [r for r in spans if r["attempt"] == (newest[r["step"]] if attempt is None else attempt)]


def _extent(spans: Sequence[SpanRow]) -> tuple[int, int]:
    """Return when the first span began and the last one ended, UTC nanoseconds."""
    ends = (row["start_ns"] + row["duration_ns"] for row in spans)
    return min(row["start_ns"] for row in spans), max(ends)


def _names(
    lanes: Mapping[tuple[int, str], int], spans: Sequence[SpanRow], mesh: Sequence[RankRow]
) -> Iterable[TraceEvent]:
    """Yield metadata that names each rank with its node and mesh coordinates, and each lane."""
    nodes = {row["rank"]: row["node"] for row in spans}
    coordinates = {r["rank"]: f" · tp{r['tp']} pp{r['pp']} dp{r['dp']}" for r in mesh if r["tp"] >= 0}
    for rank, node in sorted(nodes.items()):
        name = f"rank {rank} · {node}{coordinates.get(rank, '')}"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for (rank, lane), index in lanes.items():
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": index, "args": {"name": lane}}


def _span(row: SpanRow, origin: int, lanes: Mapping[tuple[int, str], int]) -> TraceEvent:
    arguments: dict[str, object] = {"step": row["step"], "attempt": row["attempt"], "node": row["node"]}
    if row["microbatch"] >= 0:
        arguments["microbatch"] = row["microbatch"]
    if row["group"]:
        arguments |= {"group": row["group"], "seq": row["seq"], "bytes": row["bytes"]}
    if row["peer"] >= 0:
        arguments["peer"] = row["peer"]
    if row["open"]:
        arguments["open"] = True
    return {
        "ph": "X",
        "name": row["phase"],
        "cat": row["category"],
        "pid": row["rank"],
        "tid": lanes[row["rank"], row["lane"]],
        "ts": (row["start_ns"] - origin) / 1e3,
        "dur": row["duration_ns"] / 1e3,
        "args": arguments,
    }


def _event(row: EventRow, origin: int) -> TraceEvent:
    """Return an instant across the whole trace, such as a restart or an eviction."""
    return {
        "ph": "i",
        "s": "g",
        "name": f"{row['kind']} {row['node']}".strip(),
        "cat": "event",
        "pid": max(row["rank"], 0),
        "tid": 0,
        "ts": (row["ts_ns"] - origin) / 1e3,
        "args": {"actor": row["actor"], "detail": row["detail"]},
    }
