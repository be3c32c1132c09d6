"""The size of a stream is known before it is unpacked."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import CorruptData
from pulsetrain.records.ipc_size import unpacked_bytes


def stream(table, compression="zstd", chunk=None):
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_it_is_that_of_the_rows_in_memory(compression):
    table = pa.table({"zeros": pa.array([0] * 100_000, pa.int64()), "text": ["long" * 9] * 100_000})
    data = stream(table, compression, chunk=30_000)
    assert table.nbytes <= unpacked_bytes(data) < table.nbytes * 1.01 + 4096
    assert compression is None or len(data) < table.nbytes / 10


def test_dictionaries_count():
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["x" * 1_000_000]))
    assert unpacked_bytes(stream(pa.table({"names": column}))) > 1_000_000


def test_what_is_no_stream_is_corrupt():
    for data in (b"nothing", stream(pa.table({"a": [1, 2]}))[:-30]):
        with pytest.raises(CorruptData):
            unpacked_bytes(data)


def test_a_negative_size_does_not_hide_another():
    data = bytearray(stream(pa.table({"a": [0] * 1000})))
    at = data.rindex((8000).to_bytes(8, "little"))
    data[at : at + 8] = (-8000).to_bytes(8, "little", signed=True)
    with pytest.raises(CorruptData, match="-8000 bytes"):
        unpacked_bytes(bytes(data))


@given(st.data())
def test_damage_never_ends_in_anything_but_corrupt_data(data):
    whole = bytearray(stream(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})))
    for _ in range(3):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptData):
        unpacked_bytes(bytes(whole))
