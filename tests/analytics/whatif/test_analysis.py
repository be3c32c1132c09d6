"""What-if analysis: the published answer for a recorded trace, and the laws on traces of another making."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.whatif.analysis import analyze, analyze_file
from pulsetrain.core.errors import UsageError
from tests.analytics.pipelines import Pipeline
from tests.repository import DATA

PUBLISHED = DATA / "what-if-AR"
SHAPES = [(1, 1, 1), (1, 4, 1), (4, 1, 1), (2, 3, 1), (3, 2, 1), (2, 4, 2), (1, 3, 3), (2, 2, 4)]


def flat(answer):
    """Nested numbers by path, in a form that `approx` compares."""
    return {
        (k, inner): v
        for k, value in answer.items()
        for inner, v in (value.items() if isinstance(value, dict) else [("", value)])
    }


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no recordings in {DATA}")
def test_agrees_with_the_published_analysis_of_the_recorded_trace():
    truth = json.loads((PUBLISHED / "result-AR.json").read_text())
    ours = analyze_file(PUBLISHED / "trace-AR.parquet")
    assert ours["S"] == pytest.approx(truth["blocking_slowdown"], rel=1e-6)
    assert ours["M_W"] == pytest.approx(json.loads((PUBLISHED / "mw-AR.json").read_text())["Mw"], rel=1e-6)
    assert ours["M_S"] == pytest.approx(json.loads((PUBLISHED / "ms-AR.json").read_text())["Ms"], rel=1e-6)
    assert ours["discrepancy"] <= truth["launch_slowdown"] - 1
    assert ours["by_stage"] == pytest.approx(truth["blocking_decompose_by_stage"], rel=1e-6)
    assert ours["by_replica"] == pytest.approx(truth["blocking_decompose_by_dp_rank"], rel=1e-6)
    assert ours["by_op"] == pytest.approx(truth["blocking_decompose_by_optype"], rel=1e-6)


@pytest.mark.parametrize(("replicas", "stages", "chunks"), SHAPES)
def test_the_graph_reproduces_an_independent_timeline(replicas, stages, chunks):
    pipeline = Pipeline(replicas=replicas, stages=stages, chunks=chunks, microbatches=2 * stages, jitter=0.05)
    assert analyze(pipeline.table())["discrepancy"] < 0.004


@pytest.mark.parametrize(("replicas", "stages", "chunks"), SHAPES)
def test_a_clean_run_has_no_slow_down(replicas, stages, chunks):
    pipeline = Pipeline(replicas=replicas, stages=stages, chunks=chunks, microbatches=2 * stages)
    answer = analyze(pipeline.table())
    assert answer["S"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_slow_worker_is_named_and_explains_the_slow_down(chunks):
    pipeline = Pipeline(replicas=4, stages=3, chunks=chunks, slow={(2, 1): 1.8}, jitter=0.01)
    answer = analyze(pipeline.table())
    assert answer["S"] > 1.3
    assert next(iter(answer["by_worker"])) == str((1 * 4 + 2) * 4)
    assert answer["M_W"] > 0.9
    assert answer["M_S"] < 0.1


def test_a_long_last_stage_is_not_taken_for_a_slow_worker():
    slow = {(replica, 2): 1.6 for replica in range(4)}
    answer = analyze(Pipeline(replicas=4, stages=3, slow=slow, jitter=0.01).table())
    assert answer["M_S"] > 0.8
    assert answer["M_W"] < 0.2
    assert next(iter(answer["by_stage"])) == "2"


@given(factors=st.lists(st.floats(1.0, 3.0), min_size=2, max_size=4, unique=True))
@settings(max_examples=10)
def test_a_worse_fault_is_never_milder(factors):
    slow_downs = [analyze(Pipeline(slow={(1, 0): f}).table())["S"] for f in sorted(factors)]
    assert slow_downs == sorted(slow_downs)


@given(seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_the_order_of_rows_changes_nothing(seed):
    table = Pipeline(slow={(0, 1): 1.5}, jitter=0.1).table()
    order = np.random.default_rng(seed).permutation(table.num_rows)
    assert flat(analyze(table.take(pa.array(order)))) == pytest.approx(flat(analyze(table)))


def test_renaming_ranks_renames_the_answer():
    pipeline = Pipeline(slow={(1, 2): 1.7}, jitter=0.02)
    table = pipeline.table()
    renamed = table.set_column(
        table.column_names.index("rank"), "rank", pa.array([1000 - r for r in table["rank"].to_pylist()])
    )
    before, after = analyze(table), analyze(renamed)
    assert {str(1000 - int(k)): v for k, v in before["by_worker"].items()} == after["by_worker"]
    assert before["M_W"] == after["M_W"]


@pytest.mark.parametrize(
    "without",
    [
        ("gc",),
        ("params-all-gather",),
        ("layernorm-grads-all-reduce", "gc"),
        ("grads-reduce-scatter",),
        ("optimizer-clip-main-grad",),
        ("optimizer",),
        ("forward-recv", "backward-recv"),
        ("forward-send", "backward-send", "forward-recv", "backward-recv"),
    ],
)
def test_a_trace_may_lack_operation_types(without):
    answer = analyze(Pipeline(slow={(1, 1): 1.8}, without=without).table())
    assert next(iter(answer["by_worker"])) == str((1 * 2 + 1) * 4)
    assert answer["S"] > 1.3


def test_a_replica_without_one_of_its_workers_is_left_out_and_counted():
    table = Pipeline(replicas=3, steps=4, slow={(2, 1): 1.6}).table()
    rows = [r for r in table.to_pylist() if (r["dp_rank"], r["stage"]) != (1, 0)]
    answer = analyze(pa.Table.from_pylist(rows))
    assert (answer["steps"], answer["dropped_replicas"], len(answer["by_replica"])) == (4, 1, 2)
    assert next(iter(answer["by_replica"])) == "2"


def test_a_column_of_text_or_no_time_at_all_is_one_clear_line():
    table = Pipeline().table()
    text = table.set_column(table.column_names.index("step"), "step", table["step"].cast(pa.string()))
    with pytest.raises(UsageError, match="column step is string"):
        analyze(text)
    nothing = pa.array([0.0] * table.num_rows)
    with pytest.raises(UsageError, match="takes any time"):
        analyze(table.set_column(table.column_names.index("duration"), "duration", nothing))


def test_absolute_timestamps_give_the_same_answer():
    table = Pipeline(slow={(0, 0): 1.4}).table()
    later = pa.array([1.7e9 + s for s in table["start_ts"].to_pylist()])
    moved = table.set_column(table.column_names.index("start_ts"), "start_ts", later)
    assert analyze(moved)["S"] == pytest.approx(analyze(table)["S"], rel=1e-4)
