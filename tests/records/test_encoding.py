from __future__ import annotations

import contextlib
import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import CorruptData, SchemaMismatch
from pulsetrain.records.columns import Columns
from pulsetrain.records.encoding import MAX_ROWS, Identity, decode, encode, identify, is_columns
from pulsetrain.records.schema import RECORDS, SCHEMA_VERSION, Kind
from tests.records.rows import columns

I64 = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    Kind.NAME: st.sampled_from(["", "a", "ring", "n\u00f6de", "\U0001f525"]),
    Kind.TEXT: st.text(max_size=20).filter(lambda text: text.isprintable()),
    Kind.JSON: st.just("{}"),
    Kind.I32: st.integers(-(2**31), 2**31 - 1),
    Kind.I64: I64,
    Kind.F64: st.floats(),
    Kind.MAYBE: st.one_of(st.none(), st.floats()),
    Kind.BOOL: st.booleans(),
    Kind.TIME: I64,
}


def rows_of(record):
    return st.lists(
        st.fixed_dictionaries({f.name: VALUES[f.kind] for f in RECORDS[record].fields}), max_size=8
    )


def same(first, second):
    return first == second or (first != first and second != second)


@given(st.sampled_from(sorted(RECORDS)).flatmap(lambda r: st.tuples(st.just(r), rows_of(r))))
def test_every_value_comes_back(drawn):
    record, rows = drawn
    batch = Columns.from_rows(record, rows)
    identity, back = decode(encode(batch, source="n0/abc", first_row=40))
    assert identity == Identity(
        record=record, source="n0/abc", first_row=40, rows=len(rows), version=SCHEMA_VERSION
    )
    assert back.num_rows == len(rows)
    for sent, got in zip(rows, back.to_rows(), strict=True):
        assert list(got) == list(RECORDS[record].names)
        assert all(same(sent[name], got[name]) for name in sent)


def test_a_nan_with_a_payload_keeps_its_bits():
    odd = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]
    _, back = decode(encode(columns("metrics", 2, value=[odd, 1.0]), source="s", first_row=0))
    assert back.column("value").data.view(np.uint64).tolist()[0] == 0x7FF8000000000123


def test_the_identity_is_read_without_the_rows():
    data = encode(columns("logs", 3), source="n/1", first_row=7)
    cut = data[: len(data) - 20]
    assert identify(cut).first_row == 7
    with pytest.raises(CorruptData):
        decode(cut)


def test_only_names_that_rows_hold_are_sent():
    first = columns("logs", 2, node=["a", "b"])
    data = encode(Columns.concat([first, columns("logs", 1, node=["c"])]), source="s", first_row=0)
    some = decode(encode(columns("logs", 1, node=["a"]), source="s", first_row=0))[1]
    assert sorted(decode(data)[1].column("node").names) == ["a", "b", "c"]
    assert some.column("node").names == ("a",)


def test_equal_values_take_no_space():
    same_rows = {"node": "n", "device": "d", "name": "x", "ts": 5, "value": 0.5}
    small, large = (Columns.from_values("metrics", rows, same_rows) for rows in (10, 10_000))
    assert len(encode(large, source="s", first_row=0)) - len(encode(small, source="s", first_row=0)) < 10


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=50),
    st.sampled_from([0, 1, 10**18, -(2**63), 2**63 - 2501]),
)
def test_times_in_order_come_back_and_take_little_space(steps, begin):
    times = [begin + sum(steps[:i]) for i in range(len(steps))]
    _, back = decode(encode(columns("metrics", len(times), ts=times), source="s", first_row=0))
    assert back.column("ts").to_list() == times


def test_times_at_a_steady_pace_take_no_space():
    values = {"node": "n", "device": "d", "name": "x", "value": 0.5}
    batches = [
        Columns.from_values("metrics", n, {**values, "ts": 10**18 + np.arange(n) * 10**9})
        for n in (10, 10_000)
    ]
    small, large = (len(encode(batch, source="s", first_row=0)) for batch in batches)
    assert large - small < 10


def test_text_that_utf8_cannot_hold_is_replaced_and_does_not_lose_the_batch():
    _, back = decode(encode(columns("logs", 2, message=["a\ud800b", "c"]), source="s", first_row=0))
    assert back.column("message").to_list() == ["a?b", "c"]


@given(st.binary(max_size=200))
def test_garbage_is_corrupt_data(data):
    for read in (decode, identify):
        with pytest.raises(CorruptData, match="not a batch of columns"):
            read(data)
        with pytest.raises(CorruptData):
            read(b"PTC1" + data)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_one_damaged_byte_is_noticed_or_changes_nothing(at, flip):
    sent = columns("steps", 20)
    data = bytearray(encode(sent, source="s", first_row=0))
    data[int(at * len(data))] ^= flip
    try:
        identity, back = decode(bytes(data))
    except CorruptData:
        return
    assert (identity.source, identity.first_row) == ("s", 0)  # a bit that fills up the last byte
    assert back.to_rows() == sent.to_rows()


def forged(change, body=b""):
    """A batch with a valid checksum whose header was changed."""
    data = encode(columns("logs", 2), source="s", first_row=0)
    size = struct.unpack_from("<4sII", data)[1]
    header = json.loads(data[12 : 12 + size])
    change(header)
    head = json.dumps(header).encode()
    return struct.pack("<4sII", b"PTC1", len(head), zlib.crc32(head)) + head + (body or data[12 + size :])


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.update(rows=MAX_ROWS + 1),
        lambda h: h.update(rows=3),
        lambda h: h.update(first_row=-1),
        lambda h: h.update(body_bytes=1),
        lambda h: h.update(body_bytes=-1),
        lambda h: h.pop("source"),
        lambda h: h["columns"][0].update(kind="complex"),
        lambda h: h["columns"][0].update(packed=[3, 0]),
        lambda h: h["columns"][1].update(names=[]),
        lambda h: h["columns"][1].update(names=[1, 2]),
        lambda h: h["columns"][7].update(text_bytes=10**9),
        lambda h: h["columns"].pop(),
        lambda h: h["columns"][0].update(first="soon"),
        lambda h: h["columns"][0].update(first=2**70),
        lambda h: h.update(rows=0),
        lambda h: h.update(source="\ud800"),
        lambda h: h.update(first_row=1 << 64),
        lambda h: h.update(body_bytes=1 << 40),
        lambda h: h["columns"][1].update(names=["\ud800", "\ud800"]),
        lambda h: h["columns"].append(h["columns"][0]),
        lambda h: h.update(
            rows=MAX_ROWS, columns=[{**h["columns"][0], "packed": [0, 0], "name": str(i)} for i in range(99)]
        ),
    ],
)
def test_a_header_that_does_not_fit_its_body_is_corrupt_data(change):
    assert decode(forged(lambda h: None))[0].rows == 2
    with pytest.raises(CorruptData):
        decode(forged(change))


def test_a_body_that_unpacks_to_more_than_it_says_is_not_unpacked():
    with pytest.raises(CorruptData, match="body is not the"):
        decode(forged(lambda h: None, body=zlib.compress(bytes(100_000_000), 9)))


def test_columns_that_are_not_the_records_are_refused():
    logs = columns("logs", 2)
    with pytest.raises(SchemaMismatch, match="metrics has no column"):
        encode(Columns("metrics", 2, logs.columns), source="s", first_row=0)
    without = {name: column for name, column in logs.columns.items() if name != "rank"}
    with pytest.raises(SchemaMismatch, match=r"logs\.rank is missing"):
        encode(Columns("logs", 2, without), source="s", first_row=0)
    with pytest.raises(SchemaMismatch, match="unknown record"):
        encode(Columns("nothing", 2, logs.columns), source="s", first_row=0)


def test_the_form_is_told_by_its_first_bytes():
    assert is_columns(encode(columns("logs", 0), source="s", first_row=0))
    assert not is_columns(b"\xff\xff\xff\xff arrow")


@pytest.mark.parametrize("inside", ["[" * 100_000, '{"rows": ' + "[" * 100_000])
def test_a_header_that_nests_without_end_is_corrupt_data(inside):
    head = inside.encode()
    data = struct.pack("<4sII", b"PTC1", len(head), zlib.crc32(head)) + head
    for read in (decode, identify):
        with pytest.raises(CorruptData, match="not a batch of columns"):
            read(data)


def test_a_body_may_not_say_that_it_is_larger_than_any_batch():
    with pytest.raises(CorruptData, match="at most"):
        decode(forged(lambda h: h.update(body_bytes=1 << 30), body=zlib.compress(bytes(64 << 20))))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "\ud800", "x", "f64"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_any_header_is_read_or_refused(data):
    def change(header):
        where = data.draw(st.sampled_from([header, *header["columns"]]))
        where[data.draw(st.sampled_from(sorted(where)))] = data.draw(JSON)

    with contextlib.suppress(CorruptData):
        decode(forged(change))
