"""A layout and values survive JSON, and damaged ones are refused."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory.layout import (
    ALIGN,
    Entry,
    Layout,
    aligned,
    decode,
    decode_values,
    element_bytes,
    encode_values,
    rebuild,
)
from pulsetrain.core.errors import CorruptData

SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@st.composite
def entries(draw):
    shape = draw(SHAPES)
    sharded = draw(st.booleans()) and bool(shape)
    return Entry(
        name=draw(st.text(max_size=8)),
        dtype="float32",
        shape=shape,
        offset=draw(st.integers(0, 2**40)),
        bytes=4 * math.prod(shape),
        at=tuple(1 for _ in shape) if sharded else (),
        whole=tuple(n + 1 for n in shape) if sharded else (),
    )


@given(st.lists(entries(), max_size=5))
def test_a_layout_survives_json(some):
    layout = Layout(entries=tuple(some), tree={"d": [["a", {"v": 0}]]})
    assert decode(layout.encode()) == layout
    without = dataclasses.replace(layout, without_tensors=(("optimizer", 1, "a.bias"),))
    assert decode(without.encode()) == without


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())))
def test_values_survive_json(values):
    assert decode_values(encode_values(values)) == values


def test_a_value_that_is_no_number_survives_too():
    (found,) = decode_values(encode_values([math.nan]))
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"tensors": [[1]], "tree": {}}', b"\xff"])
def test_damaged_layouts_are_refused(data):
    with pytest.raises(CorruptData, match="not a checkpoint layout"):
        decode(data)


@pytest.mark.parametrize("data", [b"", b"{}", b"3"])
def test_damaged_values_are_refused(data):
    with pytest.raises(CorruptData, match="not checkpoint values"):
        decode_values(data)


@given(st.integers(0, 2**40))
def test_a_tensor_begins_at_the_next_boundary(offset):
    assert aligned(offset) % ALIGN == 0
    assert offset <= aligned(offset) < offset + ALIGN


def test_a_whole_tensor_has_no_position_in_the_layout():
    entry = Entry(name="w", dtype="float32", shape=(2, 3), offset=0, bytes=24)
    assert entry.box == ((0, 0), (2, 3), (2, 3))
    assert element_bytes(entry) == 4
    assert element_bytes(Entry(name="w", dtype="float32", shape=(0,), offset=0, bytes=0)) == 0
    (row,) = json.loads(Layout(entries=(entry,), tree={}).encode())["tensors"]
    assert row == ["w", "float32", [2, 3], 0, 24]


def test_the_payload_ends_with_its_last_tensor():
    first = Entry(name="a", dtype="uint8", shape=(5,), offset=64, bytes=5)
    assert Layout(entries=(first,), tree={}).payload_bytes == 69
    assert Layout(entries=(), tree={}).payload_bytes == 0


class Tensor(str):
    """Says when it is taken as an array."""

    def numpy(self) -> str:
        return f"array of {self}"


def test_every_kind_of_node_is_rebuilt():
    tree = {
        "d": [["x", {"t": 0}], [3, {"l": [{"v": 1}, {"u": [{"v": 0}, {"n": 1}]}]}], ["none", {"d": []}]],
    }
    state = rebuild(tree, [Tensor("t0"), Tensor("t1")], ["v0", "v1"])
    assert state == {"x": "t0", 3: ["v1", ("v0", "array of t1")], "none": {}}
