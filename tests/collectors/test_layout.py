"""The layout of a ring: what is packed comes back, and nothing overlaps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors import layout

SHORT = st.integers(0, 2**16 - 1)


@given(SHORT, st.integers(0, 255), SHORT, st.integers(0, 2**15 - 1))
def test_a_head_packs_every_field_where_the_slot_has_it(name, category, parent, group):
    slot = np.zeros(1, layout.SPAN_DTYPE)
    slot.view(np.int64)[0] = layout.span_head(name, category, parent, group)
    row = slot[0]
    assert (row["kind"], row["name"], row["category"]) == (layout.SPAN, name, category)
    assert (row["parent"], row["group"]) == (parent, group)


@given(st.integers(0, 2**32 - 1), st.integers(-1, 40_000), st.integers(0, 2**15 - 1))
def test_a_context_packs_step_microbatch_and_lane(step, microbatch, lane):
    slot = np.zeros(1, layout.SPAN_DTYPE)
    slot.view(np.int64)[1] = layout.span_context(step, microbatch, lane)
    row = slot[0]
    assert (row["step"], row["lane"]) == (step, lane)
    assert row["microbatch"] == min(microbatch, 0x7FFF)


@given(st.integers(0, layout.MAX_GROUPS - 1), st.integers(0, 2**32 - 1), st.booleans())
def test_the_head_of_a_pair_comes_back(group, peer, sends):
    head = layout.pair_head(group, peer, sends=sends)
    assert 0 < head < 2**63
    assert layout.read_pair_head(head) == (group, peer, sends)


def test_the_parts_of_the_memory_follow_each_other():
    stack_end = layout.STACK_END
    assert stack_end <= layout.NAMES_AT < layout.GROUPS_AT < layout.MEMBERS_AT
    assert layout.MEMBERS_AT < layout.PAIRS_AT < layout.SLOTS_AT
    for record in (layout.SPAN_DTYPE, layout.STEP_DTYPE):
        assert record.itemsize == layout.SLOT_BYTES
        assert record.fields["commit"][1] == layout.SLOT_BYTES - 8  # the mark is written last


def test_what_a_span_packs_comes_back_from_its_slot():
    memory = bytearray(layout.SLOT_BYTES)
    layout.PACK_SPAN(memory, 0, 1, 2, 3, 4, -1, 7, 1 << 40, 1 << 41, 9)
    row = np.frombuffer(memory, layout.SPAN_DTYPE)[0]
    assert (row["start"], row["end"], row["seq"], row["peer"]) == (3, 4, -1, 7)
    assert (row["bytes"], row["blocked"], row["commit"]) == (1 << 40, 1 << 41, 9)
    layout.PACK_PHASE(memory, 0, 1, 2, 3, 4, 5, 9)
    row = np.frombuffer(memory, layout.SPAN_DTYPE)[0]
    assert (row["end"], row["bytes"], row["blocked"], row["commit"]) == (4, 0, 5, 9)
