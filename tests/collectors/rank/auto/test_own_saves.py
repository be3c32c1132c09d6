"""Files of one step are one checkpoint, which counts once it is whole."""

from __future__ import annotations

import os
import tempfile
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.checkpoint_cell import read_cell
from pulsetrain.collectors.layout import SAVED_AT, W_LAST_STEP
from pulsetrain.collectors.rank.auto.own_saves import OwnSaves, written_bytes
from pulsetrain.collectors.rank.phases import RankState
from tests.collectors.rank.both_ends import Ring


class Saver:
    """A script that saves into a folder."""

    def __init__(self, folder, rank=0):
        self.folder, self.ring = folder, Ring()
        self.state = RankState(self.ring.writer)
        self.saves = OwnSaves(self.state, lambda: rank)

    def at_step(self, step):
        self.state.words[W_LAST_STEP] = step
        return self

    def save(self, name, size=10, share=1.0):
        write = self.saves.begin(share)
        (self.folder / name).write_bytes(b"x" * size)
        self.saves.ended(write, self.folder / name)
        return self

    @property
    def shown(self):
        return read_cell(self.ring.writer.memory, SAVED_AT)


@pytest.fixture
def saver(tmp_path):
    return Saver(tmp_path)


def test_a_whole_checkpoint_is_shown_with_its_step_and_size(saver):
    saver.at_step(30).save("30.pt", size=100)
    shown = saver.shown
    assert (shown.step, shown.bytes, shown.files) == (30, 100, 1)
    assert shown.path == str(saver.folder / "30.pt")
    assert (shown.file_bytes, shown.file_mtime_ns) == (100, os.stat(shown.path).st_mtime_ns)
    assert 0 < shown.start_ns <= shown.end_ns


def test_files_of_one_step_are_one_checkpoint(saver):
    saver.at_step(30).save("model.pt", size=100).save("optimizer.pt", size=200, share=2.0)
    assert (saver.shown.bytes, saver.shown.files) == (300, 2)
    saver.at_step(40).save("model.pt", size=100)
    assert (saver.shown.step, saver.shown.bytes, saver.shown.files) == (40, 100, 1)


def test_shards_count_once_they_hold_enough_together(saver):
    saver.at_step(30).save("1.safetensors", share=0.3)
    assert saver.shown is None
    saver.save("2.safetensors", share=0.3)
    assert (saver.shown.bytes, saver.shown.files) == (20, 2)


def test_files_without_training_state_do_not_count(saver):
    saver.at_step(30).save("tokenizer.pt", size=10_000, share=0.0)
    assert saver.shown is None
    saver.save("model.pt", size=100).save("rng.pt", size=7, share=0.0)
    assert (saver.shown.bytes, saver.shown.path) == (100, str(saver.folder / "model.pt"))


def test_before_the_first_step_there_is_no_checkpoint(saver):
    saver.save("initial.pt")
    assert saver.shown is None


def test_the_step_is_that_of_the_begin_however_late_the_write_ends(saver):
    write = saver.at_step(30).saves.begin(1.0)
    (saver.folder / "30.pt").write_bytes(b"x")
    saver.at_step(35).saves.ended(write, saver.folder / "30.pt")
    assert saver.shown.step == 30


def test_a_file_that_the_script_opened_counts_once_it_is_closed(saver):
    with (saver.folder / "30.pt").open("wb") as file:
        write = saver.at_step(30).saves.begin(1.0)
        file.write(b"x" * 50)
        saver.saves.closes_later(file, write)
        saver.saves.settle()
        assert saver.shown is None
    saver.saves.settle()
    assert (saver.shown.step, saver.shown.bytes) == (30, 50)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_that_the_script_never_closes_is_released_and_counts(saver):
    saver.at_step(4)
    path = saver.folder / "a.pt"
    file = open(path, "wb")  # noqa: SIM115 - as in `torch.save(state, open(path, "wb"))`
    file.write(b"x" * 10)
    released = weakref.ref(file)
    saver.saves.closes_later(file, saver.saves.begin(1.0))
    del file
    assert released() is None
    saver.saves.settle()
    assert (saver.shown.step, saver.shown.path) == (4, str(path))


def test_a_file_that_is_renamed_after_the_write_is_shown_under_its_last_name(saver):
    saver.at_step(30).save("ckpt.new", size=50)
    os.replace(saver.folder / "ckpt.new", saver.folder / "ckpt.pt")
    saver.saves.settle()
    assert (saver.shown.path, saver.shown.step, saver.shown.bytes) == (str(saver.folder / "ckpt.pt"), 30, 50)


def test_a_file_that_is_renamed_as_soon_as_it_is_closed_is_shown_under_its_last_name(saver):
    file = tempfile.NamedTemporaryFile(dir=saver.folder, delete=False)  # noqa: SIM115 - closed and renamed below
    file.write(b"x" * 50)
    saver.saves.closes_later(file.file, saver.at_step(30).saves.begin(1.0))
    file.close()
    os.replace(file.name, saver.folder / "ckpt.pt")
    saver.saves.settle()
    assert (saver.shown.path, saver.shown.step, saver.shown.bytes) == (str(saver.folder / "ckpt.pt"), 30, 50)


def test_a_file_that_was_opened_by_its_number_has_a_name_and_a_pipe_has_none(saver):
    number, path = tempfile.mkstemp(dir=saver.folder)
    with os.fdopen(number, "wb") as file:
        file.write(b"x" * 50)
        saver.saves.closes_later(file, saver.at_step(30).saves.begin(1.0))
    saver.saves.settle()
    assert (saver.shown.path, saver.shown.bytes) == (path, 50)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        saver.saves.closes_later(pipe, saver.at_step(40).saves.begin(1.0))
    os.close(reading)
    saver.saves.settle()
    assert saver.shown.step == 30


def test_a_file_that_was_removed_keeps_its_name(saver):
    saver.at_step(30).save("30.pt")
    (saver.folder / "30.pt").unlink()
    saver.saves.settle()
    assert saver.shown.path == str(saver.folder / "30.pt")


def test_a_place_that_no_file_system_has_is_shown_without_a_size(saver):
    saver.saves.ended(saver.at_step(30).saves.begin(1.0), "s3://bucket/30")
    assert (saver.shown.path, saver.shown.bytes, saver.shown.file_mtime_ns) == ("s3://bucket/30", 0, 0)


def test_a_rank_counts_its_own_files_of_a_shared_folder(tmp_path):
    for name, size in (("__0_0.distcp", 10), ("__0_1.distcp", 5), ("__1_0.distcp", 7), (".metadata", 1)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert [written_bytes(tmp_path, rank) for rank in (0, 1, 2)] == [16, 7, 0]
    assert written_bytes(tmp_path / "missing", 0) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.integers(0, 99)), max_size=12))
def test_the_size_is_that_of_all_files_of_the_step(tmp_path_factory, writes):
    saver = Saver(tmp_path_factory.mktemp("saves"))
    step, files, share = -1, {}, 0.0
    for number, (at, part, size) in enumerate(sorted(writes, key=lambda write: write[0])):
        if at != step:
            step, files, share = at, {}, 0.0
        saver.at_step(at).save(f"{number}.pt", size=size, share=part)
        if part > 0:
            files[number], share = size, share + part
        if share >= 0.5:
            assert (saver.shown.step, saver.shown.bytes, saver.shown.files) == (
                step, sum(files.values()), len(files),
            )  # fmt: skip
