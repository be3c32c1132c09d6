"""Many objects of one kind travel as columns, and come back equal."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.protocol.packing import MOST_ROWS, Packed, pack, unpack


@dataclass(frozen=True, kw_only=True)
class Leaf:
    name: str
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Branch:
    number: int
    text: str = ""
    ranks: tuple[int, ...] = ()
    leaves: tuple[Leaf, ...] = ()


LEAF = Packed(Leaf, {}, {}, {})
BRANCH = Packed(Branch, {"leaves": LEAF}, {"ranks": list}, {"ranks": tuple})
LEAVES = st.builds(Leaf, name=st.sampled_from("ab"), count=st.integers(0, 2))
BRANCHES = st.builds(
    Branch,
    number=st.integers(0, 3),
    text=st.sampled_from(["", "x", "y"]),
    ranks=st.lists(st.integers(0, 2), max_size=2).map(tuple),
    leaves=st.lists(LEAVES, max_size=3).map(tuple),
)


@given(st.lists(BRANCHES, max_size=9))
def test_what_is_packed_comes_back_equal(branches):
    assert unpack(BRANCH, json.loads(json.dumps(pack(BRANCH, branches)))) == tuple(branches)


def test_defaults_are_left_out_and_equal_values_are_sent_once():
    packed = pack(BRANCH, [Branch(number=7) for _ in range(100)])
    assert packed == {"rows": 100, "columns": {"number": {"same": 7}}}


def test_texts_that_come_again_are_listed_once():
    packed = pack(LEAF, [Leaf(name=f"long name {number % 2}") for number in range(50)])
    assert packed["columns"]["name"]["values"] == ["long name 0", "long name 1"]


def test_a_field_that_only_a_newer_peer_knows_is_left_out():
    packed = pack(LEAF, [Leaf(name="a"), Leaf(name="b")])
    packed["columns"]["colour"] = {"same": "red"}
    assert unpack(LEAF, packed) == (Leaf(name="a"), Leaf(name="b"))


@pytest.mark.parametrize(
    "packed",
    [
        {},
        {"rows": 2, "columns": {}},  # a name is needed
        {"rows": 2, "columns": {"name": ["a"]}},
        {"rows": 2, "columns": {"name": {"values": ["a"], "codes": [0, 1]}}},
        {"rows": -1, "columns": {"name": {"same": "a"}}},
        {"rows": MOST_ROWS + 1, "columns": {"name": {"same": "a"}}},
        {"rows": "2", "columns": {"name": {"same": "a"}}},
        {"rows": 2, "columns": {"name": 5}},
    ],
)
def test_what_is_not_packed_is_refused(packed):
    with pytest.raises((ValueError, LookupError, TypeError)):
        unpack(LEAF, packed)


def test_objects_that_fit_no_row_are_refused():
    packed = pack(BRANCH, [Branch(number=n, leaves=(Leaf(name="a"),)) for n in range(3)])
    packed["columns"]["leaves"]["lengths"] = [1, 1, 2]
    with pytest.raises(ValueError, match="3 objects"):
        unpack(BRANCH, packed)


def test_a_row_cannot_have_fewer_than_no_objects():
    packed = pack(BRANCH, [Branch(number=1, leaves=(Leaf(name="a"),)) for _ in range(2)])
    packed["columns"]["leaves"]["lengths"] = [3, -1]
    with pytest.raises(ValueError, match="-1 objects"):
        unpack(BRANCH, packed)
