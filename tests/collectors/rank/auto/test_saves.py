"""A script's own writes: a phase each, shown once they are whole, and never changed."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.local import LocalFileOpener
from torch import nn

from pulsetrain.collectors.layout import W_LAST_STEP
from pulsetrain.collectors.rank.auto import saves
from pulsetrain.collectors.rank.auto.imports import ImportWatch
from pulsetrain.collectors.rank.auto.own_saves import OwnSaves
from pulsetrain.collectors.rank.auto.saves import SaveWatch
from pulsetrain.collectors.rank.auto.segments import Segments
from pulsetrain.collectors.rank.auto.wrapping import wrapped
from pulsetrain.collectors.rank.lost_update import UpdateLostError

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint"),
]
MODEL = nn.Linear(64, 64)
BYTES = 64 * 65 * 4


class Script:
    """A script that has trained 30 steps, and its hooked writers."""

    def __init__(self, watched):
        self.watched, self.handle = watched, watched.handle
        self.segments = Segments(self.handle)
        self.watch = SaveWatch(self.handle, self.segments, OwnSaves(self.handle.state, lambda: 0))
        self.optimizer = torch.optim.SGD(MODEL.parameters(), 0.1)
        self.torch_save = wrapped(torch.save, self.watch.torch_save)
        self.dcp_save = wrapped(dcp.save, self.watch.dcp_save)
        self.async_save = wrapped(dcp.async_save, self.watch.dcp_async_save)
        self.stepped(30)

    def stepped(self, step):
        self.handle.state.words[W_LAST_STEP] = step
        self.watch.stepped(self.optimizer, (), {})

    @property
    def shown(self):
        return self.watched.reader.status().saved

    @property
    def phases(self):
        return [name for name, _ in self.watched.spans()]


@pytest.fixture
def script(watched):
    return Script(watched)


def test_a_saved_model_is_a_phase_and_a_checkpoint(script, tmp_path):
    script.torch_save(MODEL.state_dict(), tmp_path / "30.pt")
    assert script.phases == ["checkpoint"]
    assert (script.shown.step, script.shown.path) == (30, str(tmp_path / "30.pt"))
    assert script.shown.bytes == (tmp_path / "30.pt").stat().st_size > BYTES
    assert script.watched.errors == 0


def test_half_an_update_is_not_written_over_the_last_checkpoint(script, tmp_path):
    script.torch_save(MODEL.state_dict(), tmp_path / "a.pt")
    before = (tmp_path / "a.pt").read_bytes()
    script.handle.state.update_lost = lambda: True
    with pytest.raises(UpdateLostError, match="not saved"):
        script.torch_save(MODEL.state_dict(), tmp_path / "a.pt")
    with pytest.raises(UpdateLostError, match="not saved"):
        script.dcp_save(MODEL.state_dict(), checkpoint_id=tmp_path / "folder")
    assert (tmp_path / "a.pt").read_bytes() == before
    assert not (tmp_path / "folder").exists()
    script.torch_save({"loss": 0.1}, tmp_path / "metrics.pt")
    assert (tmp_path / "metrics.pt").exists()
    assert script.watched.errors == 0


def test_what_is_saved_is_what_would_have_been_saved(script, tmp_path):
    state = {"model": MODEL.state_dict(), "step": 30}
    script.torch_save(state, tmp_path / "a.pt")
    torch.save(state, tmp_path / "b.pt")
    ours, theirs = torch.load(tmp_path / "a.pt"), torch.load(tmp_path / "b.pt")
    assert ours["step"] == theirs["step"] == 30
    assert all(torch.equal(ours["model"][k], v) for k, v in theirs["model"].items())


def test_a_small_file_is_a_phase_and_no_checkpoint(script, tmp_path):
    script.torch_save({"vocabulary": list(range(999))}, str(tmp_path / "tokenizer.pt"))
    assert (script.phases, script.shown) == (["checkpoint"], None)


def test_bytes_in_memory_are_no_checkpoint_and_a_phase_if_they_hold_the_model(script):
    script.torch_save([1, 2, 3], io.BytesIO())
    assert script.phases == []
    script.torch_save(MODEL.state_dict(), io.BytesIO())
    assert (script.phases, script.shown) == (["checkpoint"], None)


@pytest.fixture
def sinks(script, monkeypatch):
    """What writes bytes into files is watched, and is as it was afterwards."""
    for owner, name in ((LocalFileOpener, "write"), (Path, "write_bytes")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    script.watch.in_memory.install(ImportWatch(script.handle.fault))


def saved_to_memory(script):
    buffer = io.BytesIO()
    script.torch_save(MODEL.state_dict(), buffer)
    return buffer.getvalue()


@pytest.mark.usefixtures("sinks")
def test_bytes_in_memory_are_a_checkpoint_once_they_are_in_a_file(script, tmp_path):
    data = saved_to_memory(script)
    script.stepped(31)
    (tmp_path / "config.yaml").write_bytes(b"epochs: 3")
    assert script.shown is None
    (tmp_path / "last.pt").write_bytes(data)
    assert (script.shown.step, script.shown.path) == (30, str(tmp_path / "last.pt"))
    (tmp_path / "best.pt").write_bytes(data)
    assert (script.shown.step, script.shown.files) == (30, 2)
    assert script.watched.errors == 0


@pytest.mark.usefixtures("sinks")
@pytest.mark.parametrize("in_one", [False, True])
def test_bytes_that_fsspec_writes_are_known_by_their_last_name(script, tmp_path, in_one):
    """As Lightning saves: a transaction writes elsewhere, and moves the file behind its end."""
    data, path = saved_to_memory(script), str(tmp_path / "30.ckpt")
    filesystem = fsspec.filesystem("file")
    if in_one:
        with filesystem.transaction, filesystem.open(path, "wb") as file:
            file.write(data)
    else:
        with filesystem.open(path, "wb") as file:
            file.write(data)
    assert torch.load(path).keys() == MODEL.state_dict().keys()
    script.stepped(31)
    assert (script.shown.step, script.shown.path) == (30, path)
    assert script.shown.bytes == script.shown.file_bytes == len(data)
    assert script.watched.errors == 0


@pytest.mark.usefixtures("sinks")
def test_bytes_that_no_disk_takes_are_no_checkpoint(script, tmp_path):
    data = saved_to_memory(script)
    with pytest.raises(OSError, match="No space left"):
        Path("/dev/full").write_bytes(data)
    with pytest.raises(FileNotFoundError):
        (tmp_path / "missing" / "30.pt").write_bytes(data)
    assert script.shown is None


def test_a_file_that_the_script_opened_is_shown_after_the_next_step(script, tmp_path):
    with (tmp_path / "30.pt").open("wb") as file:
        script.torch_save(MODEL, file)
        script.stepped(31)
        assert script.shown is None
    script.stepped(32)
    assert (script.shown.step, script.shown.path) == (30, str(tmp_path / "30.pt"))


def test_a_file_inside_another_one_is_shown_after_the_next_step(script, tmp_path):
    with tempfile.NamedTemporaryFile(dir=tmp_path, delete=False) as file:
        script.torch_save(MODEL, file)
    script.stepped(31)
    assert (script.shown.step, script.shown.path) == (30, file.name)
    with fsspec.open(str(tmp_path / "40.pt"), "wb") as file:
        script.stepped(40)
        script.torch_save(MODEL, file)
    script.stepped(41)
    assert (script.shown.step, script.shown.path) == (40, str(tmp_path / "40.pt"))
    assert script.watched.errors == 0


def test_a_member_of_an_archive_is_shown_as_the_archive_once_that_is_closed(script, tmp_path):
    path = tmp_path / "30.zip"
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("policy.pth", "w") as member:
            script.torch_save(MODEL, member)
        script.stepped(31)
        assert script.shown is None
    script.stepped(32)
    assert (script.shown.step, script.shown.path) == (30, str(path))
    assert script.shown.bytes == path.stat().st_size
    assert script.watched.errors == 0


def test_a_phase_of_the_script_around_the_write_stands_alone(script, tmp_path):
    script.segments.turn_off("checkpoint")
    with script.handle.phase("checkpoint"):
        script.torch_save(MODEL.state_dict(), tmp_path / "30.pt")
    assert (script.phases, script.shown.step) == (["checkpoint"], 30)


@pytest.mark.parametrize("target", ["missing/30.pt", ""])
def test_a_write_that_fails_is_no_checkpoint_and_its_error_is_the_scripts(script, tmp_path, target):
    with pytest.raises(RuntimeError) as raised:
        script.torch_save(MODEL.state_dict(), str(tmp_path / target))
    assert not [
        f for f in raised.traceback if "collectors/rank" in str(f.path) and "tests" not in str(f.path)
    ]
    assert (script.shown, script.phases) == (None, ["checkpoint"])


def test_a_write_in_another_thread_is_seen(script, tmp_path):
    thread = threading.Thread(
        target=script.torch_save, args=(MODEL.state_dict(), tmp_path / "30.pt"), name="saver"
    )
    thread.start()
    thread.join()
    assert (script.phases, script.shown.step) == (["checkpoint"], 30)
    assert "saver" in script.watched.reader.names


def test_a_distributed_checkpoint_is_its_folder_and_one_phase(script, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "save", script.torch_save)  # what it calls for each tensor
    script.dcp_save({"model": MODEL.state_dict()}, checkpoint_id=str(tmp_path / "30"))
    assert (script.shown.step, script.shown.path) == (30, str(tmp_path / "30"))
    assert script.shown.bytes == sum(f.stat().st_size for f in (tmp_path / "30").iterdir()) > BYTES
    script.stepped(31)
    assert (script.phases, script.shown.files) == (["checkpoint"], 1)
    script.torch_save(MODEL, io.BytesIO())
    assert script.phases == ["checkpoint"], "what comes after it is a write of its own"


def test_an_asynchronous_checkpoint_counts_when_its_write_has_ended(script, tmp_path, monkeypatch):
    monkeypatch.setattr(dcp.state_dict_saver, "save", script.dcp_save)  # what the writing thread calls
    future = script.async_save(
        {"model": MODEL.state_dict()}, checkpoint_id=str(tmp_path / "30"), no_dist=True
    )
    script.handle.state.words[W_LAST_STEP] = 33
    future.result()
    assert _eventually(lambda: script.shown is not None)
    assert (script.shown.step, script.shown.path, script.shown.files) == (30, str(tmp_path / "30"), 1)
    script.dcp_save({"model": MODEL.state_dict()}, checkpoint_id=str(tmp_path / "30"))
    assert script.shown.step == 33, "the path is free again"


def test_an_asynchronous_checkpoint_that_fails_never_counts(script, tmp_path):
    class Broken(dcp.FileSystemWriter):
        def write_data(self, plan, planner):
            raise OSError("disk full")

    future = script.async_save(
        {"model": MODEL.state_dict()}, storage_writer=Broken(tmp_path / "30"), no_dist=True
    )
    assert future.exception() is not None
    assert script.shown is None
    script.dcp_save({"model": MODEL.state_dict()}, checkpoint_id=tmp_path / "30")
    assert script.shown.step == 30


def _eventually(holds, turns=2000):
    waiting = threading.Event()
    return any(holds() or waiting.wait(0.005) for _ in range(turns))


def test_a_full_disk_is_the_scripts_error_and_no_checkpoint(script):
    with pytest.raises((OSError, RuntimeError)):
        script.torch_save(MODEL.state_dict(), "/dev/full")
    assert script.shown is None


def test_our_own_fault_is_counted_and_the_script_saves(script, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("ours")

    monkeypatch.setattr(script.watch, "_trained", SimpleNamespace(share=broken, add=broken))
    script.torch_save(MODEL.state_dict(), tmp_path / "30.pt")
    script.stepped(31)
    assert (tmp_path / "30.pt").stat().st_size > BYTES
    assert script.watched.errors == 2


def test_a_forked_child_saves_unseen(script, tmp_path):
    pid = os.fork()
    if not pid:
        script.handle._mute()
        script.torch_save(MODEL.state_dict(), tmp_path / "child.pt")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (tmp_path / "child.pt").exists()
    assert (script.shown, script.phases) == (None, [])


def test_every_writer_of_the_process_is_hooked(watched, monkeypatch):
    handle = watched.handle
    auto = SimpleNamespace(handle=handle, segments=Segments(handle), imports=ImportWatch(handle.fault))
    module = sys.modules["torch.optim.optimizer"]
    monkeypatch.setattr(module, "register_optimizer_step_post_hook", lambda hook: None)
    for owner, name in ((torch, "save"), (torch.serialization, "save"), (dcp, "save"), (dcp, "async_save")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in ("save", "async_save"):
        monkeypatch.setattr(dcp.state_dict_saver, name, getattr(dcp.state_dict_saver, name))
    saves.install(auto)
    assert (
        torch.save is torch.serialization.save
        or torch.save.__wrapped__ is torch.serialization.save.__wrapped__
    )
    for function in (torch.save, dcp.save, dcp.async_save):
        assert hasattr(function, "_pulsetrain")
    assert dcp.save is dcp.state_dict_saver.save
