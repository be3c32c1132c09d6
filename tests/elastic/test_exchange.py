"""An all-to-all between two partitions, carried out on lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.exchange import exchange
from pulsetrain.elastic.shard_mapping import shard_mapping
from tests.elastic.partitions import mappings


def carried_out(before, after, buffers):
    """What ranks hold after the exchange, if each hands over what its sizes say."""
    parts = exchange(before, after)
    boxes = [[[] for _ in parts] for _ in parts]
    for rank, part in enumerate(parts):
        outgoing = [buffers[rank][position] for position in part.send_order]
        for peer, count in enumerate(part.send_counts):
            boxes[peer][rank], outgoing = outgoing[:count], outgoing[count:]
        assert not outgoing
    result = []
    for rank, part in enumerate(parts):
        assert tuple(map(len, boxes[rank])) == part.recv_counts
        arrived = [unit for box in boxes[rank] for unit in box]
        held = [None] * len(arrived)
        for unit, position in zip(arrived, part.recv_order, strict=True):
            held[position] = unit
        result.append(tuple(held))
    return tuple(result)


@settings(max_examples=40)
@given(mappings)
def test_units_arrive_where_the_partition_says_and_come_back(mapping):
    there = carried_out(mapping.compute, mapping.sync, mapping.compute)
    assert there == mapping.sync
    assert carried_out(mapping.sync, mapping.compute, there) == mapping.compute


@settings(max_examples=20)
@given(mappings)
def test_what_is_sent_before_the_sum_comes_back_after_it(mapping):
    before = exchange(mapping.compute, mapping.sync)
    after = exchange(mapping.sync, mapping.compute)
    for there, back in zip(before, after, strict=True):
        assert there.send_counts == back.recv_counts
        assert there.recv_counts == back.send_counts


def test_spares_send_to_different_core_ranks_and_core_ranks_keep_the_rest():
    mapping = shard_mapping(24, 8, 6)
    parts = exchange(mapping.compute, mapping.sync)
    assert [part.send_counts for part in parts[6:]] == [(1, 1, 1, 0, 0, 0, 0, 0), (0, 0, 0, 1, 1, 1, 0, 0)]
    assert parts[0].recv_counts == (3, 0, 0, 0, 0, 0, 1, 0)
    assert parts[6].recv_counts == (0,) * 8


@pytest.mark.parametrize("after", [((0,), (2,)), ((0, 1),), ((0, 1), (1,))])
def test_partitions_of_different_units_are_refused(after):
    with pytest.raises(UsageError, match="partition"):
        exchange(((0,), (1,)), after)
