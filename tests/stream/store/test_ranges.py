"""Ranges behave as the set of integers that they stand for."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.stream.store.ranges import Ranges

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=20)


@given(SPANS, st.integers(0, 50), st.integers(1, 20))
def test_ranges_are_a_set_of_integers(spans, first, length):
    ranges, model = Ranges(), set()
    for start, size in spans:
        low, high = ranges.add(start, start + size)
        model |= set(range(start, start + size))
        assert low <= start
        assert high >= start + size
        assert set(range(low, high)) <= model
    assert {i for low, high in ranges for i in range(low, high)} == model
    gaps = ranges.missing(first, first + length)
    assert {i for low, high in gaps for i in range(low, high)} == set(range(first, first + length)) - model
    assert gaps == sorted(gaps)
    bounds = list(ranges)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(bounds))


@given(SPANS, SPANS)
def test_what_is_removed_is_missing_and_nothing_else(added, removed):
    ranges, model = Ranges(), set()
    for start, size in added:
        ranges.add(start, start + size)
        model |= set(range(start, start + size))
    for start, size in removed:
        ranges.remove(start, start + size)
        model -= set(range(start, start + size))
    assert {i for low, high in ranges for i in range(low, high)} == model
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
