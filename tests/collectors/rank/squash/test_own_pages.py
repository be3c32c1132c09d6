"""Pages of a file that a process has written in its private mapping."""

import ctypes
import mmap
import os

import pytest

from pulsetrain.collectors.rank.squash import own_pages
from pulsetrain.collectors.rank.squash.own_pages import any_own
from pulsetrain.collectors.squash_layout import PAGE_BYTES

PAGES = 40


@pytest.fixture
def memory():
    """A file's mapping that all see, a private one, and its address."""
    fd = os.memfd_create("pages")
    os.ftruncate(fd, PAGES * PAGE_BYTES)
    shared, private = mmap.mmap(fd, 0), mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE)
    yield shared, private, ctypes.addressof(ctypes.c_char.from_buffer(private))
    os.close(fd)


@pytest.mark.parametrize("page", [0, 17, PAGES - 1])
@pytest.mark.parametrize("at_once", [own_pages.ENTRIES, 8])
def test_one_byte_written_in_any_page_is_found(memory, page, at_once, monkeypatch):
    monkeypatch.setattr(own_pages, "ENTRIES", at_once)
    shared, private, address = memory
    assert not any_own(address, len(private)), "pages that were never read"
    shared[:] = b"\x01" * len(shared)
    assert private[page * PAGE_BYTES] == 1
    assert not any_own(address, len(private)), "what others write is no page of our own"
    private[page * PAGE_BYTES + 5] = 2
    assert any_own(address, len(private))
    assert not any_own(address + (page + 1) % PAGES * PAGE_BYTES, PAGE_BYTES)


def test_where_the_host_does_not_say_pages_count_as_written(memory, tmp_path):
    empty = tmp_path / "pagemap"
    empty.write_bytes(b"")
    _, private, address = memory
    assert any_own(address, len(private), str(empty))
    assert any_own(address, len(private), str(tmp_path / "none"))
