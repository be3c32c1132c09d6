"""Lines as templates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.machines.log_templates import LONGEST_LINE, Templates, mask


def test_what_varies_is_masked_and_the_same_message_is_one_template():
    assert mask("2026-01-02 03:04:05,678 rank 3 at 10.0.0.1:29500 0xdeadbeef /data/x/y.bin 1e-3") == (
        "<time> rank <n> at <ip> <hex> <path> <n>"
    )
    templates = Templates()
    first = templates.add("worker alpha failed after 3 s")
    assert templates.add("worker alpha failed after 99 s") == first
    assert templates.add("something else entirely happened here") != first
    assert "failed" in templates.text(first)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_numbers_never_tell_two_lines_apart(first, second):
    assert mask(f"rank {first} lost {second} s") == mask(f"rank {second} lost {first} s")


def test_a_template_that_was_never_made_is_empty_and_a_line_is_cut():
    assert Templates().text(7) == ""
    assert len(mask("x" * 9_999)) == LONGEST_LINE
