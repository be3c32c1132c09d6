"""Profiles of several ranks as one trace."""

import base64
import gzip
import json

import pytest

from pulsetrain.analytics import profile_merge
from pulsetrain.analytics.profile_merge import merge, pack, unpack
from pulsetrain.core.errors import CorruptData


def profile(base_ns, *events):
    return {"baseTimeNanoseconds": base_ns, "traceEvents": list(events)}


def op(ts, pid=7, **more):
    return {"ph": "X", "pid": pid, "tid": 1, "ts": ts, "dur": 1, "name": "op", **more}


def test_ranks_are_on_one_axis_that_begins_with_the_first_event():
    trace = merge({1: profile(2_000_000, op(5.0)), 0: profile(1_000_000, op(7.0), op(9.0))})
    assert [(e["pid"], e["ts"]) for e in trace["traceEvents"]] == [(0, 0.0), (0, 2.0), (1000, 998.0)]
    assert trace["baseTimeNanoseconds"] == 1_007_000


def test_each_process_of_each_rank_has_its_own_tracks_that_name_the_rank():
    named = {"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "python"}}
    unused = {"ph": "M", "pid": 99, "name": "process_name", "args": {"name": "idle"}}
    trace = merge({2: profile(0, op(1.0), op(2.0, pid="Spans"), named, unused)})
    assert [e["pid"] for e in trace["traceEvents"]] == [2000, 2001, 2000]
    assert trace["traceEvents"][2]["args"] == {"name": "rank 2 · python"}


def test_what_an_id_ties_together_stays_within_its_rank():
    flow = {"ph": "s", "id": 5, "pid": 7, "tid": 1, "ts": 1.0, "name": "f"}
    trace = merge({0: profile(0, flow), 1: profile(0, flow)})
    assert [e["id"] for e in trace["traceEvents"]] == ["0:5", "1:5"]


def test_what_is_packed_is_what_was_merged():
    trace = merge({0: profile(0, op(1.0))})
    assert json.loads(gzip.decompress(pack(trace))) == trace


@pytest.mark.parametrize(
    "data",
    [b"", b"no gzip", gzip.compress(b"no json"), gzip.compress(b"[]")],
    ids=["empty", "no gzip", "no JSON", "no object"],  # gzip writes the time, and workers compare ids
)
def test_what_is_no_profile_is_refused(data):
    with pytest.raises(CorruptData, match="not a profile"):
        unpack(base64.b64encode(data).decode())
    with pytest.raises(CorruptData, match="not a profile"):
        unpack("!")


def test_no_more_of_a_profile_is_unpacked_than_a_profile_has(monkeypatch):
    monkeypatch.setattr(profile_merge, "MAX_PROFILE_BYTES", 1000)
    fits = json.dumps({"traceEvents": [], "x": ""}).encode().ljust(1000)
    assert unpack(base64.b64encode(gzip.compress(fits)).decode())["traceEvents"] == []
    with pytest.raises(CorruptData, match="larger than 1000 bytes"):
        unpack(base64.b64encode(gzip.compress(fits + b" ")).decode())
