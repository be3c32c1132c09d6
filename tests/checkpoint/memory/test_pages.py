"""Pages of shared memory: which are there, and that they are faulted in while there is memory."""

import mmap

import pytest

from pulsetrain.checkpoint.memory import pages
from pulsetrain.checkpoint.memory.pages import absent_bytes, fault_in
from pulsetrain.checkpoint.memory.slots import PAGE
from pulsetrain.core.errors import MemoryShort


def test_pages_that_were_written_take_no_more_memory():
    region = mmap.mmap(-1, 10 * PAGE)
    assert absent_bytes(region) == 10 * PAGE
    region[2 * PAGE : 4 * PAGE] = b"x" * 2 * PAGE
    assert absent_bytes(region) == 8 * PAGE
    assert absent_bytes(region, 2 * PAGE + 1, 2 * PAGE) == PAGE  # it ends in the next page
    fault_in(region, lambda start, size: None)
    assert absent_bytes(region) == 0


def test_it_ends_where_a_part_is_refused(monkeypatch):
    monkeypatch.setattr(pages, "_CHUNK_BYTES", 2 * PAGE)
    region = mmap.mmap(-1, 5 * PAGE)

    def check(start: int, size: int) -> None:
        if start:
            raise MemoryShort("others took it")

    with pytest.raises(MemoryShort):
        fault_in(region, check)
    assert absent_bytes(region) == 3 * PAGE
