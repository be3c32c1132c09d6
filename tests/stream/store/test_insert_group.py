"""A group is read back from its own bytes, and the engine reads the same bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import CorruptData
from pulsetrain.stream.store.insert_group import RowRange, decode_group, encode_group
from tests.stream.rows import table

RANGES = [RowRange(source="n/1", first=3, end=5), RowRange(source="ü/2", first=0, end=1)]


def test_a_group_comes_back_from_its_bytes():
    group = encode_group("steps", "token-1", RANGES, table("steps", 3))
    assert decode_group(group.data) == group
    assert (group.rows, group.ranges) == (3, tuple(RANGES))


def test_its_bytes_are_one_batch_of_the_rows_whatever_pieces_they_came_in():
    rows = table("steps", 6)
    pieces = pa.concat_tables([rows.slice(0, 2), rows.slice(2, 3), rows.slice(5)])
    stream = pa.ipc.open_stream(encode_group("steps", "t", RANGES, pieces).data)
    (batch,) = list(stream)
    assert batch.to_pylist() == rows.to_pylist()


def test_rows_that_went_elsewhere_leave_an_empty_group_with_their_ranges():
    group = encode_group("steps", "t", RANGES, table("steps", 3).slice(0, 0))
    assert (decode_group(group.data).rows, decode_group(group.data).ranges) == (0, tuple(RANGES))


def test_the_same_rows_under_the_same_token_are_the_same_bytes():
    first, second = (encode_group("steps", "t", RANGES, table("steps", 3)) for _ in range(2))
    assert first.data == second.data


@given(st.binary(max_size=200) | st.integers(0, 400))
def test_other_bytes_are_refused_in_one_error(data):
    if isinstance(data, int):
        data = encode_group("steps", "t", RANGES, table("steps", 1)).data[:data]
    try:
        decode_group(data)
    except CorruptData as error:
        assert str(error).startswith("not a group of rows")  # noqa: PT017 - bytes cut late may still be one


def test_an_arrow_stream_without_the_metadata_of_a_group_is_refused():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table("steps", 1).schema) as writer:
        writer.write_table(table("steps", 1))
    with pytest.raises(CorruptData, match="not a group of rows"):
        decode_group(sink.getvalue().to_pybytes())
