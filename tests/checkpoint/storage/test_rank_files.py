"""Each rank writes its table, its share of the content and its receipt. Equal content is written once."""

import os
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.storage.backend import RateLimit, open_storage
from pulsetrain.checkpoint.storage.manifest import Blob, Checkpoints, Manifest, Segment, Table
from pulsetrain.checkpoint.storage.polling import Poller
from pulsetrain.checkpoint.storage.rank_files import (
    RankWriter,
    Receipt,
    assigned,
    receipts_of,
    table_of,
    tables_of,
)
from pulsetrain.core.errors import CheckpointError, CorruptData
from tests.checkpoint.trainers import content, save


def table(rank: int, contents: list[int]) -> Table:
    segments = tuple(Segment(offset=100 * i, bytes=10 + c, hash=str(c)) for i, c in enumerate(contents))
    return Table(rank=rank, layout_bytes=0, values_bytes=0, payload_bytes=0, segments=segments)


class Node:
    """Ranks of one job that write to a folder."""

    def __init__(self, folder, world: int) -> None:
        self.checkpoints = Checkpoints(open_storage(str(folder)), "j")
        self.fds = [create_arena() for _ in range(world)]
        self.infos = [save(fd, rank, 10, world=world) for rank, fd in enumerate(self.fds)]

    def write(self, rank: int, stored: tuple[Manifest, ...] = (), gather_s: float = 60.0) -> int:
        stop = Event()
        stop.set()  # nobody waits in these tests: the tables are there, or do not come
        return RankWriter(
            self.checkpoints,
            ArenaReader(self.fds[rank]),
            self.infos[rank],
            rate_limit=RateLimit(0),
            poller=Poller(0.01, stop),
        ).write(stored, gather_s)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def node(tmp_path):
    made = []

    def make(world: int) -> Node:
        made.append(Node(tmp_path, world))
        return made[-1]

    yield make
    for one in made:
        one.close()


@given(st.lists(st.lists(st.integers(0, 12), max_size=8), min_size=1, max_size=5))
def test_each_distinct_content_is_written_by_exactly_one_rank_that_has_it(contents):
    tables = [table(rank, some) for rank, some in enumerate(contents)]
    shares = {t.rank: [s.hash for s in assigned(t.rank, reversed(tables))] for t in tables}
    written = [content_hash for share in shares.values() for content_hash in share]
    assert sorted(written) == sorted({str(c) for some in contents for c in some})
    assert all(set(map(int, shares[rank])) <= set(some) for rank, some in enumerate(contents))


def test_shared_content_is_spread_evenly():
    tables = [table(rank, list(range(8))) for rank in range(4)]
    assert [len(assigned(rank, tables)) for rank in range(4)] == [2, 2, 2, 2]


def test_a_receipt_survives_its_file():
    receipt = Receipt(written_bytes=7, blobs={"h": Blob(file="a.pack", offset=3, bytes=4)})
    assert Receipt.parse(receipt.encode()) == receipt


def test_a_table_covers_layout_and_every_tensor(node):
    one = node(1)
    info, data = one.infos[0], memoryview(content(one.fds[0], 0, 10))
    made = table_of(info, data)
    assert made.segments[0].offset == 0
    assert made.segments[0].bytes == info.layout_bytes + info.values_bytes
    assert [s.bytes for s in made.segments[1:]] == [4000] * 6
    assert made.bytes < info.total_bytes  # padding is no content


def test_what_one_rank_wrote_can_be_read_back(node):
    one = node(1)
    written = one.write(0)
    (made,) = tables_of(one.checkpoints, one.infos[0], 60.0).look()
    (receipt,) = receipts_of(one.checkpoints, one.infos[0], 60.0).look()
    assert receipt.written_bytes == written == made.bytes
    manifest = Manifest(
        job="j",
        step=10,
        attempt=0,
        world=1,
        created_ns=0,
        written_bytes=written,
        tables={0: made},
        blobs=receipt.blobs,
    )
    assert one.checkpoints.verify(manifest) == []
    one.infos[0] = save(one.fds[0], 0, 20)  # only `frozen` is as it was
    again = one.write(0, stored=(manifest,))
    assert written - 5000 < again < written - 3000


def test_tables_are_complete_only_with_every_rank(node):
    two = node(2)
    two.write(0)
    assert tables_of(two.checkpoints, two.infos[0], 60.0).look() is None
    two.write(1)
    assert [t.rank for t in tables_of(two.checkpoints, two.infos[0], 60.0).look()] == [0, 1]


class CountsReads:
    """A storage that counts what is read of it, and refuses paths once."""

    def __init__(self, storage, refuse=()):
        self._storage, self.read_paths, self._refuse = storage, [], set(refuse)

    def read(self, path):
        self.read_paths.append(path)
        for part in [part for part in self._refuse if part in path]:
            self._refuse.discard(part)
            raise OSError(5, "EIO", path)
        return self._storage.read(path)

    def __getattr__(self, name):
        return getattr(self._storage, name)


def test_each_table_is_read_once_however_often_ranks_look_for_the_others(node):
    three = node(3)
    storage = CountsReads(three.checkpoints.storage, refuse=["rank-00001"])
    tables = tables_of(Checkpoints(storage, "j"), three.infos[0], 60.0)
    three.write(0)
    assert tables.look() is None
    assert tables.look() is None
    three.write(1)
    three.write(2)
    with pytest.raises(OSError, match="EIO"):
        tables.look()
    assert [t.rank for t in tables.look()] == [0, 1, 2]
    assert [sum(f"rank-0000{rank}" in path for path in storage.read_paths) for rank in range(3)] == [1, 2, 1]


def test_no_receipt_is_read_before_all_are_there(node):
    two = node(2)
    storage = CountsReads(two.checkpoints.storage)
    receipts = receipts_of(Checkpoints(storage, "j"), two.infos[0], 60.0)
    two.write(0)
    assert (receipts.look(), storage.read_paths) == (None, [])
    two.write(1)
    assert len(receipts.look()) == 2


def test_nothing_is_read_once_the_time_is_over(node):
    one = node(1)
    one.write(0)
    storage = CountsReads(one.checkpoints.storage)
    assert tables_of(Checkpoints(storage, "j"), one.infos[0], -1.0).look() is None
    assert storage.read_paths == []


def test_a_rank_writes_all_of_its_content_where_a_table_does_not_come(node):
    two = node(2)
    alone = two.write(0)
    beside = two.write(1)  # both tables are there now
    (first, second) = tables_of(two.checkpoints, two.infos[1], 60.0).look()
    assert alone == first.bytes
    assert beside < second.bytes


def test_damaged_memory_is_not_written(node):
    one = node(1)
    ArenaReader(one.fds[0]).view(one.infos[0])[-20] ^= 1
    with pytest.raises(CorruptData, match="step 10: the arena's bytes do not have their checksum"):
        one.write(0)
    assert one.checkpoints.steps() == []


def test_a_step_that_is_rolled_back_meanwhile_gets_no_receipt(node, monkeypatch):
    one = node(1)
    put = one.checkpoints.storage.put

    def roll_back(path, chunks):
        if path.endswith(".pack"):
            ArenaWriter(one.fds[0]).invalidate(one.infos[0])
        return put(path, chunks)

    monkeypatch.setattr(one.checkpoints.storage, "put", roll_back)
    with pytest.raises(CheckpointError, match="step 10 was rolled back while it was persisted"):
        one.write(0)
    assert receipts_of(one.checkpoints, one.infos[0], 60.0).look() is None
