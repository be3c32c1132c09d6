"""The heatmap's query over a real store: net time, levels, the worst of a row, who stands out."""

from __future__ import annotations

import pytest

from pulsetrain.stream.queries.heat import HeatView, heat
from pulsetrain.stream.store.clickhouse import open_store
from tests.dashboard.recorded_job import MS, table

RANKS, STEPS = 64, 6
SLOW, BUSY = 19, 41


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """TP4 x PP2 x DP8 on nodes of eight. Rank 19 computes half as long again; its TP peers wait for it.

    Rank 41 loads data nine times as long, for 2 ms.
    """
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('heat') / 'store'}")
    opened.migrate()
    opened.insert("topology", table("topology", [place(rank) for rank in range(RANKS)]))
    spans = [span for step in range(STEPS) for rank in range(RANKS) for span in step_spans(step, rank)]
    opened.insert("spans", table("spans", spans))
    yield opened
    opened.close()


def place(rank):
    return {
        "job": "j", "attempt": 0, "rank": rank, "node": f"node-{rank // 8}", "tp": rank % 4, "pp": rank // 32,
        "dp": rank % 32 // 4,
    }  # fmt: skip


def step_spans(step, rank):
    peers = rank // 4 == SLOW // 4
    net = 150 if rank == SLOW else 100
    gross = 150 if peers else 100
    jitter = (rank * 7 + step * 3) % 5 / 10
    parts = [
        ("data", "data", "", 2.0 if rank == BUSY else 0.25),
        ("forward", "compute", "", gross + 20 + jitter),
        ("all_reduce", "communication", "forward", gross - net + 20),
        ("all_reduce", "communication", "", 30 if peers else 80),
    ]
    for phase, category, parent, ms in parts:
        yield {
            "job": "j", "attempt": 0, "node": f"node-{rank // 8}", "rank": rank, "step": step, "phase": phase,
            "category": category, "parent": parent, "lane": "host", "start": step * 1_000 * MS + 1,
            "duration_ns": int(ms * MS),
        }  # fmt: skip


def test_time_that_a_rank_stood_still_is_not_its_work_where_no_span_shows_it(tmp_path):
    """Three peers stand still in forward for the fourth. Only `blocked_ns` says so."""
    opened = open_store(f"chdb://{tmp_path / 'store'}")
    opened.migrate()
    spans = [
        {
            "job": "j", "attempt": 0, "node": "n", "rank": rank, "step": 0, "phase": "forward",
            "category": "compute", "lane": "host", "start": MS, "duration_ns": 150 * MS,
            "blocked_ns": 0 if rank == 3 else 50 * MS,
        }
        for rank in range(8)
    ]  # fmt: skip
    opened.insert("spans", table("spans", spans))
    found = heat(opened, "j", HeatView(by="rank", first=0, last=0)).to_pylist()
    opened.close()
    took = {row["rank"]: row["value_ns"] // MS for row in found if row["phase"] == "forward"}
    assert took == {rank: 150 if rank == 3 else 100 for rank in range(8)}


def cells(store, **options):
    return heat(store, "j", HeatView(**{"by": "node", "first": 0, "last": STEPS - 1, **options})).to_pylist()


def suspects(found):
    return {
        suspect["2"] if isinstance(suspect, dict) else suspect[1] for c in found for suspect in c["suspects"]
    }


def test_the_rank_that_computes_longer_is_named_and_not_its_tensor_parallel_peers(store):
    found = cells(store)
    (forward,) = [c for c in found if c["col"] == "forward" and c["first_node"] == f"node-{SLOW // 8}"]
    assert forward["rank"] == SLOW
    assert forward["value_ns"] == pytest.approx(150 * MS, rel=0.01)
    assert forward["usual_ns"] == pytest.approx(100 * MS, rel=0.01)
    assert suspects(found) == {SLOW}


def test_two_milliseconds_are_not_a_fault_whatever_their_ratio(store):
    assert BUSY not in suspects(cells(store))


@pytest.mark.parametrize(("by", "rows"), [("job", 1), ("stage", 2), ("dp", 8), ("node", 8), ("rank", 64)])
def test_each_level_has_its_rows_and_keeps_the_worst(store, by, rows):
    found = cells(store, by=by)
    assert len({c["bin"] for c in found}) == rows
    worst = max((c for c in found if c["col"] == "forward"), key=lambda c: c["value_ns"] - c["usual_ns"])
    assert worst["rank"] == SLOW


def test_never_more_rows_than_asked_for(store):
    found = cells(store, by="rank", rows=10)
    assert len({c["bin"] for c in found}) == 10
    assert sum(c["items"] for c in found if c["col"] == "forward") == RANKS
    assert suspects(found) == {SLOW}


def test_a_part_of_the_fleet_is_compared_with_its_whole_cohort(store):
    found = cells(store, by="rank", ranks=(16, 23))
    assert {c["rank"] for c in found} == set(range(16, 24))
    assert {c["cohort"] for c in found} == {32}
    assert cells(store, by="rank", stages=(1, 1), dps=(7, 7))[0]["first_rank"] == 60


def test_a_phase_over_steps(store):
    found = cells(store, by="rank", phase="forward", ranks=(SLOW, SLOW))
    assert [c["col"] for c in found] == [str(step) for step in range(STEPS)]
    assert all(c["value_ns"] > 1.4 * c["usual_ns"] for c in found)


def test_a_sample_of_steps_says_the_same(store):
    some = {c["first_node"]: c["rank"] for c in cells(store, sample=3) if c["col"] == "forward"}
    assert some[f"node-{SLOW // 8}"] == SLOW


@pytest.mark.parametrize(("attempts", "sample"), [(1, 0), (5, 0), (5, 3), (20, 0), (300, 3)])
def test_a_step_that_is_done_again_counts_once_for_each_attempt(store, attempts, sample):
    """However many attempts there are, the time of a step is the mean of all of them."""
    job = f"again-{attempts}-{sample}"
    spans = [
        {**span, "job": job, "attempt": 2 + attempt}
        for attempt in range(attempts)
        for step in range(STEPS)
        for span in step_spans(step, rank=4)
        if span["phase"] == "data"
    ]
    store.insert("spans", table("spans", spans))
    view = HeatView(by="rank", first=0, last=STEPS - 1, sample=sample)
    (cell,) = heat(store, job, view).to_pylist()
    assert cell["value_ns"] == MS // 4


def test_the_newest_attempt_at_a_step_counts_where_it_ran(store):
    """Rank 3 was slow on b. Its place went to s, which does the last steps again and is not slow."""

    def span(attempt, step, rank, node, ms):
        return {
            "job": "moved", "attempt": attempt, "node": node, "rank": rank, "step": step, "phase": "forward",
            "category": "compute", "lane": "host", "start": step * 1_000 * MS + 1, "duration_ns": ms * MS,
        }  # fmt: skip

    quick = [
        span(a, s, r, "a", 100)
        for a, steps in ((0, range(6)), (1, range(4, 8)))
        for s in steps
        for r in range(3)
    ]
    slow = [span(0, step, 3, "b", 200) for step in range(6)]
    healed = [span(1, step, 3, "s", 100) for step in range(4, 8)]
    store.insert("spans", table("spans", [*quick, *slow, *healed]))
    places = [(a, r, node if r == 3 else "a") for a, node in ((0, "b"), (1, "s")) for r in range(4)]
    placed = [{"job": "moved", "attempt": a, "rank": r, "node": node, "pp": 0} for a, r, node in places]
    store.insert("topology", table("topology", placed))

    def worst(first, last):
        (cell,) = heat(store, "moved", HeatView(by="job", first=first, last=last)).to_pylist()
        return (cell["rank"], cell["node"]) if cell["suspects"] else None

    assert worst(0, 3) == (3, "b")
    assert worst(4, 7) is None
    assert worst(0, 7) == (3, "b")
