"""A cell of the ring's page 0: what is stored comes back, and what is not whole is none."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.checkpoint_cell import (
    CELL_BYTES,
    MAX_PATH_BYTES,
    CheckpointCell,
    read_cell,
    shown_path,
    write_cell,
)
from pulsetrain.collectors.layout import LOADED_AT, NAMES_AT, SAVED_AT, STACK_END
from tests.collectors.rank.both_ends import Ring

NUMBER = st.integers(-1, 2**62)
CELLS = st.builds(
    CheckpointCell,
    step=NUMBER, bytes=NUMBER, files=NUMBER, start_ns=NUMBER, end_ns=NUMBER,
    path=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=100),
    file_bytes=NUMBER, file_mtime_ns=NUMBER,
)  # fmt: skip


@given(CELLS, CELLS)
def test_the_newest_cell_comes_back_and_its_neighbours_stay(first, second):
    memory = bytearray(b"\xaa" * 3 * CELL_BYTES)
    for cell in (first, second):
        write_cell(memory, CELL_BYTES, cell)
        assert read_cell(memory, CELL_BYTES) == cell
    assert memory[:CELL_BYTES] == memory[2 * CELL_BYTES :] == b"\xaa" * CELL_BYTES


@given(CELLS, CELLS, st.integers(1, CELL_BYTES - 1))
def test_a_writer_that_dies_while_it_stores_leaves_no_cell_that_never_was(before, after, stored):
    old, new = bytearray(CELL_BYTES), bytearray(CELL_BYTES)
    write_cell(old, 0, before)
    write_cell(new, 0, after)
    torn = new[:stored] + old[stored:]
    assert read_cell(torn, 0) in (None, before, after)


@given(st.text(max_size=2000))
def test_a_path_is_cut_to_what_a_cell_can_hold(path):
    shown = shown_path(path.replace("\0", ""))
    assert len(shown.encode()) <= MAX_PATH_BYTES
    assert shown_path(shown) == shown or len(shown.encode()) > MAX_PATH_BYTES - 4


def test_a_path_is_absolute_and_a_name_with_a_scheme_stays():
    assert shown_path("out/ckpt.pt") == os.path.join(os.getcwd(), "out/ckpt.pt")
    assert shown_path("s3://bucket/step-30") == "s3://bucket/step-30"


def test_the_cells_lie_on_page_0_behind_the_open_phases():
    assert STACK_END <= SAVED_AT
    assert SAVED_AT + CELL_BYTES <= LOADED_AT
    assert LOADED_AT + CELL_BYTES <= NAMES_AT


def test_the_status_page_shows_both_cells():
    ring = Ring()
    assert (ring.reader.status().saved, ring.reader.status().loaded) == (None, None)
    cell = CheckpointCell(
        step=30, bytes=9, files=2, start_ns=5, end_ns=7, path="/c/30.pt", file_bytes=8, file_mtime_ns=3
    )
    write_cell(ring.writer.memory, SAVED_AT, cell)
    write_cell(ring.writer.memory, LOADED_AT, cell)
    page = ring.reader.status()
    assert (page.saved, page.loaded, page.resumed_step) == (cell, cell, -1)
