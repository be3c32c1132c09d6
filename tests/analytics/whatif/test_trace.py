"""Pipeline traces as arrays: what is read, what is left out and counted, and what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from pulsetrain.analytics.whatif.analysis import analyze, analyze_file
from pulsetrain.analytics.whatif.trace import load, read
from pulsetrain.core.errors import UsageError
from tests.analytics.pipelines import Pipeline


def flat(answer):
    """Nested numbers by path, in a form that `approx` compares."""
    return {
        (k, inner): v
        for k, value in answer.items()
        for inner, v in (value.items() if isinstance(value, dict) else [("", value)])
    }


def test_an_incomplete_step_is_left_out_and_counted():
    table = Pipeline(steps=4).table()
    rows = [r for r in table.to_pylist() if not (r["step"] == 9 and r["dp_rank"] == 1 and r["seq_id"] == 2)]
    answer = analyze(pa.Table.from_pylist(rows))
    assert (answer["steps"], answer["dropped_steps"]) == (3, 1)


def test_unknown_operation_types_and_broken_rows_are_ignored_and_counted():
    table = Pipeline().table()
    rows = [
        *table.to_pylist(),
        {**table.slice(0, 1).to_pylist()[0], "optype": "coffee"},
        {**table.slice(0, 1).to_pylist()[0], "duration": float("nan")},
    ]
    assert analyze(pa.Table.from_pylist(rows))["ignored_rows"] == 2


@pytest.mark.parametrize("column", ["dp_rank", "stage", "step", "seq_id", "start_ts", "duration"])
@pytest.mark.parametrize("value", [None, -3])
def test_a_row_of_impossible_values_costs_its_step_and_no_more(column, value):
    table = Pipeline(steps=4).table()
    if column == "start_ts" and value == -3:
        return  # a time before zero is a time
    rows = table.to_pylist()
    rows[5] = {**rows[5], column: value}
    answer = analyze(pa.Table.from_pylist(rows))
    assert (answer["steps"], answer["dropped_steps"], answer["ignored_rows"]) == (3, 1, 1)


@pytest.mark.parametrize("kind", [pa.float64(), pa.uint64(), pa.int32()])
def test_whole_numbers_of_any_type_read_alike(kind):
    table = Pipeline(slow={(0, 0): 1.4}).table()
    for name in ("dp_rank", "stage", "step", "seq_id"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].cast(kind))
    assert flat(analyze(table)) == pytest.approx(flat(analyze(Pipeline(slow={(0, 0): 1.4}).table())))


def test_a_table_that_is_no_trace_is_one_clear_line(tmp_path):
    with pytest.raises(UsageError, match="lacks column dp_rank"):
        analyze(pa.table({"x": [1]}))
    with pytest.raises(UsageError, match="no sound operation of a known type"):
        analyze(Pipeline().table().slice(0, 0))
    with pytest.raises(UsageError, match="No such file"):
        analyze_file(tmp_path / "nothing.parquet")
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(UsageError, match="not a Parquet file"):
        analyze_file(tmp_path / "text.parquet")


def test_a_file_written_in_many_pieces_reads_as_one(tmp_path):
    table = Pipeline(slow={(1, 0): 1.3}).table()
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=17)
    assert flat(analyze_file(tmp_path / "t.parquet")) == pytest.approx(flat(analyze(table)))


def test_work_has_one_cell_for_each_operation_replica_and_step():
    trace = load(Pipeline(replicas=2, stages=3, steps=4).table())
    assert trace.work.shape == (len(trace.ops), 2, 4)
    assert (trace.replicas, trace.stages) == ((0, 1), (0, 1, 2))
    assert not np.isnan(trace.work).any()


def test_a_transfer_counts_from_the_moment_when_both_sides_have_arrived():
    trace = load(Pipeline(replicas=1, stages=2).table())
    receives = [op.index for op in trace.ops if op.kind == "forward-recv" and op.stage == 1]
    assert trace.work[receives].max() == pytest.approx(0.001, abs=1e-6)  # the wait for the sender is left out


def test_ideal_compute_is_the_mean_and_an_ideal_transfer_the_median():
    trace = load(Pipeline(replicas=2, stages=2, slow={(0, 0): 3.0}).table())
    forward = [op.index for op in trace.ops if op.kind == "forward-compute"]
    assert trace.ideal[forward] == pytest.approx(trace.work[forward].mean())
    receives = [op.index for op in trace.ops if op.kind == "forward-recv"]
    assert trace.ideal[receives] == pytest.approx(np.median(trace.work[receives]))


def test_ranks_are_counted_where_the_trace_does_not_have_them():
    table = Pipeline(replicas=2, stages=3).table().drop_columns(["rank"])
    assert load(table).rank.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_only_the_columns_that_matter_are_read(tmp_path):
    parquet.write_table(Pipeline().table(), tmp_path / "t.parquet")
    assert "mb_id" not in read(tmp_path / "t.parquet").column_names


def test_distant_ids_of_replicas_keep_their_order():
    table = Pipeline(replicas=2).table()
    far = pa.array([r * 10**9 for r in table["dp_rank"].to_pylist()])
    trace = load(table.set_column(table.column_names.index("dp_rank"), "dp_rank", far))
    assert trace.replicas == (0, 10**9)
    assert np.array_equal(trace.work, load(table).work)


def test_rows_without_an_operation_type_are_ignored():
    table = Pipeline().table()
    row = {**table.slice(0, 1).to_pylist()[0], "optype": None}
    grown = pa.Table.from_pylist([*table.to_pylist(), row])
    assert load(grown).ignored_rows == 1
