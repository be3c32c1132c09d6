from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import CorruptData, SchemaMismatch
from pulsetrain.records import batch, encoding
from pulsetrain.records.arrow import arrow_schema
from pulsetrain.records.batch import (
    adopt,
    as_arrow_ipc,
    conform,
    decode,
    encode,
    encode_columns,
    identify,
)
from pulsetrain.records.schema import RECORDS, SCHEMA_VERSION, Field, Kind
from tests.stream.rows import DAY, columns, table


@pytest.mark.parametrize("record", RECORDS)
def test_a_batch_comes_back_with_its_identity_and_its_rows(record):
    sent = table(record, 7)
    batch = decode(encode(record, sent, source="n0/abc", first_row=40))
    assert batch.table.schema.equals(arrow_schema(record))
    assert batch.table.to_pylist() == sent.to_pylist()
    assert (batch.record, batch.source, batch.first_row, batch.rows) == (record, "n0/abc", 40, 7)
    assert batch.version == SCHEMA_VERSION
    assert batch.token == f"n0/abc:{record}:40:7"


def test_a_table_of_many_chunks_and_dictionaries_travels_as_one():
    sent = pa.concat_tables([table("spans", 3, node="a"), table("spans", 3, node="b")])
    assert decode(encode("spans", sent, source="s", first_row=0)).table.to_pylist() == sent.to_pylist()


def test_dictionaries_with_values_twice_or_null_are_made_plain():
    sent = table("steps", 3)
    index = sent.column_names.index("job")
    kind = sent.schema.field("job").type
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(["a", "a", "b"]))
    fitted = conform(sent.set_column(index, "job", twice), RECORDS["steps"], 1).column("job")
    assert fitted.type == kind
    assert fitted.to_pylist() == ["a", "a", "b"]
    assert len(fitted.chunk(0).dictionary) == 2
    null = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["a", None]))
    with pytest.raises(SchemaMismatch, match=r"steps\.job holds nulls"):
        conform(sent.set_column(index, "job", null), RECORDS["steps"], 1)


@given(st.binary(max_size=200))
def test_garbage_is_corrupt_data(data):
    with pytest.raises(CorruptData):
        decode(data)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_a_damaged_batch_is_an_error_of_ours_or_harmless(at, flip):
    data = bytearray(encode("steps", table("steps", 20), source="s", first_row=0))
    data[int(at * len(data))] ^= flip
    with contextlib.suppress(CorruptData, SchemaMismatch):
        assert decode(bytes(data)).rows == 20


@pytest.mark.parametrize(
    "change",
    [
        {"first": b"x"},
        {"rows": b"1.5"},
        {"version": b""},
        {"record": b"\xff"},
        {"source": None},
        {"rows": b"19"},
    ],
)
def test_a_batch_whose_identity_is_damaged_is_corrupt(change):
    rows = pa.ipc.open_stream(encode("steps", table("steps", 20), source="s", first_row=0)).read_all()
    meta = rows.schema.metadata
    (name,) = [each for each in meta if each.decode().rpartition(".")[2].startswith(next(iter(change)))]
    (value,) = change.values()
    damaged = {**meta, name: value} if value is not None else {k: v for k, v in meta.items() if k != name}
    with pytest.raises(CorruptData):
        decode(stream(rows.replace_schema_metadata(damaged)))


def test_a_batch_with_a_column_that_is_not_the_records_does_not_fit_it():
    rows = pa.ipc.open_stream(encode("steps", table("steps", 20), source="s", first_row=0)).read_all()
    renamed = rows.rename_columns(["stop" if n == "step" else n for n in rows.column_names])
    with pytest.raises(SchemaMismatch, match="no column 'stop'"):
        decode(stream(renamed.replace_schema_metadata(rows.schema.metadata)))


def stream(rows):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def test_a_truncated_batch_is_corrupt():
    data = encode("steps", table("steps", 20), source="s", first_row=0)
    with pytest.raises(CorruptData):
        decode(data[: len(data) // 2])


def test_an_older_writer_lacks_newer_fields_which_hold_their_defaults():
    record = RECORDS["steps"]
    newer = replace(
        record, fields=(*record.fields, Field(name="new", kind=Kind.I32, meaning="later", since=2))
    )
    assert conform(table("steps", 3), newer, version=1).column("new").to_pylist() == [-1, -1, -1]
    with pytest.raises(SchemaMismatch, match=r"steps\.new is missing"):
        conform(table("steps", 3), newer, version=2)


def test_a_newer_writers_unknown_fields_are_left_out():
    sent = table("steps", 3).append_column("later", pa.array([1, 2, 3]))
    fitted = conform(sent, RECORDS["steps"], version=SCHEMA_VERSION + 1)
    assert fitted.column_names == list(RECORDS["steps"].names)
    with pytest.raises(SchemaMismatch, match="no column 'later'"):
        conform(sent, RECORDS["steps"], version=SCHEMA_VERSION)


def test_a_wrong_type_a_null_and_an_unknown_record_are_mismatches():
    sent = table("steps", 2)
    index = sent.column_names.index("rank")
    text = sent.set_column(index, "rank", pa.array(["a", "b"]))
    null = sent.set_column(index, "rank", pa.array([1, None], pa.int32()))
    with pytest.raises(SchemaMismatch, match=r"steps\.rank is string; it must be int32"):
        encode("steps", text, source="s", first_row=0)
    with pytest.raises(SchemaMismatch, match=r"steps\.rank holds nulls"):
        encode("steps", null, source="s", first_row=0)
    with pytest.raises(SchemaMismatch, match="unknown record 'stepz'"):
        encode("stepz", sent, source="s", first_row=0)


def test_foreign_parquet_types_are_adopted():
    rows = {
        "job": ["j", "j"],
        "attempt": pa.array([0, 0], pa.int64()),
        "rank": pa.array([0, 1], pa.uint16()),
        "node": pa.array(["a", None]),
        "tp": [0, 1],
        "extra": [1, 2],
    }
    adopted = adopt("topology", pa.table(rows), now_ns=DAY)
    assert adopted.schema.equals(arrow_schema("topology"))
    first, second = adopted.to_pylist()
    assert (first["rank"], first["tp"], first["pp"], first["ip"]) == (0, 0, -1, "")
    assert second["node"] == ""
    assert first["ts"].value == DAY


@pytest.mark.parametrize(
    "start",
    [
        pa.array([DAY // 1000], pa.timestamp("us")),
        pa.array([DAY // 10**6], pa.timestamp("ms", tz="UTC")),
        pa.array([DAY // 10**6], pa.timestamp("ms", tz="Europe/Berlin")),
        pa.array([DAY], pa.int64()),
    ],
)
def test_times_of_any_unit_are_adopted_as_utc_nanoseconds(start):
    rows = pa.table({"job": ["j"], "attempt": [0], "step": [1], "rank": [0], "start": start, "loss": [1.5]})
    (row,) = adopt("steps", rows, now_ns=0).to_pylist()
    assert row["start"].value == DAY
    assert (row["loss"], row["grad_norm"]) == (1.5, None)
    assert math.isnan(row["flops"])


def test_a_foreign_table_without_its_key_or_with_an_unfit_column_is_refused():
    with pytest.raises(SchemaMismatch, match=r"steps\.attempt is missing"):
        adopt("steps", pa.table({"job": ["j"]}), now_ns=0)
    keys = {"job": ["j"], "attempt": [0], "step": [1]}
    with pytest.raises(SchemaMismatch, match=r"steps\.rank: string does not fit"):
        adopt("steps", pa.table({**keys, "rank": ["zero"]}), now_ns=0)


@pytest.mark.parametrize("record", RECORDS)
def test_an_agents_batch_is_read_like_an_arrow_stream(record):
    sent = columns(record, 4)
    from_agent = decode(encoding.encode(sent, source="n0/abc", first_row=9))
    from_kafka = decode(encode_columns(sent, source="n0/abc", first_row=9))
    assert from_agent.table.equals(from_kafka.table)
    assert from_agent.token == from_kafka.token == f"n0/abc:{record}:9:4"
    assert identify(encoding.encode(sent, source="n0/abc", first_row=9)).rows == 4


def test_every_form_becomes_the_same_arrow_stream_for_kafka():
    sent = columns("logs", 4)
    arrow = encode_columns(sent, source="n0/abc", first_row=9)
    assert as_arrow_ipc(arrow) is arrow
    converted = as_arrow_ipc(encoding.encode(sent, source="n0/abc", first_row=9))
    assert pa.ipc.open_stream(converted).read_all().equals(pa.ipc.open_stream(arrow).read_all())
    assert decode(converted).token == decode(arrow).token
    with pytest.raises(CorruptData):
        as_arrow_ipc(b"PTC1 and no more")


def test_an_agent_of_an_older_schema_lacks_newer_fields_which_hold_their_defaults(monkeypatch):
    data = encoding.encode(columns("steps", 3), source="s", first_row=0)
    newer = replace(
        RECORDS["steps"],
        fields=(
            *RECORDS["steps"].fields,
            Field(name="new", kind=Kind.I32, meaning="later", since=SCHEMA_VERSION + 1),
        ),
    )
    monkeypatch.setattr("pulsetrain.records.columns.RECORDS", {**RECORDS, "steps": newer})
    assert decode(data).table.column("new").to_pylist() == [-1, -1, -1]


def test_a_stream_that_would_not_fit_in_memory_is_refused_before_it_is_unpacked(monkeypatch):
    data = encode("steps", table("steps", 5000, job="j" * 50), source="s", first_row=0)
    assert decode(data).rows == 5000
    monkeypatch.setattr(batch, "MAX_BYTES", 100_000)
    assert len(data) < 100_000
    with pytest.raises(CorruptData, match="larger than 100000 bytes without its compression"):
        decode(data)


def test_more_rows_than_a_batch_may_have_are_refused_whatever_they_weigh(monkeypatch):
    data = encode("steps", table("steps", 9), source="s", first_row=0)
    monkeypatch.setattr(encoding, "MAX_ROWS", 8)
    with pytest.raises(CorruptData, match="batch of 9 rows; at most 8"):
        decode(data)
