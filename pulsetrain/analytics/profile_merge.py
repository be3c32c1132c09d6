"""One trace of the profiles of several ranks, for ui.perfetto.dev. Pure.

torch.profiler writes one file in Chrome's trace format for each process. Its times are relative to a moment
that the file tells (`baseTimeNanoseconds`). Here all are put on one axis, by the clocks of their machines.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Mapping

from pulsetrain.core.errors import CorruptData
from pulsetrain.core.json import JsonObject

MAX_PROFILE_BYTES = 1 << 29
"""of the profile of one rank without its compression"""
PIDS = 1000  # for each rank, so that no two ranks share one
_TIED = ("s", "t", "f", "b", "e", "n")  # kinds of events that an id ties together


def unpack(trace: str) -> JsonObject:
    """The profile of one rank, as agents send it: gzipped JSON in base64. Raises `CorruptData`."""
    try:
        with gzip.open(io.BytesIO(base64.b64decode(trace, validate=True))) as file:
            text = file.read(MAX_PROFILE_BYTES + 1)
        if len(text) > MAX_PROFILE_BYTES:
            raise CorruptData(f"not a profile: it is larger than {MAX_PROFILE_BYTES} bytes")
        profile = json.loads(text)
    except (ValueError, OSError, EOFError, binascii.Error, zlib.error) as error:
        raise CorruptData(f"not a profile: {error}") from error
    if not isinstance(profile, dict) or not isinstance(profile.get("traceEvents"), list):
        raise CorruptData("not a profile: it has no traceEvents")
    return profile


def packed(traces: Mapping[str, str]) -> tuple[tuple[int, ...], bytes]:
    """The ranks of `traces`, as the hub answers, and one packed trace of them all. b"" where there is none.

    Raises `CorruptData` where a rank sent something else than a profile.
    """
    profiles = {int(rank): unpack(trace) for rank, trace in traces.items()}
    return tuple(sorted(profiles)), pack(merge(profiles)) if profiles else b""


def merge(profiles: Mapping[int, JsonObject]) -> JsonObject:
    """The events of all ranks in one trace. `profiles` are by rank. Each rank's processes are its own.

    >>> one = {"baseTimeNanoseconds": 5000, "traceEvents": [{"ph": "X", "pid": 7, "ts": 2.0, "name": "op"}]}
    >>> other = {**one, "baseTimeNanoseconds": 9000}
    >>> [(e["pid"], e["ts"]) for e in merge({0: one, 3: other})["traceEvents"] if e["ph"] == "X"]
    [(0, 0.0), (3000, 4.0)]
    """
    starts = [_absolute_us(profile, event) for profile in profiles.values() for event in _timed(profile)]
    origin_us = min(starts, default=0.0)
    events: list[JsonObject] = []
    for rank, profile in sorted(profiles.items()):
        events += _of_rank(rank, profile, origin_us)
    return {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": int(origin_us * 1e3)}


def pack(trace: JsonObject) -> bytes:
    """The trace as gzipped JSON, which ui.perfetto.dev opens."""
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), compresslevel=6, mtime=0)


def _timed(profile: JsonObject) -> Iterable[JsonObject]:
    return (e for e in profile["traceEvents"] if isinstance(e, dict) and e.get("ph") != "M" and "ts" in e)


def _absolute_us(profile: JsonObject, event: JsonObject) -> float:
    return float(event["ts"]) + float(profile.get("baseTimeNanoseconds") or 0) / 1e3


def _of_rank(rank: int, profile: JsonObject, origin_us: float) -> list[JsonObject]:
    pids: dict[object, int] = {}

    def pid_of(event: JsonObject) -> int:
        return pids.setdefault(event.get("pid", 0), rank * PIDS + len(pids))

    events = []
    for event in _timed(profile):
        moved = {**event, "pid": pid_of(event), "ts": round(_absolute_us(profile, event) - origin_us, 3)}
        if event.get("ph") in _TIED and "id" in event:
            moved["id"] = f"{rank}:{event['id']}"
        events.append(moved)
    names = [e for e in profile["traceEvents"] if isinstance(e, dict) and e.get("ph") == "M"]
    for event in names:
        if event.get("pid", 0) not in pids:
            continue
        args = event.get("args") or {}
        if event.get("name") == "process_name":
            args = {"name": f"rank {rank} · {args.get('name', '')}"}
        elif event.get("name") == "process_sort_index":
            args = {"sort_index": pid_of(event)}
        events.append({**event, "pid": pid_of(event), "args": args})
    return events
