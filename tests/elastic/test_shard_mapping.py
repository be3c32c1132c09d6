"""The mapping of units between groups of unequal size, against published figures and its own laws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.core.errors import UsageError
from pulsetrain.elastic.shard_mapping import contiguous, moved_units, overlaps, shard_mapping
from tests.elastic.partitions import degrees, mappings, sizes, units_of


@settings(max_examples=40)
@given(mappings)
def test_every_unit_is_held_once_before_and_after(mapping):
    everything = units_of(mapping.reduced)
    assert everything == list(range(len(everything)))
    assert units_of(mapping.sync) == everything
    assert units_of(mapping.compute) == everything


@settings(max_examples=40)
@given(mappings)
def test_work_and_traffic_are_even_within_one_unit_and_the_least_there_can_be(mapping):
    shares = sizes(mapping.compute)
    assert max(shares) - min(shares) <= 1
    sent = [len(mapping.sync[rank]) - shares[rank] for rank in mapping.core]
    assert min(sent) >= 0
    assert max(sent) - min(sent) <= 1
    spares = set(range(len(shares))) - set(mapping.core)
    assert mapping.moved == sum(shares[rank] for rank in spares)  # no unit moves that could stay


@settings(max_examples=40)
@given(mappings)
def test_core_ranks_hold_during_the_sum_what_their_partners_hold(mapping):
    assert tuple(mapping.sync[rank] for rank in mapping.core) == mapping.reduced
    assert all(part == tuple(sorted(part)) for part in mapping.compute)


@settings(max_examples=30)
@given(st.integers(0, 60), degrees, st.randoms(use_true_random=False))
def test_renaming_ranks_renames_the_mapping(units, pair, random):
    full, reduced = pair
    names = sorted(random.sample(range(full), reduced))
    others = [rank for rank in range(full) if rank not in names]
    plain = shard_mapping(units, full, reduced)
    renamed = shard_mapping(units, full, reduced, core=names)
    order = [*names, *others]
    assert tuple(renamed.compute[rank] for rank in order) == plain.compute
    assert tuple(renamed.sync[rank] for rank in order) == plain.sync


def test_24_units_from_8_ranks_to_6():
    mapping = shard_mapping(24, 8, 6)
    assert sizes(mapping.compute) == [3] * 8
    for spare in (6, 7):  # each takes from three different ranks
        assert len({unit // 4 for unit in mapping.compute[spare]}) == 3


def test_moving_first_beats_summing_in_fragments_at_tp32_and_tp30():
    """Published: hidden 12,000, 30 transfers of 375, and fragments that make up 25 for each of 30 ranks."""
    mapping = shard_mapping(12000, 32, 30)
    table = overlaps(mapping.compute, mapping.reduced)
    assert [table[rank][rank] for rank in range(30)] == [375] * 30
    fragments = [count for row in table[30:] for count in row if count]
    assert len(fragments) == 2 * 30
    assert [table[30][rank] + table[31][rank] for rank in range(30)] == [25] * 30
    after = overlaps(mapping.sync, mapping.reduced)
    assert [count for row in after for count in row if count] == [400] * 30  # one to one, in 30 transfers
    assert mapping.moved == 750
    assert moved_units(contiguous(12000, 32), mapping.sync) == 9000  # an order that ignores the sum moves 12x


def test_equal_degrees_move_nothing():
    mapping = shard_mapping(10, 4, 4)
    assert mapping.compute == mapping.sync == mapping.reduced
    assert mapping.moved == 0


@pytest.mark.parametrize("bad", [(8, 4, 5), (8, 4, 0), (-1, 4, 2)])
def test_impossible_sizes_are_named(bad):
    with pytest.raises(UsageError, match="allowed"):
        shard_mapping(*bad)


@pytest.mark.parametrize("core", [(0, 0), (0, 4), (0,)])
def test_core_ranks_are_different_ranks_of_the_group(core):
    with pytest.raises(UsageError, match="core ranks"):
        shard_mapping(8, 4, 2, core=core)
