"""What the agent reads: complete records only, whatever the rank left behind."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.layout import SLOT_BYTES, SLOTS_AT, W_HOLD_UNTIL
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.core.errors import CorruptData
from tests.collectors.rank.both_ends import CAPACITY, Ring
from tests.collectors.rank.watched import Watched


@given(st.integers(0, SLOT_BYTES - 8), st.integers(0, 5), st.integers(1, 5))
def test_a_rank_killed_in_mid_write_loses_that_record_alone(cut, before, after):
    """The record after `before` others is stored up to byte `cut`; others had been claimed after it."""
    ring = Ring()
    for n in range(before):
        ring.write(n)
    at, mark = ring.writer.next_slot()
    whole = struct.pack("<8q", ring.head, 0, 1, 2, 3, 3, -1, mark)
    ring.writer.memory[at : at + cut] = whole[:cut]
    for n in range(after):
        ring.write(100 + n)
    assert ring.drained() == list(range(before))
    assert ring.drained(final=True) == [100 + n for n in range(after)]
    assert ring.reader.lost == 1


def test_a_gap_that_stays_is_given_up_after_patience():
    ring = Ring()
    ring.writer.next_slot()
    ring.write(7)
    assert [ring.drained() for _ in range(8)] == [[]] * 8
    assert ring.drained() == [7]
    assert ring.reader.lost == 1


@given(
    st.lists(
        st.tuples(st.integers(0, SLOTS_AT + CAPACITY * SLOT_BYTES - 1), st.binary(min_size=1, max_size=200))
    )
)
def test_garbage_anywhere_never_raises_and_yields_only_sound_records(smudges):
    ring = Ring()
    for n in range(20):
        ring.write(n)
    memory = ring.writer.memory
    for at, smudge in smudges:
        end = min(at + len(smudge), len(memory))
        memory[at:end] = smudge[: end - at]
    spans, steps = ring.reader.drain(final=True)
    assert len(spans) + len(steps) <= CAPACITY
    assert (spans["end"] >= spans["start"]).all()
    assert (spans["category"] < 5).all()
    assert (spans["name"] < len(ring.reader.names)).all()
    page = ring.reader.status()
    assert len(page.groups) <= 256
    assert len(page.stack) <= 16


def test_steps_tell_not_logged_from_a_real_nan():
    ring = Ring()
    ring.writer.step(3, 10, 5, tokens=7, flops=2.0, loss=float("nan"))
    _, steps = ring.reader.drain()
    assert (steps["step"][0], steps["tokens"][0], steps["flags"][0]) == (3, 7, 1)
    assert steps["loss"][0] != steps["loss"][0]


def test_a_foreign_descriptor_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\0" * (SLOTS_AT + 64 * SLOT_BYTES))
    with path.open("r+b") as file, pytest.raises(CorruptData, match="no ring"):
        RingReader(file.fileno())


def test_written_counts_what_is_ready_and_not_yet_read():
    ring = Ring()
    for n in range(5):
        ring.write(n)
    assert ring.reader.written == 5
    ring.drained()
    ring.write(9)
    assert (ring.reader.read, ring.reader.written) == (5, 6)


def test_a_rank_whose_clock_was_restored_from_an_image_stands_no_longer_than_it_should():
    watched = Watched()
    watched.reader.restored(-32_000, 7_000_000)
    watched.reader.hold(1, 0, 100_000)
    assert watched.handle.state.words[W_HOLD_UNTIL] == 68_000
    assert watched.reader.status().utc_offset_ns == 7_032_000
