"""Positions go from agent to hub and mean the same there."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import CorruptData
from pulsetrain.elastic import positions
from pulsetrain.elastic.barrier import Channel, decide

RANKS = st.lists(st.integers(0, 2**20), min_size=1, max_size=8, unique=True)


@given(RANKS)
def test_members_come_back(members):
    read = positions.read_members(json.loads(json.dumps(positions.packed_members(members))))
    assert list(read) == members


def written(rank, *, entered=4, sends=(), receives=(), members=(0, 1), **more):
    fields = {"stands": True, "arrivals": 1, "in_flight": 0, "complete": True} | more
    pairs = [("pp", peer, True, n) for peer, n in sends] + [("pp", peer, False, n) for peer, n in receives]
    text = positions.encode(groups=[("world", members, entered)], pairs=pairs, **fields)
    return positions.decode(rank, json.loads(json.dumps(text)))


def test_both_ends_of_a_pair_count_on_one_channel():
    sender, receiver = written(0, sends=[(1, 3)]), written(1, receives=[(0, 3)])
    channel = Channel("pp", (0, 1), directed=True)
    assert sender.entered[channel] == receiver.entered[channel] == 3
    assert decide({0: sender, 1: receiver}, (0, 1)).acquired
    assert decide({0: sender, 1: written(1, receives=[(0, 2)])}, (0, 1)).run_on == {1}
    assert decide({0: sender, 1: written(1, sends=[(0, 3)])}, (0, 1)).run_on == {0, 1}


@pytest.mark.parametrize("text", [None, {}, {"groups": [["w", [0], 1]], "pairs": []}, {"groups": 3}])
def test_what_is_no_position_is_refused_in_one_line(text):
    with pytest.raises(CorruptData, match="position of rank 3"):
        positions.decode(3, text)
