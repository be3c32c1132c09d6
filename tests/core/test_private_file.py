"""Files and folders that only their owner may read."""

import os
import stat

import pytest

from pulsetrain.core.private_file import make_private_folder, replace_private


def test_a_file_is_replaced_as_a_whole_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("before, and longer")
    path.chmod(0o644)
    replace_private(path, "näch")
    assert path.read_text(encoding="utf-8") == "näch"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["state.json"]


def test_what_a_crash_left_of_an_earlier_write_is_no_obstacle(tmp_path):
    (tmp_path / ".state.json.new").write_text("half of a longer text")
    replace_private(tmp_path / "state.json", "whole")
    assert (tmp_path / "state.json").read_text() == "whole"
    assert os.listdir(tmp_path) == ["state.json"]


def test_where_it_cannot_be_written_the_file_stays_as_it_was(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("before")
    (tmp_path / ".state.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_private(path, "after")
    assert path.read_text() == "before"


def test_what_is_missing_of_a_folder_is_made_for_its_owner_alone_and_the_rest_stays(tmp_path):
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    there.chmod(0o755)
    make_private_folder(there / "a" / "b")
    make_private_folder(there / "a" / "b")
    made = [there, there / "a", there / "a" / "b"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o755, 0o700, 0o700]
    (there / "file").touch()
    for wrong in (there / "file", there / "file" / "below"):
        with pytest.raises(OSError, match=r"exists|Not a directory"):
            make_private_folder(wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_root_writes_can_be_given_to_the_owner_of_the_folder(tmp_path):
    os.chown(tmp_path, 1234, 1234)
    replace_private(tmp_path / "state.json", "{}")
    replace_private(tmp_path / "tokens.json", "{}", give=True)
    assert (tmp_path / "state.json").stat().st_uid == 0
    assert (tmp_path / "tokens.json").stat().st_uid == 1234
