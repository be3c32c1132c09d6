"""The dashboard's queries over a real store, through the hub's query route."""

from __future__ import annotations

import json

import pytest

from pulsetrain.analytics.trace_export import export, export_file
from pulsetrain.core.errors import UsageError
from pulsetrain.records.findings import recorded
from pulsetrain.stream.queries import explore, past, views
from pulsetrain.stream.store.clickhouse import open_store
from tests.dashboard.hub_process import fake_hub
from tests.dashboard.recorded_job import MS, S, table

pytestmark = pytest.mark.integration

T0 = 1_790_000_000 * S


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with fake_hub(tmp_path_factory.mktemp("hub") / "store") as address:
        yield address


@pytest.fixture(scope="module")
def store(hub):
    opened = open_store(hub.url, token=hub.token)
    yield opened
    opened.close()


@pytest.fixture
def empty(tmp_path):
    opened = open_store(f"chdb://{tmp_path / 'store'}")
    opened.migrate()
    yield opened
    opened.close()


def rows(table):
    return table.to_pylist()


def test_jobs_and_attempts(store):
    (job,) = rows(views.jobs(store))
    assert (job["job"], job["attempts"], job["first_step"], job["last_step"], job["ranks"]) == (
        "gpt",
        2,
        0,
        119,
        8,
    )
    assert views.last_attempt(store, "gpt") == 1
    assert views.last_attempt(store, "never seen") == -1


def step(job, attempt, number, rank=0, at_s=0, **fields):
    start = T0 + at_s * 1000 * MS
    return {
        "job": job,
        "attempt": attempt,
        "rank": rank,
        "step": number,
        "start": start,
        "duration_ns": MS,
        **fields,
    }


def test_the_newest_steps_are_those_of_the_newest_attempt(empty):
    before = [step("j", 0, number, rank, at_s=number) for number in range(90, 101) for rank in range(4)]
    after = [step("j", 1, number, rank, at_s=100 + number) for number in range(95, 98) for rank in range(2)]
    empty.insert("steps", table("steps", [*before, *after]))
    (job,) = rows(views.jobs(empty))
    assert (job["attempts"], job["first_step"], job["last_step"], job["ranks"]) == (2, 90, 97, 2)
    asked = {"from_ns": T0, "to_ns": T0 + 1000 * 1000 * MS}
    (during,) = rows(explore.steps_during(empty, "j", **asked))
    assert (during["first_step"], during["last_step"], during["newest_step"]) == (90, 100, 97)


def test_a_job_is_heard_until_its_last_line(empty):
    empty.insert("steps", table("steps", [step("j", 0, 1)]))
    said = {
        "job": "j",
        "node": "a",
        "rank": 0,
        "ts": T0 + 600 * 1000 * MS,
        "message": "ValueError",
        "source": "stderr",
    }
    empty.insert("logs", table("logs", [said]))
    judged = {"job": "j", "kind": "judged", "ts": T0 + 9_000 * 1000 * MS, "detail": "{}"}
    empty.insert("events", table("events", [judged]))
    assert rows(views.last_heard(empty, "j")) == [{"last_ns": T0 + 600 * 1000 * MS}]
    assert rows(views.last_heard(empty, "never seen")) == [{"last_ns": 0}]


def test_a_job_that_failed_before_its_first_step_is_on_record(empty):
    started = {"job": "j", "attempt": 2, "kind": "attempt_started", "ts": T0, "detail": "{}"}
    empty.insert("events", table("events", [started]))
    (job,) = rows(past.stored_jobs(empty))
    assert (job["job"], job["attempt"], job["last_step"], job["last_ns"], job["ranks"]) == ("j", 2, -1, T0, 0)


def test_course_is_bounded_and_complete(store):
    whole = rows(views.curve(store, "gpt"))
    assert [r["step"] for r in whole if r["attempt"] == 0] == list(range(80))
    assert whole[0]["loss"] == pytest.approx(6.7)
    assert whole[0]["tokens_per_s"] == pytest.approx(2 * 512 / 0.24)  # two replicas of four ranks
    few = rows(views.curve(store, "gpt", points=10))
    assert 10 <= len(few) <= 13
    assert few[-1]["step"] == 119


class Plans:
    """Asks the store how it would answer each query, besides asking it."""

    def __init__(self, store):
        self._store, self.reads = store, set()

    def query(self, sql, params=None):
        plan = self._store.query(f"EXPLAIN {sql}", params).column("explain").to_pylist()
        self.reads |= {line.split("ReadFromMergeTree ")[1] for line in plan if "ReadFromMergeTree" in line}
        return self._store.query(sql, params)


def test_a_long_job_is_read_by_attempt_and_by_step_instead_of_by_rank(empty):
    rows_of = [step("j", 0, number, rank, at_s=number) for number in range(600) for rank in range(64)]
    empty.insert("steps", table("steps", rows_of))
    empty.command("OPTIMIZE TABLE steps FINAL")
    plans = Plans(empty)
    views.jobs(plans)
    past.stored_jobs(plans)
    assert plans.reads & {"(by_attempt)", "(default.steps)"} == {"(by_attempt)"}
    plans.reads.clear()
    for during, length in (({}, 300), ({"from_ns": T0, "to_ns": T0 + 300 * S}, 301)):
        curve = rows(views.curve(plans, "j", **during))
        assert len(curve) == length
        assert plans.reads & {"(by_step)", "(default.steps)"} == {"(by_step)"}
    assert [curve[0]["step"], curve[-1]["step"]] == [0, 300]
    plans.reads.clear()
    during = explore.steps_during(plans, "j", from_ns=T0 + 3 * S, to_ns=T0 + 400 * S)
    assert rows(during) == [{"first_step": 3, "last_step": 400, "newest_step": 400}]
    assert plans.reads & {"(by_step)", "(default.steps)"} == {"(by_step)"}


@pytest.mark.parametrize("stride", [1, 1000])
def test_of_a_very_long_job_the_curve_reads_some_steps_and_the_newest(empty, stride, monkeypatch):
    monkeypatch.setattr(views, "_CURVE_STEPS", 8)
    rows_of = [step("j", 0, stride * number, at_s=number, tokens=512) for number in range(4000)]
    empty.insert("steps", table("steps", rows_of))
    curve = rows(views.curve(empty, "j", points=20))
    assert 18 <= len(curve) <= 21
    assert curve[-1]["step"] == stride * 3999
    assert {row["step_ns"] for row in curve} == {MS}
    assert curve[5]["tokens_per_s"] == pytest.approx(512_000)
    starts = [row["start_ns"] for row in curve]
    assert starts == sorted(starts)


def test_events_of_chosen_kinds_newest_first(store):
    kinds = [e["kind"] for e in rows(views.events(store, "gpt", ("recovery", "attempt_started")))]
    assert kinds == ["recovery", "attempt_started", "attempt_started"]
    assert len(rows(views.events(store, "gpt"))) == 4


def test_findings_on_record_are_findings_again(store):
    found = [recorded("gpt", row) for row in rows(views.findings(store, "gpt"))]
    assert [(f.kind, f.subject_type, f.subject) for f in found] == [
        ("hang", "rank", "5"),
        ("straggler", "node", "node-2"),
    ]
    assert found[0].evidence["victims"] == [0, 1, 2, 3, 4, 6, 7]
    assert found[0].row()["ts"] == found[0].ts_ns > 10**18


def test_an_open_span_is_one_row(store):
    spans = rows(views.spans(store, "gpt", ranks=[5], first=120, last=120))
    assert [(s["phase"], s["open"], s["duration_ns"]) for s in spans] == [("forward", True, 6_000_000_000)]


def test_spans_keep_the_longest_and_count_the_rest(store):
    spans = rows(views.spans(store, "gpt", ranks=[], first=50, last=59, limit=80))
    assert len(spans) == 80
    assert spans[0]["spans_in_all"] == 10 * 8 * 6
    assert {s["phase"] for s in spans} == {"backward"}


def test_places_states_and_findings(store):
    places = rows(views.topology(store, "gpt"))
    assert [(p["rank"], p["node"]) for p in places][2:4] == [(2, "node-4"), (3, "node-4")]
    states = {s["rank"]: s["state"] for s in rows(views.rank_states(store, "gpt", since_ns=0))}
    assert states == dict.fromkeys(range(8), "running") | {5: "stopped"}
    assert {p["attempt"] for p in rows(views.topology(store, "gpt", attempt=0))} <= {0}
    assert rows(views.topology(store, "gpt", attempt=places[0]["attempt"])) == places
    (place,) = rows(views.topology(store, "gpt", rank=5))
    (beat,) = rows(views.rank_states(store, "gpt", since_ns=0, rank=5, node=place["node"]))
    assert (place["rank"], beat["rank"], beat["state"]) == (5, 5, "stopped")
    assert not rows(views.rank_states(store, "gpt", since_ns=0, rank=5, node="elsewhere"))
    assert [f["kind"] for f in rows(views.findings(store, "gpt"))] == ["hang", "straggler"]
    assert {c["stage"] for c in rows(views.checkpoints(store, "gpt", steps=3))} == {
        "copy",
        "replicate",
        "persist",
        "stall",
    }
    tiers = {t["tier"]: t for t in rows(views.checkpoint_tiers(store, "gpt"))}
    assert tiers.keys() == {"memory", "peer", "storage"}
    assert tiers["memory"]["step"] - tiers["storage"]["step"] == 9
    assert (tiers["peer"]["ranks"], tiers["peer"]["copies"]) == (8, 8)
    (progress,) = rows(views.progress(store, "gpt"))
    assert progress["last_step"] >= tiers["memory"]["step"]
    assert progress["step_ns"] > 0
    assert {s["record"]: s["rows"] for s in rows(views.stored(store))}["steps"] == 121 * 8


@pytest.mark.parametrize(
    "view",
    [
        views.curve,
        views.events,
        views.findings,
        views.topology,
        views.checkpoints,
        views.checkpoint_tiers,
        views.progress,
    ],
)
def test_a_job_that_was_never_seen_is_no_rows(store, view):
    assert view(store, "never seen").num_rows == 0


def test_names_with_quotes_are_only_names(store):
    assert views.curve(store, "gpt' OR '1'='1").num_rows == 0


def test_export_is_what_was_asked_for(store, tmp_path):
    document = json.loads(export(store, "gpt", first=100, last=100, ranks=[3]))
    assert len([e for e in document["traceEvents"] if e["ph"] == "X"]) == 6
    file = tmp_path / "gpt.json"
    assert export_file(store, "gpt", file, first=0, last=1) == file.stat().st_size
    with pytest.raises(UsageError, match="no spans in steps 500:501"):
        export(store, "gpt", first=500, last=501)
    with pytest.raises(UsageError, match="allowed: 5"):
        export(store, "gpt", first=0, last=1, limit=5)
    with pytest.raises(UsageError, match="cannot write"):
        export_file(store, "gpt", tmp_path, first=0, last=1)


@pytest.fixture(scope="module")
def elastic(tmp_path_factory):
    """A job that ran with four ranks and goes on with two."""
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('elastic') / 'store'}")
    opened.migrate()

    def held(attempt, step, stage, tier, ranks, job="gpt"):
        row = {"job": job, "attempt": attempt, "step": step, "stage": stage, "tier": tier, "bytes": 1}
        return [{**row, "rank": rank, "ts": (attempt * 100 + step) * S} for rank in range(ranks)]

    opened.insert("checkpoints", table("checkpoints", [
        *held(0, 10, "copy", "memory", 4), *held(0, 10, "commit", "storage", 4),
        *held(0, 20, "copy", "memory", 4), *held(0, 20, "commit", "storage", 2),
        *held(1, 30, "copy", "memory", 2), *held(1, 40, "copy", "memory", 1),
        *held(0, 50, "copy", "memory", 1, "young"),
    ]))  # fmt: skip
    opened.insert("topology", table("topology", [
        {"job": "young", "attempt": 0, "rank": rank, "ts": S} for rank in range(2)
    ]))  # fmt: skip
    yield opened
    opened.close()


def test_every_rank_is_as_many_as_the_steps_own_attempt_has(elastic):
    tiers = {row["tier"]: row for row in rows(views.checkpoint_tiers(elastic, "gpt"))}
    assert (tiers["memory"]["step"], tiers["memory"]["attempt"], tiers["memory"]["ranks"]) == (30, 1, 2)
    assert (tiers["storage"]["step"], tiers["storage"]["attempt"]) == (10, 0)


def test_a_step_that_one_rank_has_is_not_held_by_all_while_the_others_have_saved_none(elastic):
    assert rows(views.checkpoint_tiers(elastic, "young")) == []
