from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import SchemaMismatch
from pulsetrain.records.columns import Columns, coded, nullable
from pulsetrain.records.encoding import decode, encode
from pulsetrain.records.schema import RECORDS, Kind
from tests.records.rows import columns

STEP = {
    "job": "j",
    "attempt": 0,
    "node": "n1",
    "rank": [0, 1, 2],
    "step": np.array([7, 7, 8]),
    "start": 10**18,
    "duration_ns": 5,
    "tokens": 0,
    "flops": 1.5,
    "loss": [2.5, None, math.nan],
    "grad_norm": None,
}


def test_a_value_stands_for_every_row_and_a_sequence_for_one_row_each():
    batch = Columns.from_values("steps", 3, STEP)
    rows = batch.to_rows()
    assert [(r["job"], r["rank"], r["step"], r["start"]) for r in rows] == [
        ("j", 0, 7, 10**18),
        ("j", 1, 7, 10**18),
        ("j", 2, 8, 10**18),
    ]
    assert list(rows[0]) == list(RECORDS["steps"].names)


def test_a_missing_number_is_none_and_nan_is_a_number():
    loss = Columns.from_values("steps", 3, STEP).column("loss").to_list()
    assert loss[:2] == [2.5, None]
    assert math.isnan(loss[2])
    assert Columns.from_values("steps", 3, STEP).column("grad_norm").to_list() == [None] * 3


@pytest.mark.parametrize("record", RECORDS)
def test_rows_make_the_batch_that_they_came_from(record):
    batch = columns(record, 5)
    assert Columns.from_rows(record, batch.to_rows()).to_rows() == batch.to_rows()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": ["zero", "one", "two"]}, r"steps\.rank does not hold i32 values"),
        ({"rank": [0, 1]}, r"steps\.rank is 2 values of i32; it must be 3"),
        ({"rank": [0, 1, 2**40]}, r"steps\.rank does not hold i32 values"),
        ({"job": 7}, r"steps\.job does not hold name values: 7 is no text"),
        ({"job": ["a", None, "b"]}, r"steps\.job does not hold name values: None is no text"),
        ({"step": coded(np.zeros(3, np.int32), ["a"])}, r"steps\.step is 3 values of name"),
        ({"color": "red"}, "steps has no column 'color'"),
    ],
)
def test_what_is_not_the_records_is_named(change, message):
    with pytest.raises(SchemaMismatch, match=message):
        Columns.from_values("steps", 3, {**STEP, **change})


def test_a_missing_column_and_an_unknown_record_are_named():
    with pytest.raises(SchemaMismatch, match=r"steps\.job is missing"):
        Columns.from_values("steps", 3, {k: v for k, v in STEP.items() if k != "job"})
    with pytest.raises(SchemaMismatch, match=r"events\.ts is missing"):
        Columns.from_rows("events", [{"node": "n"}])
    with pytest.raises(SchemaMismatch, match="unknown record 'stepz'; allowed: spans"):
        Columns.from_values("stepz", 0, {})


def test_a_column_of_another_kind_is_refused_whatever_its_values():
    with pytest.raises(SchemaMismatch, match=r"steps\.flops is 3 values of maybe; it must be 3 of f64"):
        Columns.from_values("steps", 3, {**STEP, "flops": nullable(np.zeros(3), np.ones(3, np.bool_))})


@given(st.lists(st.lists(st.sampled_from(["", "a", "b", "n\u00f6de"]), max_size=5), min_size=1, max_size=4))
def test_joined_batches_hold_the_rows_of_all_and_each_name_once(parts):
    joined = Columns.concat([columns("heartbeats", len(names), node=names) for names in parts])
    assert joined.column("node").to_list() == [name for names in parts for name in names]
    assert joined.num_rows == sum(map(len, parts))
    assert len(set(joined.column("node").names)) == len(joined.column("node").names)


def test_joined_batches_keep_which_values_are_missing():
    joined = Columns.concat([Columns.from_values("steps", 3, STEP), columns("steps", 2)])
    assert joined.column("grad_norm").to_list() == [None, None, None, 0.0, 1.0]


def test_pieces_of_a_batch_hold_its_rows_in_order():
    whole = Columns.from_values("steps", 3, STEP)
    pieces = whole.pieces(2)
    assert [piece.num_rows for piece in pieces] == [2, 1]
    assert str([row for piece in pieces for row in piece.to_rows()]) == str(whole.to_rows())
    read = [decode(encode(piece, source="s", first_row=0))[1] for piece in pieces]
    assert str([row for piece in read for row in piece.to_rows()]) == str(whole.to_rows())
    assert whole.pieces(3) == [whole]


def test_batches_of_two_records_cannot_be_joined():
    with pytest.raises(SchemaMismatch, match=r"rows of \['events', 'logs'\] in one batch"):
        Columns.concat([columns("logs", 1), columns("events", 1)])


def test_names_are_compared_by_code():
    batch = Columns.concat([columns("logs", 3), columns("logs", 3, first=1)])
    for name in ("node-0", "node-1", "absent"):
        expected = [each == name for each in batch.column("node").to_list()]
        assert batch.column("node").equals(name).tolist() == expected


def test_slots_of_a_larger_array_become_whole_columns():
    slots = np.zeros(4, [("step", "<u4"), ("name", "<u2")])
    slots["step"], slots["name"] = [1, 2, 3, 4], [0, 1, 0, 1]
    batch = Columns.from_values(
        "steps",
        4,
        {**STEP, "rank": 0, "loss": None, "step": slots["step"], "job": coded(slots["name"], "ab")},
    )
    assert batch.column("step").to_list() == [1, 2, 3, 4]
    assert batch.column("job").to_list() == ["a", "b", "a", "b"]
    assert batch.column("step").data.flags.c_contiguous


def test_every_kind_has_a_code_of_its_own():
    assert len({kind.code for kind in Kind}) == len(Kind)
