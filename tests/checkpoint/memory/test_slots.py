"""The parts of a slot, and how many slots a state gets."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory.header_page import SLOT_WORDS
from pulsetrain.checkpoint.memory.slots import (
    DURABLE,
    LARGE_BYTES,
    MAX_SLOTS,
    PAGE,
    PINNED,
    SMALL_BYTES,
    UNCHANGED,
    SlotInfo,
    payload_offset,
    slots_for,
)


@given(st.integers(0, 2**30), st.integers(0, 2**30))
def test_tensors_begin_on_the_first_page_after_layout_and_values(layout, values):
    offset = payload_offset(layout, values)
    assert offset % PAGE == 0
    assert layout + values <= offset < layout + values + PAGE


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_larger_state_never_gets_more_slots(one, other):
    small, large = sorted((one, other))
    assert 2 <= slots_for(large) <= slots_for(small) <= MAX_SLOTS


@pytest.mark.parametrize(
    ("size", "slots"),
    [(SMALL_BYTES, MAX_SLOTS), (SMALL_BYTES + 1, 3), (LARGE_BYTES, 3), (LARGE_BYTES + 1, 2)],
)
def test_slots_by_size(size, slots):
    assert slots_for(size) == slots


@pytest.mark.parametrize("flags", range(8))
def test_each_flag_has_its_property(flags):
    info = SlotInfo(slot=0, **(dict.fromkeys(SLOT_WORDS, 0) | {"flags": flags}))
    assert (info.pinned, info.unchanged, info.durable) == (
        bool(flags & PINNED),
        bool(flags & UNCHANGED),
        bool(flags & DURABLE),
    )
    sized = dataclasses.replace(info, layout_bytes=10, values_bytes=5, payload_bytes=100)
    assert sized.total_bytes == PAGE + 100
