"""Whether the disk has room for an image."""

import os
import shutil

import pytest

from pulsetrain.agent.processes import image_room
from pulsetrain.core.errors import Unavailable


def test_memory_that_is_dumped_is_counted_and_unchanged_pages_of_files_are_not(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(
        "VmRSS:\t 999 kB\nRssAnon:\t 10 kB\nRssFile:\t 500 kB\nRssShmem:\t 2 kB\nVmSwap:\t 1 kB\n"
    )
    assert image_room.memory_bytes([7, 8], tmp_path) == 13 * 1024
    assert image_room.memory_bytes([os.getpid()]) > 1 << 20


@pytest.mark.parametrize(
    ("free", "kept", "fits"), [(550, 0, True), (549, 0, False), (350, 200, True), (200, 10**6, True)]
)
def test_an_image_needs_room_for_all_and_for_the_largest_twice(tmp_path, monkeypatch, free, kept, fits):
    disk = shutil.disk_usage(tmp_path)._replace(total=1000, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    sizes = [150, 150, 50]
    if fits:
        image_room.refuse_without_room(tmp_path, sizes, kept)
    else:
        with pytest.raises(Unavailable, match=r"has 0\.0 GB free"):
            image_room.refuse_without_room(tmp_path, sizes, kept)
