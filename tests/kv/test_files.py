import os
import subprocess
import sys

import pytest

from pulsetrain.core.errors import CorruptData, Unavailable, UsageError
from pulsetrain.kv.files import FileStore
from pulsetrain.kv.store import Compacted, Write


def test_keys_and_revisions_outlive_the_process_and_leases_do_not(tmp_path):
    store = FileStore(tmp_path)
    kept = store.commit((), [Write(key="a", value="1")])
    store.commit((), [Write(key="leader", value="me", lease=store.grant(60))])
    revision = store.entries("").revision
    store.close()
    again = FileStore(tmp_path)
    assert [(e.key, e.created) for e in again.entries("").entries] == [("a", kept.revision)]
    assert again.entries("").revision == revision
    with pytest.raises(Compacted):
        again.changes("", after=0, timeout_s=0)
    again.close()


def test_two_processes_cannot_use_one_folder(tmp_path):
    store = FileStore(tmp_path)
    with pytest.raises(UsageError, match="in use by process"):
        FileStore(tmp_path)
    store.close()


def test_what_the_disk_did_not_take_did_not_happen(tmp_path, monkeypatch):
    store = FileStore(tmp_path)
    store.commit((), [Write(key="a", value="1")])

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Unavailable, match="No space left"):
            store.commit((), [Write(key="a", value="2")])
    assert store.get("a").value == "1"
    store.commit((), [Write(key="b", value="3")])
    store.close()
    assert [e.value for e in FileStore(tmp_path).entries("").entries] == ["1", "3"]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "state.json").write_text('{"format": 1, "entr')
    with pytest.raises(CorruptData, match=r"state\.json"):
        FileStore(tmp_path)
    (tmp_path / "state.json").unlink()
    FileStore(tmp_path).close()


WRITER = """
import sys
from pathlib import Path
from pulsetrain.kv.files import FileStore
from pulsetrain.kv.store import Write
store = FileStore(Path(sys.argv[1]))
for n in range(100000):
    store.commit((), [Write(key="a", value=str(n) * 500), Write(key="b", value=str(n))])
    print(n, flush=True)
"""


@pytest.mark.integration
@pytest.mark.parametrize("after", [1, 5, 20, 50])
def test_a_writer_killed_at_any_moment_leaves_a_whole_state(tmp_path, after):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        for _ in range(after):
            told = int(writer.stdout.readline())
        writer.kill()
        told = int((writer.stdout.read().split() or [told])[-1])
    store = FileStore(tmp_path)
    number = int(store.get("b").value)
    assert store.get("a").value == str(number) * 500
    assert told <= number <= told + 1
    store.close()
