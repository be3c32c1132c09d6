"""The queries of the pages that explore, over a real store."""

from __future__ import annotations

import pytest

from pulsetrain.stream.queries import explore, past, views
from pulsetrain.stream.queries.explore import LogFilter
from pulsetrain.stream.store.clickhouse import open_store
from tests.dashboard.recorded_job import RecordedJob, S, table

NOW = 1_790_000_000 * S
DURING = {"from_ns": NOW - 3600 * S, "to_ns": NOW}
LONG_AGO = NOW - 7200 * S


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('explore') / 'store'}")
    opened.migrate()
    for record, rows in RecordedJob(now_ns=NOW).tables().items():
        opened.insert(record, rows)
    logs = [
        {"ts": NOW - (60 - i) * S, "node": "node-0", "job": "gpt", "attempt": 1, "rank": i % 2,
         "source": "stderr", "severity": "error" if i % 10 == 0 else "info", "message": f"line {i}"}
        for i in range(40)
    ]  # fmt: skip
    logs.append({"ts": NOW - S, "node": "node-0", "rank": -1, "source": "kmsg", "severity": "warning",
                 "message": "NVRM: Xid 79"})  # fmt: skip
    logs.append({"ts": NOW - S, "node": "elsewhere", "rank": -1, "source": "kmsg", "severity": "warning",
                 "message": "NVRM: Xid 79"})  # fmt: skip
    logs.append({"ts": LONG_AGO, "node": "node-1", "rank": -1, "source": "kmsg", "severity": "warning",
                 "message": "NVRM: Xid 48"})  # fmt: skip
    opened.insert("logs", table("logs", logs))
    metrics = [
        {
            "node": node,
            "device": "",
            "name": "net_rx_bytes",
            "ts": NOW - i * S,
            "value": float(i * (place + 1)),
        }
        for i in range(300)
        for place, node in enumerate(("node-0", "node-3"))
    ]
    opened.insert("metrics", table("metrics", metrics))
    yield opened
    opened.close()


def lines(store, **changes):
    return explore.log_lines(store, "gpt", LogFilter(**{**DURING, **changes})).to_pylist()


def test_lines_of_the_job_and_of_its_nodes_kernels_newest_first(store):
    found = lines(store)
    assert len(found) == found[0]["lines_in_all"] == 41
    assert found[0]["message"] == "NVRM: Xid 79"
    assert {row["node"] for row in found} == {"node-0"}


def test_lines_of_a_node_that_was_replaced_are_still_found_also_by_the_rank_that_it_had(store):
    for ranks in ((), (2,)):
        (line,) = lines(store, from_ns=LONG_AGO - S, to_ns=LONG_AGO + S, ranks=ranks)
        assert (line["node"], line["message"]) == ("node-1", "NVRM: Xid 48")


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"ranks": (1,)}, 21),
        ({"ranks": (7,)}, 0),
        ({"ranks": (1,), "source": "stderr"}, 20),
        ({"ranks": (1,), "source": "kmsg"}, 1),
        ({"text": "LINE 3"}, 11),
        ({"severities": ("error", "critical")}, 4),
        ({"source": "kmsg"}, 1),
        ({"node": "node-3"}, 0),
        ({"limit": 5}, 5),
    ],
)
def test_lines_are_filtered(store, wanted, count):
    assert len(lines(store, **wanted)) == count


def test_counters_are_listed_and_binned(store):
    (name,) = explore.metric_names(store, "gpt", **DURING).to_pylist()
    assert (name["name"], name["nodes"], name["samples"]) == ("net_rx_bytes", 2, 600)
    series = explore.metric_series(store, "gpt", name="net_rx_bytes", points=36, **DURING).to_pylist()
    assert [series[0]["node"], series[0]["series_in_all"]] == ["node-3", 2]
    assert len(series) <= 2 * 37
    (newest,) = explore.node_counters(store, "node-3", **DURING).to_pylist()
    assert newest["value"] == 0.0
    assert name["counted_ns"] == DURING["from_ns"]


def test_of_many_nodes_the_end_of_the_time_is_counted_and_compared(store, monkeypatch):
    job = RecordedJob(now_ns=NOW)
    during = {"from_ns": job.began_ns, "to_ns": job.now_ns}
    monkeypatch.setattr(explore, "_FULL_NODES", 1)
    monkeypatch.setattr(explore, "_FULL_NS", (during["to_ns"] - during["from_ns"]) // 2)
    (part,) = explore.metric_names(store, "gpt", **during).to_pylist()
    (whole,) = explore.metric_names(store, "gpt", **during, whole=True).to_pylist()
    assert part["counted_ns"] > whole["counted_ns"] == during["from_ns"]
    assert 0 < part["samples"] < whole["samples"]
    drawn = explore.metric_series(store, "gpt", name="net_rx_bytes", **during).to_pylist()
    assert min(row["ts_ns"] for row in drawn) < part["counted_ns"]
    (one,) = explore.metric_names(store, "gpt", **during, nodes=("node-0",)).to_pylist()
    assert (one["nodes"], one["counted_ns"] < part["counted_ns"]) == (1, True)


@pytest.mark.parametrize(
    ("chosen", "nodes"),
    [
        ({"nodes": ("node-0",)}, 1),
        ({"ranks": (6,)}, 1),
        ({"nodes": ("node-0",), "ranks": (6, 7)}, 2),
        ({"nodes": ("elsewhere",)}, 0),
        ({"ranks": (2,)}, 0),
    ],
)
def test_counters_of_chosen_nodes_and_of_the_nodes_of_ranks(store, chosen, nodes):
    names = explore.metric_names(store, "gpt", **DURING, **chosen).to_pylist()
    assert [row["nodes"] for row in names] == [nodes] * bool(nodes)
    series = explore.metric_series(store, "gpt", name="net_rx_bytes", **DURING, **chosen).to_pylist()
    assert len({row["node"] for row in series}) == nodes


def test_the_steps_that_began_in_a_time(store):
    job = RecordedJob(now_ns=NOW)
    second = {"from_ns": job.began_ns, "to_ns": job.began_ns + S}
    assert explore.steps_during(store, "gpt", **second).to_pylist() == [
        {"first_step": 0, "last_step": 4, "newest_step": 4}
    ]
    assert explore.steps_during(store, "gpt", from_ns=0, to_ns=S).to_pylist() == []


def test_history_events_and_checkpoints_of_a_time(store):
    job = RecordedJob(now_ns=NOW)
    first = {"from_ns": job.began_ns, "to_ns": job.began_ns + 10 * S}
    steps = [row["step"] for row in views.curve(store, "gpt", **first).to_pylist()]
    assert (steps[0], steps[-1], len(steps)) == (0, 41, 42)
    everything = views.events(store, "gpt").to_pylist()
    early = views.events(store, "gpt", **first).to_pylist()
    assert early == [event for event in everything if event["ts_ns"] <= first["to_ns"]] != everything
    saved = views.checkpoints(store, "gpt").to_pylist()
    until = sorted(row["ts_ns"] for row in saved)[len(saved) // 2]
    earlier = views.checkpoints(store, "gpt", from_ns=job.began_ns, to_ns=until).to_pylist()
    assert 0 < len(earlier) < len(saved) + 1
    assert {row["ts_ns"] <= until for row in earlier} == {True}


def test_single_steps_are_looked_up_in_every_attempt(store):
    rows = explore.step_starts(store, "gpt", (0, 79, 500)).to_pylist()
    assert [(row["attempt"], row["step"]) for row in rows] == [(0, 0), (0, 79), (1, 79)]
    assert rows[2]["ts_ns"] > rows[1]["ts_ns"]


def test_events_by_kind_and_text(store):
    kinds = explore.event_kinds(store, "gpt", **DURING).to_pylist()
    assert {"kind": "attempt_started", "times": 2} in kinds
    found = explore.event_lines(store, "gpt", text="node-1", **DURING).to_pylist()
    assert [row["kind"] for row in found] == ["recovery", "node_lost"]
    assert len(explore.event_lines(store, "gpt", kind="recovery", **DURING).to_pylist()) == 1


def test_a_slow_rank_stands_above_its_stage(store):
    rows = explore.work_beside_cohort(store, "gpt", ranks=(4, 6), first=100, last=119).to_pylist()
    slow = [row["work_ns"] / row["usual_ns"] for row in rows if row["rank"] == 4]
    assert len(slow) == 20
    assert min(slow) > 1.3
    assert {row["cohort"] for row in rows} == {4}


def test_a_rank_without_a_place_is_beside_all_ranks_without_one(store):
    spans = [
        {"job": "unplaced", "node": "n", "rank": rank, "step": 1, "phase": "forward", "category": "compute",
         "lane": "host", "start": NOW, "duration_ns": 10 + rank}
        for rank in range(4)
    ]  # fmt: skip
    store.insert("spans", table("spans", spans))
    (row,) = explore.work_beside_cohort(store, "unplaced", ranks=(3,), first=1, last=1).to_pylist()
    assert (row["work_ns"], row["usual_ns"], row["cohort"]) == (13, 11, 4)


def test_checkpoints_of_a_rank(store):
    rows = explore.rank_checkpoints(store, "gpt", 3).to_pylist()
    assert {(row["tier"], row["stage"]): row["newest"] for row in rows}["peer", "replicate"] == 119


def test_checkpoints_of_the_ranks_of_a_node(store):
    rows = explore.node_checkpoints(store, "gpt", (2, 3)).to_pylist()
    peer = next(row for row in rows if (row["tier"], row["stage"]) == ("peer", "replicate"))
    assert (peer["ranks"], peer["newest"]) == (2, 119)
    assert explore.node_checkpoints(store, "gpt", (99,)).to_pylist() == []


def test_after_a_job_went_back_its_new_attempt_is_shown(store):
    saved = [
        {"job": "back", "attempt": attempt, "step": step, "stage": "copy", "tier": "memory", "rank": rank,
         "bytes": 1000 * attempt + step, "duration_ns": 5, "ts": NOW + (1000 * attempt + step) * S}
        for attempt, steps in ((0, range(200, 501)), (1, range(100, 121))) for step in steps
        for rank in (0, 1)
    ]  # fmt: skip
    store.insert("checkpoints", table("checkpoints", saved))
    shown = views.checkpoints(store, "back", steps=30).to_pylist()
    assert [(r["attempt"], r["step"]) for r in shown[:21]] == [(1, step) for step in range(120, 99, -1)]
    assert [(r["attempt"], r["step"]) for r in shown[21:]] == [(0, step) for step in range(500, 491, -1)]
    (row,) = explore.rank_checkpoints(store, "back", 1).to_pylist()
    assert (row["newest"], row["in_attempt"], row["size"]) == (120, 1, 1120)
    (row,) = explore.node_checkpoints(store, "back", (0, 1)).to_pylist()
    assert (row["newest"], row["size"], row["ranks"]) == (120, 2240, 2)


def test_the_gpus_of_a_node_are_those_it_listed_last(store):
    assert explore.node_gpus(store, "listed").to_pylist() == []
    told = [
        {"ts": NOW - age * S, "node": "listed", "kind": "gpus", "actor": "agent", "detail": detail}
        for age, detail in ((9, "old"), (1, "new"), (5, "older"))
    ]
    store.insert("events", table("events", told))
    assert explore.node_gpus(store, "listed").to_pylist() == [{"detail": "new"}]


def test_jobs_that_do_not_run(store):
    (job,) = past.stored_jobs(store).to_pylist()
    assert (job["job"], job["attempt"], job["last_step"], job["ranks"]) == ("gpt", 1, 119, 8)
    assert [end["kind"] for end in past.job_ends(store).to_pylist()] == ["attempt_started"]
    assert [f["kind"] for f in past.recorded_findings(store).to_pylist()] == ["hang", "straggler"]
    nodes = past.job_nodes(store, "gpt").to_pylist()
    assert [(node["node"], list(node["ranks"])) for node in nodes][1] == ("node-4", [2, 3])
    assert [node["node"] for node in past.gone_nodes(store, "gpt").to_pylist()] == ["node-1"]


def test_jobs_are_looked_up_by_one_reading_of_the_steps_on_one_thread(store):
    asked = []

    class Noted:
        def query(self, sql, params=None):
            asked.append(sql)
            return store.query(sql, params)

    assert past.stored_jobs(Noted()).num_rows == 1
    assert sum(sql.count("FROM steps") for sql in asked) == 1
    assert all(sql.endswith("SETTINGS max_threads = 1") for sql in asked)


def test_a_job_without_steps_is_on_record_as_it_started(store):
    begun = {"ts": NOW - 5 * S, "job": "stepless", "attempt": 2, "kind": "attempt_started", "detail": "{}"}
    store.insert("events", table("events", [begun]))
    newest, older = past.stored_jobs(store).to_pylist()
    assert (newest["job"], newest["attempt"], newest["last_step"]) == ("stepless", 2, -1)
    assert (newest["last_ns"], older["job"]) == (NOW - 5 * S, "gpt")
    assert past.stored_jobs(store, limit=1).num_rows == 1


def test_findings_are_recalled_by_age_and_all_of_jobs_that_run_or_are_recordings(store):
    def found(job, age_s, **changes):
        row = {"ts": NOW - age_s * S, "job": job, "kind": f"{job}-{age_s}", "evidence": "{}"}
        return row | changes

    rows = [found(job, age_s) for job in ("over", "runs", "judged") for age_s in (10, 1000, 2000)]
    store.insert("findings", table("findings", rows))
    store.insert("events", table("events", [{"ts": NOW, "job": "judged", "kind": "judged", "detail": "{}"}]))

    def kinds(**limits):
        found = past.recorded_findings(store, **limits).to_pylist()
        return [f["kind"] for f in found if f["job"] in ("over", "runs", "judged")]

    of_recording = ["judged-10", "judged-1000", "judged-2000"]
    of_run = ["runs-10", "runs-1000", "runs-2000"]
    lately = kinds(since_ns=NOW - 500 * S, running={"runs"})
    assert [k for k in lately if k in of_recording] == of_recording
    assert [k for k in lately if k in of_run] == of_run
    assert [k for k in lately if k.startswith("over")] == ["over-10"]
    assert kinds(since_ns=NOW - 500 * S, most_of_job=1) == ["judged-10", "over-10", "runs-10"]
    assert kinds(since_ns=0, running={"runs"}, most_of_job=1, most=2) == ["judged-10", "runs-10"]
