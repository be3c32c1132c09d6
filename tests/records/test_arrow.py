from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.records.arrow import arrow_schema, sorted_codes, to_table
from pulsetrain.records.columns import Columns
from pulsetrain.records.schema import RECORDS, Kind
from tests.records.rows import columns
from tests.stream.rows import table

DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize("record", RECORDS)
def test_a_batch_becomes_the_table_of_its_record(record):
    made = to_table(columns(record, 6))
    made.validate(full=True)
    assert made.schema.types == arrow_schema(record).types
    assert made.to_pylist() == table(record, 6).to_pylist()


@pytest.mark.parametrize("record", RECORDS)
def test_only_a_field_that_may_be_missing_is_nullable(record):
    for field in RECORDS[record].fields:
        assert arrow_schema(record).field(field.name).nullable == (field.kind is Kind.MAYBE)


def test_a_missing_value_is_null_and_nan_is_not():
    loss = to_table(columns("steps", 2, loss=[None, float("nan")])).column("loss")
    assert loss.null_count == 1
    assert loss[1].is_valid


def test_numbers_are_not_copied():
    batch = columns("metrics", 1000)
    array = to_table(batch).column("value").chunk(0)
    assert array.buffers()[1].address == batch.column("value").data.ctypes.data


def test_a_batch_without_rows_is_a_table_without_rows():
    empty = to_table(Columns.from_rows("logs", []))
    assert (empty.num_rows, empty.schema.types) == (0, arrow_schema("logs").types)


def test_an_unknown_record_has_no_schema():
    with pytest.raises(KeyError):
        arrow_schema("nothing")
    assert pa.types.is_timestamp(arrow_schema("logs").field("ts").type)


@given(st.lists(st.lists(st.sampled_from(["", "b", "a", "ä", "a1"]))))
def test_codes_of_names_are_in_their_order_whatever_the_chunks_and_the_coding(chunks):
    plain = pa.chunked_array(chunks, pa.string())
    codes, names = sorted_codes(plain)
    assert names == tuple(sorted({name for chunk in chunks for name in chunk}))
    assert [names[code] for code in codes] == plain.to_pylist()
    coded = pa.chunked_array([pa.array(c, pa.string()).dictionary_encode() for c in chunks], DICTIONARY)
    assert [names[code] for code in sorted_codes(coded)[0]] == plain.to_pylist()
