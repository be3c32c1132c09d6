"""Decoding of open phases: whatever the words hold, the answer is a name and a category."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.layout import WAITING, span_head
from pulsetrain.collectors.reading.status_page import name_of, open_phase
from pulsetrain.records.schema import CATEGORIES

NAMES = ["", "forward", "all_reduce", "dp"]


def test_an_open_phase_has_its_name_category_and_start():
    phase = open_phase(span_head(1, CATEGORIES.index("compute")), 17, NAMES)
    assert (phase.name, phase.category, phase.start_ns, phase.waiting) == ("forward", "compute", 17, False)


def test_a_wait_is_told_from_a_phase():
    head = span_head(2, CATEGORIES.index("communication"), group=3) | WAITING
    phase = open_phase(head, 1, NAMES)
    assert (phase.waiting, phase.name, phase.group) == (True, "all_reduce", "dp")


@given(st.integers(0, 2**63 - 1))
def test_any_head_decodes(head):
    phase = open_phase(head, 0, NAMES)
    assert phase.category in CATEGORIES
    assert phase.name in NAMES
    assert phase.group in NAMES


@given(st.integers(-(2**40), 2**40))
def test_an_index_out_of_range_is_the_empty_name(index):
    assert name_of(NAMES, index) == (NAMES[index] if 0 <= index < len(NAMES) else "")
