"""A rank gets its checkpoint back from the nearest source that has it whole."""

import os

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader
from pulsetrain.checkpoint.storage.backend import LocalStorage, open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.core.errors import CheckpointError, Unrestorable
from tests.checkpoint.trainers import content, wait_until

pytestmark = pytest.mark.integration


def test_a_damaged_arena_falls_through_to_the_peer_with_an_event(cluster):
    c = cluster(2)
    c.save(4)
    expected = content(c.fds[0], 0, 4)
    wait_until(lambda: c.holds("n1", 0, 4, "peer"))
    info = ArenaReader(c.fds[0]).find(0, 4)
    os.pwrite(c.fds[0], b"\xde\xad", ArenaReader(c.fds[0]).file_offset(info) + info.total_bytes - 9)
    c.services["n0"].load(0, 4, "memory")
    assert content(c.fds[0], 0, 4) == expected
    ((_, detail),) = [e for e in c.events("n0") if e[0] == "restore_fallthrough"]
    assert detail["source"] == "memory"
    assert "checksum" in detail["error"]


def test_nothing_anywhere_is_an_error_that_names_every_source(cluster):
    c = cluster(2)
    with pytest.raises(CheckpointError, match=r"step 9 of rank 0 .*memory: .*peer:n1: .*storage: "):
        c.services["n0"].load(0, 9, "memory")
    with pytest.raises(CheckpointError, match="rank 7 is not attached"):
        c.services["n0"].load(7, 9, "memory")


def test_a_refused_read_may_be_retried_and_a_lost_pack_is_unrestorable(cluster, tmp_path, monkeypatch):
    c = cluster(1, storage=str(tmp_path), persist_every=10)
    c.save(10)
    wait_until(lambda: c.holds("n0", 0, 10, "storage"))
    ArenaReader(c.fds[0]).forget_after(-1)

    def refuse(self, path, offset, target):
        raise PermissionError(13, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "read_into", refuse)
        with pytest.raises(CheckpointError, match="refused") as refused:
            c.services["n0"].load(0, 10, "storage")
    assert not isinstance(refused.value, Unrestorable)
    (pack,) = tmp_path.glob("j/*10/*.pack")
    pack.unlink()
    with pytest.raises(Unrestorable) as gone:
        c.services["n0"].load(0, 10, "storage")
    assert (gone.value.rank, gone.value.step) == (0, 10)


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_damaged_packs_are_never_restored(cluster, tmp_path, harm):
    c = cluster(1, storage=str(tmp_path), persist_every=1)
    c.save(1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    (pack,) = tmp_path.rglob("*.pack")
    data = bytearray(pack.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    pack.write_bytes(data[: len(data) // 2] if harm == "truncate" else data)
    if harm == "remove":
        pack.unlink()
    ArenaReader(c.fds[0]).forget_after(-1)
    with pytest.raises(CheckpointError, match="cannot be restored"):
        c.services["n0"].load(0, 1, "storage")
    assert ArenaReader(c.fds[0]).find(0, 1) is None
    assert Checkpoints(open_storage(str(tmp_path)), "j").verify(
        Checkpoints(open_storage(str(tmp_path)), "j").manifest(1)
    )


def test_fsspec_storage_serves_as_well(cluster):
    c = cluster(1, storage="memory://checkpoints-test", persist_every=1)
    c.save(1)
    expected = content(c.fds[0], 0, 1)
    wait_until(lambda: c.holds("n0", 0, 1, "storage"))
    ArenaReader(c.fds[0]).forget_after(-1)
    c.services["n0"].load(0, 1, "storage")
    assert content(c.fds[0], 0, 1) == expected
