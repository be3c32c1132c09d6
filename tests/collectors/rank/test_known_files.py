"""Files of earlier attempts are found again by what they are, not only by their name."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.rank.known_files import (
    METADATA,
    OWN_CHECKPOINTS,
    FilesOfEnvironment,
    decode,
    encode,
    mark_of,
)
from pulsetrain.protocol.messages import OwnCheckpoint


def written(path, step, content=b"weights"):
    path.write_bytes(content)
    mark = mark_of(path)
    return OwnCheckpoint(
        step=step, bytes=mark.bytes, path=str(path), written_ns=1,
        file_bytes=mark.bytes, file_mtime_ns=mark.mtime_ns,
    )  # fmt: skip


def known(*files):
    return decode({OWN_CHECKPOINTS: encode(files)})


def test_a_file_is_known_by_its_name_and_after_a_rename(tmp_path):
    files = known(written(tmp_path / "30.tmp", 30))
    assert files.step_of(tmp_path / "30.tmp") == 30
    os.replace(tmp_path / "30.tmp", tmp_path / "latest.pt")
    assert files.step_of(tmp_path / "latest.pt") == 30
    assert files.step_of(tmp_path / "30.tmp") == -1


def test_a_file_that_was_written_again_since_is_not_known(tmp_path):
    files = known(written(tmp_path / "latest.pt", 30))
    (tmp_path / "latest.pt").write_bytes(b"torn")
    assert files.step_of(tmp_path / "latest.pt") == -1


def test_a_folder_is_known_by_its_metadata(tmp_path):
    (tmp_path / "30").mkdir()
    (tmp_path / "30" / METADATA).write_bytes(b"plan")
    mark = mark_of(tmp_path / "30")
    own = OwnCheckpoint(
        step=30, bytes=9, path=str(tmp_path / "30"), written_ns=1,
        file_bytes=mark.bytes, file_mtime_ns=mark.mtime_ns,
    )  # fmt: skip
    (tmp_path / "30" / "__0_0.distcp").write_bytes(b"later")  # changes the folder's own time
    assert known(own).step_of(tmp_path / "30") == 30


def test_a_place_that_is_no_file_of_this_machine_is_known_by_its_name():
    remote = OwnCheckpoint(step=30, bytes=0, path="s3://bucket/30", written_ns=1)
    assert known(remote).step_of("s3://bucket/30") == 30
    assert known(remote).step_of("s3://bucket/40") == -1


def test_without_earlier_attempts_nothing_is_known(tmp_path):
    assert encode(()) == ""
    assert decode({}).step_of(tmp_path) == -1


def test_what_is_no_list_of_files_is_refused():
    with pytest.raises(ValueError, match="Expecting"):
        decode({OWN_CHECKPOINTS: "/c/30.pt"})


@given(
    st.lists(st.tuples(st.text(st.characters(exclude_categories=("Cs",)), min_size=1), st.integers(-1, 9)))
)
def test_any_path_survives_the_environment(files):
    told = [OwnCheckpoint(step=step, bytes=1, path=f"x://{path}", written_ns=1) for path, step in files]
    text = encode(told)
    assert "\0" not in text
    text.encode("ascii")
    first = {}
    for own in told:
        if own.step >= 0:
            first.setdefault(own.path, own.step)
    for path, step in first.items():
        if "\0" not in path and len(path.encode()) < 400:
            assert decode({OWN_CHECKPOINTS: text}).step_of(path) == step


def test_files_of_the_environment_are_those_of_the_present_attempt(tmp_path):
    environ = {}
    files = FilesOfEnvironment(environ)
    own = written(tmp_path / "ckpt.pt", 7)
    assert files.step_of(own.path) == -1
    environ[OWN_CHECKPOINTS] = encode([own])
    assert files.step_of(own.path) == 7
