"""Ranges of steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.stream.queries.queryable import AttemptSteps


@given(first=st.integers(0, 50), length=st.integers(1, 60), size=st.integers(1, 70))
def test_the_parts_of_a_range_are_all_its_steps_once_in_order(first, length, size):
    whole = AttemptSteps(job="j", attempt=2, first=first, last=first + length - 1)
    parts = whole.parts(size)
    steps = [step for part in parts for step in range(part.first, part.last + 1)]
    assert steps == list(range(whole.first, whole.last + 1))
    assert all(part.last - part.first < size for part in parts)
    assert {(part.job, part.attempt) for part in parts} == {("j", 2)}


def test_an_empty_range_has_no_parts():
    assert AttemptSteps(job="j", attempt=0, first=5, last=4).parts(10) == []
