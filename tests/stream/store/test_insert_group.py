"""A group is read back from its own bytes, and the engine reads the same bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import CorruptData
from pulsetrain.stream.store.insert_group import RowRange, decode_group, encode_group, part_of
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


def test_a_part_has_the_rows_that_did_not_go_to_the_quarantine():
    """Of n/1 rows 3 to 8, row 4 went there, of ü/2 row 0."""
    whole = [RowRange(source="n/1", first=3, end=8), RowRange(source="ü/2", first=0, end=2)]
    kept = [
        RowRange(source="n/1", first=3, end=4),
        RowRange(source="n/1", first=5, end=8),
        RowRange(source="ü/2", first=1, end=2),
    ]
    group = decode_group(encode_group("steps", "t", whole, table("steps", 5), kept).data)
    wanted = [RowRange(source="n/1", first=4, end=7), RowRange(source="ü/2", first=0, end=1)]
    part = part_of(group, wanted)
    assert pa.ipc.open_stream(part.data).read_all().to_pylist() == table("steps", 5).slice(1, 2).to_pylist()
    assert part.ranges == tuple(wanted)
    assert decode_group(part.data).kept == (RowRange(source="n/1", first=5, end=7),)


def test_a_group_that_does_not_say_which_rows_went_to_the_quarantine_has_no_part():
    group = decode_group(encode_group("steps", "t", RANGES, table("steps", 2), []).data)
    assert part_of(group, RANGES[:1]) is None


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
