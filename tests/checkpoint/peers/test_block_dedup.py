"""What a node's own ranks have of an offered replica is reused: exactly that, and nothing torn."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory import slots
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.memory.slots import MAX_SLOTS
from pulsetrain.checkpoint.peers import block_dedup as module
from pulsetrain.checkpoint.peers.block_dedup import BlockDedup, merged_spans
from pulsetrain.checkpoint.peers.replicas import Snapshot
from pulsetrain.checkpoint.peers.shared_blocks import SharedBlocks
from tests.checkpoint.trainers import save


def snapshot(*, layout: int = 100, values: int = 10, payload: int = 10_000, step: int = 1) -> Snapshot:
    return Snapshot(
        rank=9,
        step=step,
        attempt=0,
        world=10,
        layout_bytes=layout,
        values_bytes=values,
        payload_bytes=payload,
        checksum=0,
    )


def state(step: int, own: int = 0) -> dict[str, np.ndarray]:
    """Ten blocks of content, of which `own` changes the seventh."""
    whole = np.arange(10 * 1024, dtype=np.int32) + 100_000 * step
    whole[7 * 1024] += own
    return {"w": whole}


class Site:
    """A node with some ranks, and the arena of a rank elsewhere whose checkpoints are offered to it."""

    def __init__(self, *ranks: int, on_sleep=lambda: None) -> None:
        self.now, self.on_sleep, self.pauses = 0.0, on_sleep, 0
        self.shared: list[SharedBlocks] = []
        self.block_dedup = BlockDedup(clock=lambda: self.now, sleep=self.sleep)
        self.fds = {rank: create_arena() for rank in (*ranks, 9)}
        for rank in ranks:
            self.block_dedup.attach(rank, self.fds[rank])

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1
        self.on_sleep()

    def save(self, rank: int, step: int, own: int = 0) -> None:
        assert save(self.fds[rank], rank, step, world=10, tensors=state(step, own))

    def offer(self, step: int, own: int = 0) -> tuple[bytes, list[tuple[int, int]], bytearray]:
        """Its bytes, what is missing here, and what is reused here."""
        self.save(9, step, own)
        return self.offered(step)

    def offered(self, step: int) -> tuple[bytes, list[tuple[int, int]], bytearray]:
        arena = ArenaReader(self.fds[9])
        info = arena.find(9, step)
        shared, missing = self.block_dedup.share(Snapshot.of(info), arena.digests(info))
        target = bytearray(b"\xa5" * info.total_bytes)
        if shared is not None:
            self.shared.append(shared)
            assert shared.copy_into(memoryview(target)) == shared.intact
        return bytes(arena.view(info)), missing, target

    def close(self) -> None:
        for rank in self.fds:
            self.block_dedup.detach(rank)
        for fd in self.fds.values():
            os.close(fd)


@pytest.fixture
def site():
    made = []

    def make(*ranks: int, **options) -> Site:
        made.append(Site(*ranks, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def completed(source: bytes, missing: list[tuple[int, int]], target: bytearray) -> bytes:
    """The replica after the peer has sent what is missing."""
    for at, size in missing:
        target[at : at + size] = source[at : at + size]
    return bytes(target)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=40))
def test_merged_spans_cover_exactly_what_is_wanted(parts):
    ends = [0, *itertools.accumulate(size for size, _ in parts)]
    spans = [(at, size) for at, (size, _) in zip(ends, parts, strict=False)]
    wanted = {
        i for (at, size), (_, want) in zip(spans, parts, strict=True) if want for i in range(at, at + size)
    }
    found = merged_spans(spans, np.array([want for _, want in parts]))
    assert [i for at, size in found for i in range(at, at + size)] == sorted(wanted)
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(found))


def test_neighbouring_spans_are_merged():
    spans = [(0, 5), (5, 0), (5, 5), (10, 5), (15, 5)]
    assert merged_spans(spans, np.array([True, True, True, False, True])) == [(0, 10), (15, 5)]
    assert merged_spans(spans, np.array([False, True, False, False, False])) == []


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=4),
)
def test_only_blocks_that_arrived_whole_are_covered(sizes, known):
    ends = list(itertools.accumulate(sizes))
    spans = [(end - size, size) for end, size in zip(ends, sizes, strict=True)]
    enclosed = [any(a <= at and at + n <= a + m for a, m in known) for at, n in spans]
    assert module._covered(spans, known).tolist() == enclosed


def test_with_too_many_missing_spans_everything_is_sent(site, monkeypatch):
    one = site(0)
    one.save(0, 5, own=3)
    monkeypatch.setattr(module, "MAX_MISSING_SPANS", 0)
    source, missing, _ = one.offer(5)
    assert missing == [(0, len(source))]
    assert one.shared == []
    arena = ArenaReader(one.fds[0])
    assert not arena.shared(arena.find(0, 5))


@given(st.integers(0, 1 << 32), st.dictionaries(st.integers(0, 59_999), st.integers(1, 255), max_size=5))
def test_shared_and_missing_blocks_make_the_offered_bytes(seed, changed):
    site = Site(0)
    try:
        content = np.random.default_rng(seed).bytes(60_000)
        other = bytearray(content)
        for at, flip in changed.items():
            other[at] ^= flip
        for rank, raw in ((0, other), (9, content)):
            assert save(site.fds[rank], rank, 1, tensors={"w": np.frombuffer(bytes(raw), dtype=np.uint8)})
        source, missing, target = site.offered(1)
        asked = {i for at, size in missing for i in range(at, at + size)}
        info = ArenaReader(site.fds[9]).find(9, 1)
        first = info.total_bytes - info.payload_bytes
        assert {first + at for at in changed} <= asked  # nothing is claimed that is not there
        assert len(asked) <= 4096 * len(changed)  # and nothing is asked for twice
        assert all(target[i] == source[i] for i in range(len(source)) if i not in asked)
        assert completed(source, missing, target) == source
    finally:
        site.close()


def test_equal_states_miss_nothing_and_one_changed_block_is_missing_alone(site):
    one = site(0, 1)
    one.save(0, 5)
    one.save(1, 5, own=3)
    source, missing, target = one.offer(5)
    assert missing == []
    assert bytes(target) == source
    one.save(0, 6)
    one.save(1, 6, own=3)
    source, missing, target = one.offer(6, own=3)
    assert missing == []  # the seventh block from rank 1
    assert bytes(target) == source
    one.save(0, 7)
    one.save(1, 7, own=3)
    source, missing, target = one.offer(7, own=4)
    assert missing == [(4096 + 7 * 4096, 4096)]
    assert completed(source, missing, target) == source


def test_another_step_or_shape_or_number_of_digests_shares_nothing(site):
    one = site(0)
    one.save(0, 4)
    source, missing, _ = one.offer(3)
    assert missing == [(0, len(source))]
    assert save(one.fds[0], 0, 5, world=10, tensors={"w": np.zeros(999)})
    source, missing, _ = one.offer(5)
    assert missing == [(0, len(source))]
    one.save(0, 6)
    arena = ArenaReader(one.fds[0])
    shot = Snapshot.of(arena.find(0, 6))
    assert one.block_dedup.share(shot, b"") == (None, [(0, shot.total_bytes)])


def test_a_shared_slot_is_overwritten_last(site):
    one = site(0)
    one.save(0, 5)
    source, missing, target = one.offer(5)
    assert (missing, bytes(target)) == ([], source)
    for step in range(6, 6 + 4 * MAX_SLOTS):
        one.save(0, step)
    (shared,) = one.shared
    again = bytearray(len(source))
    assert shared.copy_into(memoryview(again))
    assert bytes(again) == source
    for step in range(100, 100 + MAX_SLOTS - 1):  # until every slot is shared: a save comes before a shared
        one.save(0, step)
        one.offer(step)
    one.save(0, 200)
    assert not shared.intact
    assert not shared.copy_into(memoryview(again))
    assert sum(other.intact for other in one.shared) == MAX_SLOTS - 1


def test_a_large_state_gets_one_slot_more_while_one_is_shared(site, monkeypatch):
    monkeypatch.setattr(slots, "SMALL_BYTES", 0)
    monkeypatch.setattr(slots, "LARGE_BYTES", 0)
    one = site(0)
    one.save(0, 5)
    one.offer(5)
    for step in range(6, 12):
        one.save(0, step)
    (shared,) = one.shared
    assert shared.intact
    assert [i.step for i in ArenaReader(one.fds[0]).published()] == [11, 10, 5]
    shared.release()
    one.save(0, 12)
    one.save(0, 13)
    assert not shared.intact


def test_a_slot_is_shared_until_both_of_its_replicas_are_dropped(site):
    one = site(0)
    one.save(0, 5)
    one.offer(5)
    one.offered(5)
    arena = ArenaReader(one.fds[0])
    info = arena.find(0, 5)
    first, second = one.shared
    first.release()
    assert arena.shared(info)
    second.release()
    assert not arena.shared(info)


def test_a_save_that_is_being_written_or_rolled_back_is_not_shared(site):
    one = site(0)
    one.save(0, 5)
    arena = ArenaReader(one.fds[0])
    info = arena.find(0, 5)
    assert arena.digests(info)
    ArenaWriter(one.fds[0]).invalidate(info)
    assert arena.digests(info) == b""
    source, missing, _ = one.offer(5)
    assert missing == [(0, len(source))]


def test_a_rank_that_should_save_soon_is_waited_for(site):
    one = site(0)
    one.save(0, 4)
    one.on_sleep = lambda: one.pauses == 3 and one.save(0, 5)
    _, missing, _ = one.offer(5)
    assert missing == []
    assert one.pauses == 3


def test_a_rank_that_does_not_save_is_waited_for_once(site):
    one = site(0)
    one.save(0, 4)
    source, missing, _ = one.offer(5)
    assert missing == [(0, len(source))]
    waited = one.now
    assert 0.2 < waited < 0.3
    one.offer(6)
    assert one.now == waited
    one.save(0, 7)  # in time again
    assert one.offer(7)[1] == []
    one.on_sleep = lambda: one.save(0, 8)
    assert one.offer(8)[1] == []


def test_a_rank_with_other_content_is_not_waited_for(site):
    one = site(0)
    assert save(one.fds[0], 0, 1, world=10, tensors={"w": np.zeros(10 * 1024, dtype=np.int32)})
    one.offer(1)
    one.offer(2)
    assert one.pauses == 0


def test_a_detached_rank_shares_nothing(site):
    one = site(0)
    one.save(0, 5)
    one.block_dedup.detach(0)
    source, missing, _ = one.offer(5)
    assert missing == [(0, len(source))]
