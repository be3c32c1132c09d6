"""Each distinct shard is read from storage once, by one node, and reaches every rank that needs it."""

import json
import time
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.storage import manifest as manifest_module
from pulsetrain.checkpoint.storage import shards as shards_module
from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest, Segment, Table
from pulsetrain.checkpoint.storage.shards import Shards, readers
from tests.checkpoint.cluster import Cluster
from tests.checkpoint.stored import commit_arrays
from tests.checkpoint.trainers import content, wait_until


def table(rank: int, contents: list[tuple[str, int]]) -> Table:
    segments = tuple(Segment(offset=0, bytes=n, hash=h) for h, n in contents)
    return Table(rank=rank, layout_bytes=0, values_bytes=0, payload_bytes=0, segments=segments)


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=8, unique=True), min_size=1, max_size=6), st.integers(1, 3)
)
def test_one_reader_for_each_content_among_those_that_need_it(needs, nproc):
    tables = [table(r, [(str(c), 10 + c) for c in contents]) for r, contents in enumerate(needs)]
    home = {rank: f"n{rank // nproc}" for rank in range(len(needs))}
    chosen = readers(tables, home)
    assert chosen.keys() == {str(c) for contents in needs for c in contents}
    for content_hash, node in chosen.items():
        assert node in {home[r] for r, contents in enumerate(needs) if int(content_hash) in contents}
    assert readers(reversed(tables), home) == chosen


def test_content_that_all_share_is_spread_evenly():
    same = [(f"c{i}", 100) for i in range(8)]
    chosen = readers([table(r, same) for r in range(4)], {r: f"n{r}" for r in range(4)})
    assert sorted(list(chosen.values()).count(f"n{r}") for r in range(4)) == [2, 2, 2, 2]


def stored(tmp_path) -> tuple[Checkpoints, Manifest, Segment]:
    checkpoints = commit_arrays(tmp_path, {0: [("w", np.ones(8, dtype=np.float32), (), ())]})
    manifest = checkpoints.manifest(1)
    return checkpoints, manifest, manifest.tables[0].segments[1]


def read_two_at_once(shards: Shards, manifest: Manifest, segment: Segment) -> tuple[list[bytes], Thread]:
    """The first reads, the second waits for it. What the second gets, and the thread of the first."""
    parts = [memoryview(bytearray(segment.bytes)) for _ in range(2)]
    first = Thread(target=shards.fill, args=(manifest, segment, parts[0]))
    first.start()
    wait_until(lambda: (manifest.step, segment.hash) in shards._contents)
    shards.fill(manifest, segment, parts[1])
    return [bytes(part) for part in parts], first


def test_a_read_that_hangs_is_done_again_by_who_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "READ_TIMEOUT_S", 0.05)
    checkpoints, manifest, segment = stored(tmp_path)
    hangs, read_into, calls = Event(), checkpoints.storage.read_into, []

    def slow(path, offset, target):
        calls.append(path)
        if len(calls) == 1:
            hangs.wait(20)
        read_into(path, offset, target)

    monkeypatch.setattr(checkpoints.storage, "read_into", slow)
    (_, second), first = read_two_at_once(Shards(checkpoints), manifest, segment)
    assert second == np.ones(8, dtype=np.float32).tobytes()
    hangs.set()
    first.join()
    assert len(calls) == 2


def test_a_slow_read_is_waited_for_while_bytes_come(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(manifest_module, "READ_BYTES", 4)
    checkpoints, manifest, segment = stored(tmp_path)
    read_into, calls = checkpoints.storage.read_into, []

    def slow(path, offset, target):
        calls.append(offset)
        time.sleep(0.06)
        read_into(path, offset, target)

    monkeypatch.setattr(checkpoints.storage, "read_into", slow)
    parts, first = read_two_at_once(Shards(checkpoints), manifest, segment)
    first.join()
    assert parts == [np.ones(8, dtype=np.float32).tobytes()] * 2
    assert len(calls) == 8  # each part once


def test_content_that_nobody_asks_for_any_more_is_given_back(tmp_path):
    now = [0.0]
    checkpoints, _, segment = stored(tmp_path)
    shards = Shards(checkpoints, clock=lambda: now[0])
    shards.get(1, segment.hash)
    now[0] = shards_module.UNUSED_S
    shards.get(1, segment.hash)
    now[0] += 1
    shards.forget_unused()
    assert shards.here(1, segment.hash) is not None
    now[0] += shards_module.UNUSED_S
    shards.forget_unused()
    assert shards.here(1, segment.hash) is None
    assert bytes(shards.get(1, segment.hash)) == np.ones(8, dtype=np.float32).tobytes()
    assert shards.bytes_read == 2 * segment.bytes


@pytest.fixture
def lost(tmp_path):
    """Four nodes of one rank each with a committed step, and nothing in memory."""
    c = Cluster(4, storage=str(tmp_path), persist_every=10)
    c.save(10)
    wait_until(lambda: all(c.holds(n, r, 10, "storage") for n in c.names for r in range(4)))
    expected = {rank: content(fd, rank, 10) for rank, fd in c.fds.items()}
    for name in c.names:
        c.services[name].take_records(0)
        c.services[name].clear()
    c.set_world(c.names, 1)
    yield c, expected
    c.close()


def load_all(c: Cluster) -> list[dict]:
    """What each rank's restore read, once all are done."""
    for rank, name in enumerate(c.names):
        c.services[name].load(rank, 10, "storage")
    return [dict(c.events(name))["restore_read"] for name in c.names]


@pytest.mark.integration
def test_shared_content_is_read_from_storage_once_for_all_nodes(lost):
    c, expected = lost
    reads = load_all(c)
    assert {rank: content(fd, rank, 10) for rank, fd in c.fds.items()} == expected
    manifest = c.services["n0"]._checkpoints.manifest(10)
    assert sum(k._shards.bytes_read for k in c.services.values()) == manifest.unique_bytes
    assert sum(r["peer_bytes"] for r in reads) > 0
    for rank, read in enumerate(reads):  # every byte came from somewhere
        whole = read["storage_bytes"] + read["peer_bytes"] + read["shared_bytes"]
        assert whole == manifest.tables[rank].bytes


def split_off_a_reader(c: Cluster) -> tuple[str, list[int]]:
    """A node that reads something for others, and the ranks of those others."""
    tables = c.services["n0"]._checkpoints.manifest(10).tables
    held = [{s.hash for s in table.segments} for table in tables.values()]
    shared = set.intersection(*held)
    chosen = readers(tables.values(), dict(enumerate(c.names)))
    away = next(chosen[h] for h in sorted(shared))
    return away, [rank for rank, name in enumerate(c.names) if name != away]


@pytest.mark.integration
def test_a_reader_that_is_away_is_replaced_by_storage_itself(lost):
    c, expected = lost
    away, others = split_off_a_reader(c)
    c.services[away].close()
    for rank in others:
        c.services[c.names[rank]].load(rank, 10, "storage")
        assert content(c.fds[rank], rank, 10) == expected[rank]
    events = [kind for rank in others for kind, _ in c.events(c.names[rank])]
    assert "restore_reader_away" in events


@pytest.mark.integration
def test_wrong_bytes_from_a_reader_are_never_taken(lost, monkeypatch):
    c, expected = lost
    _, (rank, *_) = split_off_a_reader(c)
    for name in c.names:
        right = c.services[name]._shards.get
        wrong = lambda step, content, right=right: memoryview(bytes(len(right(step, content))))  # noqa: E731
        monkeypatch.setattr(c.services[name]._server, "_segments", wrong)
    c.services[c.names[rank]].load(rank, 10, "storage")
    assert content(c.fds[rank], rank, 10) == expected[rank]
    rows = [r for b in c.services[c.names[rank]].take_records(0) for r in b.to_rows()]
    wrong_ones = [json.loads(r["detail"]) for r in rows if r.get("kind") == "restore_reader_wrong"]
    assert wrong_ones
    assert any(r.get("stage") == "read" and r["bytes"] > 0 for r in rows)
