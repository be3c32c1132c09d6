"""A script's own reads: a rank that reads works, and goes on behind what it has read."""

from __future__ import annotations

import io

import pytest
import torch

from pulsetrain.collectors.layout import W_LAST_STEP, W_RESUMED
from pulsetrain.collectors.rank.auto.loads import LoadWatch
from pulsetrain.collectors.rank.auto.segments import Segments
from pulsetrain.collectors.rank.auto.wrapping import wrapped
from pulsetrain.collectors.rank.known_files import KnownFiles, mark_of


class Script:
    """A script of a second attempt, with a checkpoint of step 30 that the first one wrote."""

    def __init__(self, watched, folder):
        self.watched, self.handle, self.words = watched, watched.handle, watched.handle.state.words
        self.path = folder / "30.pt"
        torch.save({"weight": torch.ones(3)}, self.path)
        known = KnownFiles([(str(self.path), 30, mark_of(self.path))])
        self.load = wrapped(torch.load, LoadWatch(self.handle, Segments(self.handle), known).torch_load)

    @property
    def loaded(self):
        return self.watched.reader.status().loaded

    @property
    def phases(self):
        return [name for name, _ in self.watched.spans()]


@pytest.fixture
def script(watched, tmp_path):
    return Script(watched, tmp_path)


def test_steps_go_on_behind_the_checkpoint_that_was_read(script):
    assert torch.equal(script.load(script.path)["weight"], torch.ones(3))
    assert (script.words[W_LAST_STEP], script.words[W_RESUMED], script.handle.state.step) == (30, 30, 31)
    assert (script.loaded.step, script.loaded.path) == (30, str(script.path))
    assert script.phases == ["load"]


def test_a_file_may_be_opened_by_the_script(script):
    with script.path.open("rb") as file:
        script.load(file)
    assert script.words[W_RESUMED] == 30


def test_what_no_attempt_wrote_says_no_step(script, tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "pretrained.pt")
    script.load(tmp_path / "pretrained.pt")
    script.load(io.BytesIO((tmp_path / "pretrained.pt").read_bytes()))
    assert script.words[W_LAST_STEP] == -1
    assert (script.loaded.step, script.loaded.path) == (-1, str(tmp_path / "pretrained.pt"))
    assert script.phases == ["load", "load"]


def test_what_the_script_says_itself_stays(script):
    script.handle.resume(11)
    script.load(script.path)
    assert (script.words[W_LAST_STEP], script.words[W_RESUMED]) == (10, 10)
    assert script.loaded.step == 30


def test_the_script_may_say_it_after_the_read(script):
    script.load(script.path)
    script.handle.resume(11)
    assert (script.words[W_LAST_STEP], script.handle.state.step) == (10, 11)


def test_a_script_may_warm_up_before_it_reads_its_checkpoint(script):
    script.handle.step()
    script.handle.step()
    script.load(script.path)
    assert (script.words[W_LAST_STEP], script.words[W_RESUMED], script.handle.state.step) == (30, 30, 31)
    assert script.loaded.step == 30
    assert script.phases == []


def test_a_read_after_steps_is_no_start_where_it_leads_back_or_is_not_known(script, tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pt")
    script.handle.step()
    script.load(tmp_path / "other.pt")
    assert (script.words[W_LAST_STEP], script.loaded) == (0, None)
    for _ in range(40):
        script.handle.step()
    script.load(script.path)
    assert (script.words[W_LAST_STEP], script.loaded) == (40, None)


def test_a_read_that_fails_says_nothing(script, tmp_path):
    with pytest.raises(FileNotFoundError):
        script.load(tmp_path / "missing.pt")
    script.path.write_bytes(b"torn")
    with pytest.raises(IndexError):
        script.load(script.path)
    assert (script.words[W_LAST_STEP], script.loaded) == (-1, None)
