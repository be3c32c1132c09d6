"""A job's spans and events as a trace for ui.perfetto.dev."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pytest

from pulsetrain.analytics.trace_export import export, export_file, trace
from pulsetrain.core.errors import UsageError

MESH = {"rank": 0, "tp": 1, "pp": 0, "dp": 3}


def span(start=0, length=10, rank=0, **values):
    return {
        "attempt": 1, "node": "n0", "rank": rank, "step": 3, "microbatch": -1, "phase": "forward",
        "category": "compute",
        "lane": "host", "group": "", "seq": -1, "parent": "", "bytes": 0, "start_ns": start,
        "duration_ns": length,
        "open": False, "peer": -1, "spans_in_all": 1, **values,
    }  # fmt: skip


class FakeStore:
    """Answers with the same spans to every question for spans, and with nothing else."""

    def __init__(self, *spans):
        self.spans = pa.Table.from_pylist(list(spans))

    def query(self, sql, params=None):
        return self.spans if "FROM spans" in sql else pa.table({"rank": pa.array([], pa.int64())})


def test_a_trace_keeps_nanoseconds_and_names_ranks():
    start = 1_700_000_000_123_456_789
    rows = [span(start=start), span(start=start + 1, length=2_000_001, rank=1, open=True, group="tp", seq=7)]
    document = trace("gpt", rows, [MESH], [])
    assert document["otherData"]["origin_ns"] == start
    names = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert names == {0: "rank 0 · n0 · tp1 pp0 dp3", 1: "rank 1 · n0"}
    spans = [e for e in json.loads(json.dumps(document))["traceEvents"] if e["ph"] == "X"]
    assert [(s["ts"], s["dur"]) for s in spans] == [(0.0, 0.01), (0.001, 2000.001)]
    assert spans[1]["args"] == {
        "step": 3, "attempt": 1, "node": "n0", "group": "tp", "seq": 7, "bytes": 0, "open": True,
    }  # fmt: skip


def test_a_trace_has_the_events_of_its_time_only():
    eviction = {"kind": "evict", "node": "n1", "rank": -1, "actor": "ann", "detail": "{}"}
    events = [{**eviction, "ts_ns": 5}, {**eviction, "ts_ns": 500}]
    document = trace("gpt", [span(length=10)], [], events)
    assert [e["name"] for e in document["traceEvents"] if e["ph"] == "i"] == ["evict n1"]


def test_each_lane_of_each_rank_is_a_thread_of_its_own():
    rows = [span(), span(lane="stream 7"), span(rank=1)]
    document = trace("gpt", rows, [], [])
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }
    assert threads == {(0, 0): "host", (0, 1): "stream 7", (1, 2): "host"}


def test_sends_and_collectives_are_flows_inside_their_spans():
    common = {"category": "communication", "group": "pp", "seq": 1}
    rows = [
        span(100, 40, 0, phase="send", peer=1, **common),
        span(90, 80, 1, phase="recv", peer=0, **common),
        span(200, 10, 0, phase="all_reduce", **common),
        span(205, 5, 1, phase="all_reduce", **common),
        span(500, 10, 1, phase="recv", peer=0, **{**common, "seq": 2}),
        span(600, 10, 0, phase="send", peer=1, **{**common, "seq": 2}),
    ]
    document = trace("gpt", rows, [], [])
    assert document["otherData"]["flows"] == {"drawn": 2, "left_out": 1}
    spans = {
        (e["pid"], e["tid"], e["name"]): e
        for e in document["traceEvents"]
        if e["ph"] == "X" and e["ts"] < 0.4
    }
    ends = {"s": "send", "f": "recv"}
    flows = [e for e in document["traceEvents"] if e["ph"] in "sf"]
    assert len(flows) == 4
    for flow in flows:
        name = ends[flow["ph"]] if flow["name"] == "send" else "all_reduce"
        around = spans[flow["pid"], flow["tid"], name]
        assert around["ts"] <= flow["ts"] < around["ts"] + around["dur"]
    assert spans[0, 0, "send"]["args"]["peer"] == 1


def test_a_microbatch_is_named_where_there_is_one():
    first, second = trace("gpt", [span(), span(microbatch=2)], [], [])["traceEvents"][-2:]
    assert "microbatch" not in first["args"]
    assert second["args"]["microbatch"] == 2


def test_ranks_of_no_mesh_have_no_coordinates():
    document = trace("gpt", [span()], [{**MESH, "tp": -1}], [])
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0 · n0"]


def test_of_steps_that_were_done_again_the_newest_attempt_is_shown_and_another_on_request():
    store = FakeStore(
        span(attempt=0, node="n-old"), span(attempt=1, start=5, node="n-new"), span(step=4, attempt=0)
    )

    def shown(**chosen):
        document = json.loads(export(store, "gpt", first=3, last=4, **chosen))
        spans = [e["args"] for e in document["traceEvents"] if e["ph"] == "X"]
        return sorted((a["step"], a["attempt"], a["node"]) for a in spans)

    assert shown() == [(3, 1, "n-new"), (4, 0, "n0")]
    assert shown(attempt=0) == [(3, 0, "n-old"), (4, 0, "n0")]
    with pytest.raises(UsageError, match="no spans of attempt 7 in steps 3:4"):
        shown(attempt=7)


def test_steps_without_spans_are_one_clear_line():
    store = FakeStore()
    with pytest.raises(UsageError, match="job 'gpt' has no spans in steps 5:6 on record"):
        export(store, "gpt", first=5, last=6)


def test_more_spans_than_allowed_are_refused_with_their_number():
    store = FakeStore(span(spans_in_all=2_000_000))
    with pytest.raises(UsageError, match="steps 5:6 hold 2,000,000 spans; allowed: 1,000,000"):
        export(store, "gpt", first=5, last=6)


class LongJob(FakeStore):
    """A job with very many later events, and another mesh in each attempt."""

    def query(self, sql, params=None):
        if "FROM events" in sql:
            times = [5, *range(1_000, 5_000)]
            within = [t for t in times if params["from_ns"] <= t <= (params["to_ns"] or times[-1])]
            row = {"kind": "restart", "node": "n0", "rank": -1, "actor": "hub", "detail": "{}"}
            return pa.Table.from_pylist([row | {"ts_ns": t} for t in within[-params["limit"] :]])
        if "FROM topology" in sql:
            return pa.Table.from_pylist([MESH | {"tp": params["attempt"]}])
        return super().query(sql, params)


def test_a_trace_of_long_ago_has_the_events_and_the_mesh_of_its_time():
    document = json.loads(export(LongJob(span(attempt=1), span(attempt=2, start=2)), "gpt", first=0, last=3))
    assert [e["name"] for e in document["traceEvents"] if e["ph"] == "i"] == ["restart n0"]
    (name,) = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert name == "rank 0 · n0 · tp2 pp0 dp3"


def test_a_file_has_what_was_exported(tmp_path):
    store, path = FakeStore(span()), tmp_path / "gpt.json"
    size = export_file(store, "gpt", path, first=3, last=3)
    assert path.read_bytes() == export(store, "gpt", first=3, last=3)
    assert size == path.stat().st_size
    assert json.loads(path.read_text())["otherData"]["job"] == "gpt"


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write .*missing"):
        export_file(FakeStore(span()), "gpt", tmp_path / "missing" / "gpt.json", first=3, last=3)


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, os.strerror(28))

    path = tmp_path / "gpt.json"
    path.write_text("old")
    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(UsageError, match="No space left"):
        export_file(FakeStore(span()), "gpt", path, first=3, last=3)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
