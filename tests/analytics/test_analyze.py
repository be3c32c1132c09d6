"""All analyzers over a store: planted faults come out of real tables, and no analyzer is ever silent."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from pulsetrain.analytics.analyze import StepRange, analyze
from pulsetrain.analytics.verdict import Failed, Inconclusive, findings
from pulsetrain.cli import pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.records.arrow import arrow_schema
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.store.clickhouse import open_store
from tests.analytics.fleet import fleet
from tests.analytics.slowness.collectives_of import MS, Job, ddp, slow

pytestmark = pytest.mark.integration
DAY = 1_790_000_000 * 10**9


@pytest.fixture(scope="module")
def store_url(tmp_path_factory):
    return f"chdb://{tmp_path_factory.mktemp('analyze')}/store"


@pytest.fixture(scope="module")
def store(store_url):
    opened = open_store(store_url)
    opened.migrate()
    yield opened
    opened.close()


def table(record, rows, **columns):
    """Rows of a record; columns that are not given hold the default."""
    given = {**{f.name: f.default for f in RECORDS[record].fields}, **columns}
    arrays = []
    for field in arrow_schema(record):
        value = given[field.name]
        values = np.asarray(value).tolist() if isinstance(value, np.ndarray) else [value] * rows
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        arrays.append(pa.array(values, kind).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(record))


def insert(store, job, columns):
    """A fleet as spans with communication nested in forward, steps and topology."""
    rows = len(columns["rank"])
    common = {
        "job": job,
        "attempt": 0,
        "node": columns["node"],
        "rank": columns["rank"],
        "step": columns["step"],
    }
    start = (DAY + columns["start_ns"]).astype(np.int64)
    nested = 20_000_000
    pieces = (
        ("forward", "compute", "", columns["forward"] + nested),
        ("all_reduce", "communication", "forward", np.full(rows, nested)),
        ("backward", "compute", "", columns["backward"]),
        ("optimizer", "compute", "", columns["optimizer"]),
        ("recv", "communication", "", columns["wait"] - nested),
    )
    for phase, category, parent, duration in pieces:
        spans = {"phase": phase, "category": category, "parent": parent, "start": start}
        store.insert("spans", table("spans", rows, **common, **spans, duration_ns=duration.astype(np.int64)))
    steps = {n: columns[n] for n in ("tokens", "flops", "loss", "grad_norm")}
    duration = columns["duration_ns"].astype(np.int64)
    store.insert("steps", table("steps", rows, **common, start=start, duration_ns=duration, **steps))
    _, at = np.unique(columns["rank"], return_index=True)
    where = {n: columns[n][at] for n in ("rank", "node", "pp")}
    store.insert("topology", table("topology", len(at), job=job, attempt=0, ts=DAY, **where))


def test_a_slow_node_comes_out_of_the_tables(store):
    insert(store, "slow", fleet(steps=60, slow={4: 1.5, 5: 1.5}, slow_from=30))
    reported = findings(analyze(store, "slow", now_ns=DAY))
    assert ("straggler", "node", "n2") in [(f.kind, f.subject_type, f.subject) for f in reported]
    straggler = next(f for f in reported if f.kind == "straggler")
    assert straggler.evidence["ratio"] == pytest.approx(1.5, abs=0.05)
    assert {f.kind for f in reported} <= {"straggler", "mfu_decay", "fail_slow"}


def test_a_clean_job_gives_no_finding_and_every_analyzer_answers(store):
    insert(store, "clean", fleet(steps=60))
    verdicts = analyze(store, "clean", now_ns=DAY, scan=True)
    assert not findings(verdicts)
    assert not [v for v in verdicts if isinstance(v, Failed)]


def test_a_range_of_steps_is_respected(store):
    insert(store, "range", fleet(steps=100, slow={2: 1.4}, slow_from=60))
    before = analyze(store, "range", StepRange(since=0, until=59), now_ns=DAY, scan=True)
    assert not [f for f in findings(before) if f.kind == "straggler"]
    after = analyze(store, "range", StepRange(since=60, until=99), now_ns=DAY, scan=True)
    assert "2" in [f.subject for f in findings(after) if f.kind == "straggler"]


def test_what_was_over_before_the_last_step_is_found_on_request(store):
    """A link that was slow, and a loader that stood, for 60 of 240 steps."""
    columns = fleet(steps=240)
    during = (columns["step"] >= 80) & (columns["step"] < 140)
    columns["data"] = np.where(during, 0.4 * columns["duration_ns"], 0)
    columns["duration_ns"] = columns["duration_ns"] + columns["data"]
    insert(store, "over", columns)
    rank, rows = columns["rank"], len(columns["rank"])
    common = {n: columns[n] for n in ("node", "rank", "step")} | {"job": "over", "attempt": 0}
    start = (DAY + columns["start_ns"]).astype(np.int64)
    waits = {"phase": "data", "category": "data", "start": start}
    store.insert("spans", table("spans", rows, **common, **waits, duration_ns=columns["data"].astype(int)))
    noise = np.exp(0.03 * np.random.default_rng(0).standard_normal(rows))
    took = (1e6 * noise * np.where(during & (rank % 4 == 2), 3.0, 1.0)).astype(int)
    group = np.char.add("dp:", (rank % 4).astype(str))
    moves = {"phase": "all_reduce", "category": "communication", "group": group, "seq": columns["step"]}
    moves |= {"bytes": 1000, "blocked_ns": took, "start": start}
    store.insert("spans", table("spans", rows, **common, **moves, duration_ns=took))

    def subjects(**how):
        found = findings(analyze(store, "over", now_ns=DAY, **how))
        return {(f.kind, f.subject): f for f in found if f.kind in ("slow_link", "data_stall")}

    assert subjects() == {}
    found = subjects(scan=True)
    assert set(found) == {("slow_link", "dp:2"), ("data_stall", "over")}
    for finding in found.values():
        assert finding.evidence["first_step"] < 140
        assert finding.evidence["last_step"] >= 80


def test_of_more_steps_than_fit_the_newest_are_read_or_they_are_refused(store, monkeypatch):
    insert(store, "large", fleet(steps=60))
    monkeypatch.setattr("pulsetrain.analytics.analyze.MOST_CELLS", 8 * 20)
    seen = []
    looks = {"look": lambda source: seen.append((source.since, source.until)) or []}

    def look(*given, scan=True):
        return analyze(store, "large", *given, now_ns=DAY, scan=scan, analyzers=looks)

    assert "only steps 40 to 59 were read" in look()[-1].reason
    look(StepRange(since=10, until=29))
    look(scan=False)
    assert seen == [(40, 59), (10, 29), (0, 59)]
    with pytest.raises(UsageError, match="--since 10: 21 steps of 8 ranks"):
        look(StepRange(since=10, until=30))


def test_an_analyzer_that_fails_or_returns_nothing_has_a_verdict(store):
    insert(store, "broken", fleet(steps=20))

    def breaks(source):
        raise ValueError("no such luck")

    verdicts = analyze(store, "broken", now_ns=DAY, analyzers={"breaks": breaks, "silent": lambda source: []})
    assert verdicts[0] == Failed(analyzer="breaks", error="ValueError: no such luck")
    assert isinstance(verdicts[1], Inconclusive)


def test_a_job_without_steps(store):
    with pytest.raises(UsageError, match="nobody"):
        analyze(store, "nobody", now_ns=DAY)
    (verdict,) = analyze(store, "nobody", attempt=3, now_ns=DAY)
    assert isinstance(verdict, Inconclusive)
    assert verdict.blind
    with pytest.raises(UsageError, match="no step of attempt 3 is on record; attempts with steps: none"):
        analyze(store, "nobody", attempt=3, now_ns=DAY, scan=True)


def test_a_job_without_spans_is_blind_where_it_needs_them(store):
    columns = fleet(steps=20)
    common = {n: columns[n] for n in ("node", "rank", "step")}
    start = (DAY + columns["start_ns"]).astype(np.int64)
    store.insert("steps", table("steps", len(columns["rank"]), job="bare", attempt=0, start=start, **common))
    blind = {
        v.analyzer for v in analyze(store, "bare", now_ns=DAY) if isinstance(v, Inconclusive) and v.blind
    }
    assert {"straggler", "stage_imbalance", "numerics", "mfu"} <= blind


def test_the_command_prints_rows_of_findings(store, store_url):
    insert(store, "told", fleet(steps=60, slow={4: 1.5, 5: 1.5}))
    store.close()  # the command opens the folder itself
    run = CliRunner().invoke(
        pulsetrain, ["analyze", "--job", "told", "--store", store_url, "--json"], standalone_mode=False
    )
    assert run.exception is None
    assert run.return_value == 1
    rows = json.loads(run.output)
    assert all(set(row) == set(RECORDS["findings"].names) for row in rows)
    assert ("straggler", "n2") in [(row["kind"], row["subject"]) for row in rows]


def insert_operations(store, job, operations, **more):
    """Operations of a simulated job as spans of step 0, as ranks write them that name no steps."""
    start, end = (operations[name].to_numpy() for name in ("start_ns", "end_ns"))
    columns = {name: np.array(operations[name].to_pylist()) for name in operations.column_names}
    columns |= {"start": start, "duration_ns": end - start, "job": job, "attempt": 1} | more
    store.insert("spans", table("spans", len(start), **columns), token=f"{job}-{columns['phase'][0]}")


def test_a_job_that_names_no_steps_is_looked_at_by_its_collectives(store):
    operations = ddp(Job(factor=slow(2, 1.4, since=80)), 160).table()
    insert_operations(store, "stepless", operations, category="communication")
    begin = int(operations["start_ns"].to_numpy().min()) + np.arange(80) * 250 * MS
    marks = pa.table(
        {
            "rank": np.repeat(np.arange(4), 80),
            "node": np.repeat(["n0", "n0", "n1", "n1"], 80),
            "phase": ["cpu_wait"] * 320,
            "start_ns": np.tile(begin, 4),
            "end_ns": np.tile(begin, 4),
        }
    )
    insert_operations(store, "stepless", marks, category="other")
    blind, finding, *of_machines = analyze(store, "stepless", now_ns=DAY)
    assert isinstance(blind, Inconclusive)
    assert blind.blind
    assert not findings(of_machines)
    assert (finding.kind, finding.subject, finding.attempt) == ("straggler", "2", 1)
    assert analyze(store, "stepless", attempt=1, now_ns=DAY, scan=True)[1:2] == [finding]
    with pytest.raises(UsageError):
        analyze(store, "stepless", StepRange(since=5), now_ns=DAY)
    (old,) = analyze(store, "stepless", attempt=0, now_ns=DAY)
    assert old.blind


def test_a_node_whose_clock_is_far_off_is_read_up_to_its_own_newest_operation(store):
    job = Job(factor=slow(2, 1.4), clock=(0, 45e9))
    insert_operations(store, "apart", ddp(job, 320).table(), category="communication")
    _, finding, *_ = analyze(store, "apart", now_ns=DAY)
    assert (finding.kind, finding.subject) == ("straggler", "2")
