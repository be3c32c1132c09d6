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
    assert image_room.memory_of([7, 8], tmp_path) == (13 * 1024, 13 * 1024)
    assert image_room.memory_of([os.getpid()]).dumped_bytes > 1 << 20


def test_pages_that_forked_processes_share_are_kept_once(tmp_path):
    for pid in ("7", "8"):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text("RssAnon:\t 10 kB\nRssShmem:\t 4 kB\nVmSwap:\t 2 kB\n")
        (tmp_path / pid / "smaps_rollup").write_text(
            "55a-7ff ---p 0000 00:00 0 [rollup]\nPss_Anon:  5 kB\nPss_Shmem:  2 kB\nSwapPss:  1 kB\n"
        )
    assert image_room.memory_of([7, 8], tmp_path) == (32 * 1024, 20 * 1024)


@pytest.mark.parametrize(("free", "fits"), [(550, True), (549, False)])
def test_an_image_needs_room_for_all_and_for_the_largest_twice(tmp_path, monkeypatch, free, fits):
    disk = shutil.disk_usage(tmp_path)._replace(total=1000, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    sizes = [image_room.Memory(150, 150), image_room.Memory(150, 150), image_room.Memory(50, 50)]
    if fits:
        image_room.refuse_without_room(tmp_path, sizes)
    else:
        with pytest.raises(Unavailable, match=r"has 0\.0 GB free"):
            image_room.refuse_without_room(tmp_path, sizes)
