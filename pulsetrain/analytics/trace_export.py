"""A job's spans and events as a trace that ui.perfetto.dev and chrome://tracing open.

Format: Chrome's JSON trace events (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMh4h6I0nSsKchNAySU).
A rank is a process, a lane its thread. Timestamps are microseconds since the first span, so that a double
keeps nanoseconds; `otherData.origin_ns` is that moment in UTC nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pulsetrain.core.errors import UsageError
from pulsetrain.stream.queries import views
from pulsetrain.stream.queries.queryable import Queryable

Row = Mapping[str, Any]
MAX_SPANS = 1_000_000


def export(
    store: Queryable, job: str, *, first: int, last: int, ranks: Sequence[int] = (), limit: int = MAX_SPANS
) -> bytes:
    """The trace of steps `first`..`last` of `ranks` (none: all) as JSON bytes.

    Raises `UsageError` where no span is on record there, or where there are more than `limit`.
    """
    rows = views.spans(store, job, ranks=ranks, first=first, last=last, limit=limit).to_pylist()
    if not rows:
        raise UsageError(f"job {job!r} has no spans in steps {first}:{last} on record")
    if rows[0]["spans_in_all"] > limit:
        raise UsageError(
            f"steps {first}:{last} hold {rows[0]['spans_in_all']:,} spans; allowed: {limit:,}; "
            "give fewer steps or ranks"
        )
    places = views.topology(store, job).to_pylist()
    happened = views.events(store, job, limit=1000).to_pylist()
    return json.dumps(trace(job, rows, places, happened), separators=(",", ":")).encode()


def export_file(
    store: Queryable, job: str, path: Path, *, first: int, last: int, ranks: Sequence[int] = ()
) -> int:
    """As `export`, into a file; returns its bytes. Raises `UsageError` where it cannot be written."""
    document = export(store, job, first=first, last=last, ranks=ranks)
    try:
        return path.write_bytes(document)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def trace(job: str, spans: Sequence[Row], places: Sequence[Row], events: Sequence[Row]) -> dict[str, Any]:
    """The trace document. Events outside the time of the spans are left out; an open span carries `open:
    true`."""
    origin = min(row["start_ns"] for row in spans)
    end = max(row["start_ns"] + row["duration_ns"] for row in spans)
    lanes = {key: index for index, key in enumerate(sorted({(r["rank"], r["lane"]) for r in spans}))}
    return {
        "displayTimeUnit": "ms",
        "otherData": {"job": job, "origin_ns": origin, "source": "pulsetrain"},
        "traceEvents": [
            *_names(lanes, spans, places),
            *(_span(row, origin, lanes) for row in spans),
            *(_event(row, origin) for row in events if origin <= row["ts_ns"] <= end),
        ],
    }


def _names(
    lanes: Mapping[tuple[int, str], int], spans: Sequence[Row], places: Sequence[Row]
) -> Iterable[Row]:
    """Metadata that names each rank with its node and mesh coordinates, and each lane."""
    nodes = {row["rank"]: row["node"] for row in spans}
    mesh = {p["rank"]: f" · tp{p['tp']} pp{p['pp']} dp{p['dp']}" for p in places if p["tp"] >= 0}
    for rank, node in sorted(nodes.items()):
        name = f"rank {rank} · {node}{mesh.get(rank, '')}"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for (rank, lane), index in lanes.items():
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": index, "args": {"name": lane}}


def _span(row: Row, origin: int, lanes: Mapping[tuple[int, str], int]) -> Row:
    arguments: dict[str, Any] = {"step": row["step"], "attempt": row["attempt"]}
    if row["microbatch"] >= 0:
        arguments["microbatch"] = row["microbatch"]
    if row["group"]:
        arguments |= {"group": row["group"], "seq": row["seq"], "bytes": row["bytes"]}
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


def _event(row: Row, origin: int) -> Row:
    """An instant across the whole trace, as a restart or an eviction is."""
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
