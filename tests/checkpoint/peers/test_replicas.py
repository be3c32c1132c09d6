"""Which replicas a node keeps, and that what is read stays as it was."""

import dataclasses
import mmap

import pytest

from pulsetrain.checkpoint.memory.blocks import blocks, checksum, digests
from pulsetrain.checkpoint.memory.slots import LARGE_BYTES, MAX_SLOTS, payload_offset
from pulsetrain.checkpoint.peers.replicas import Replicas, Snapshot
from pulsetrain.core.errors import CorruptData


def snapshot(step: int, *, rank: int = 0, attempt: int = 0, payload: int = 100, fill: int = 1) -> Snapshot:
    empty = Snapshot(
        rank=rank,
        step=step,
        attempt=attempt,
        world=2,
        layout_bytes=10,
        values_bytes=5,
        payload_bytes=payload,
        checksum=0,
    )
    data = memoryview(bytes([fill]) * min(empty.total_bytes, 1 << 20))
    if payload > 1 << 20:
        return empty
    return dataclasses.replace(empty, checksum=checksum(digests(data, blocks(empty))))


def put(replicas: Replicas, one: Snapshot, fill: int = 1, shared=None) -> mmap.mmap:
    memory = replicas.buffer(one)
    memory[:100] = bytes([fill]) * 100
    replicas.put(one, memory, shared)
    return memory


def steps(replicas: Replicas) -> list[int]:
    return [one.step for one in replicas.list()]


class Shared:
    """Blocks of a rank here: all of the replica."""

    def __init__(self, fill: int = 1) -> None:
        self.fill, self.intact, self.released = fill, True, 0

    def copy_into(self, target: memoryview) -> bool:
        target[:] = bytes([self.fill]) * len(target)
        return self.intact

    def release(self) -> None:
        self.released += 1


def test_a_description_survives_a_frame():
    one = snapshot(7, rank=3)
    assert Snapshot.parse(one.as_json()) == one
    assert one.header().total_bytes == one.total_bytes == payload_offset(10, 5) + 100


@pytest.mark.parametrize("change", [{"step": None}, {"rank": "x"}, {"payload_bytes": -1}])
def test_damaged_descriptions_are_refused(change):
    with pytest.raises(CorruptData, match="description"):
        Snapshot.parse(snapshot(7).as_json() | change)
    with pytest.raises(CorruptData, match="description"):
        Snapshot.parse({})


def test_the_newest_of_a_small_state_are_kept_and_two_of_a_large_one():
    replicas = Replicas()
    for step in range(1, 9):
        put(replicas, snapshot(step))
        replicas.put(snapshot(step, rank=1, payload=LARGE_BYTES + 1), mmap.mmap(-1, 4096))
    assert sorted(steps(replicas)) == [4, 5, 6, 7, 7, 8, 8]


def test_the_replica_before_is_there_until_its_memory_is_needed():
    replicas = Replicas()
    large = [snapshot(step, payload=LARGE_BYTES + 1) for step in range(1, 4)]
    memories = []
    for one in large[:2]:
        memories.append(replicas.buffer(one))
        replicas.put(one, memories[-1])
    assert steps(replicas) == [1, 2]
    third = replicas.buffer(large[2])
    assert third is memories[0]  # no third buffer
    assert steps(replicas) == [2]
    replicas.give_back(0, third)  # it did not arrive
    assert steps(replicas) == [2]
    assert replicas.buffer(large[2]) is third


def test_a_step_that_is_saved_again_takes_the_place_of_the_rolled_back_future():
    replicas = Replicas()
    for step in (3, 4, 5, 4):
        put(replicas, snapshot(step))
    assert steps(replicas) == [3, 4]


def test_a_late_replica_of_an_attempt_that_was_rolled_back_is_dropped():
    replicas, shared = Replicas(), Shared()
    put(replicas, snapshot(4))
    replicas.forget_after(3, attempt=1)
    put(replicas, snapshot(5, attempt=0), shared=shared)
    assert steps(replicas) == []
    assert shared.released == 1
    put(replicas, snapshot(3, attempt=0))  # that step is not rolled back
    put(replicas, snapshot(4, attempt=1))
    assert steps(replicas) == [3, 4]


def test_memory_is_used_again_but_not_while_it_is_read():
    replicas = Replicas()
    memories = [put(replicas, snapshot(step)) for step in range(1, 5)]
    with replicas.reading(0, 1) as replica:
        assert replica is not None
        put(replicas, snapshot(5))
        assert replicas.buffer(snapshot(6)) is not memories[0]  # it is read still
        assert bytes(replica[1][:3]) == b"\1\1\1"
    put(replicas, snapshot(6))  # drops step 2
    assert replicas.buffer(snapshot(7)) is memories[1]


def test_a_buffer_that_was_given_back_is_the_next_one_if_it_is_large_enough():
    replicas = Replicas()
    memory = replicas.buffer(snapshot(1))
    replicas.give_back(0, memory)
    assert replicas.buffer(snapshot(2)) is memory
    replicas.give_back(0, memory)
    assert replicas.buffer(snapshot(2, payload=100_000)) is not memory


def test_shared_blocks_are_copied_when_somebody_reads():
    replicas, shared = Replicas(), Shared()
    put(replicas, snapshot(1), fill=0, shared=shared)
    with replicas.reading(0, 1) as replica:
        assert replica is not None
        assert set(bytes(replica[1])) == {1}
    assert shared.released == 1
    shared.intact = False  # of no matter now
    assert steps(replicas) == [1]


@pytest.mark.parametrize("harm", ["overwritten", "changed"])
def test_a_replica_whose_shared_blocks_are_not_what_was_saved_is_none(harm):
    replicas, shared = Replicas(), Shared(fill=2 if harm == "changed" else 1)
    put(replicas, snapshot(1), shared=shared)
    shared.intact = harm != "overwritten"
    with replicas.reading(0, 1) as replica:
        assert replica is None
    assert steps(replicas) == []
    assert shared.released == 1


def test_clearing_drops_everything_and_shares_nothing_more():
    replicas, shared = Replicas(), Shared()
    put(replicas, snapshot(1), shared=shared)
    replicas.clear()
    assert steps(replicas) == []
    assert shared.released == 1
    with replicas.reading(0, 1) as replica:
        assert replica is None


def test_what_no_rank_sends_here_any_more_goes_once_nobody_can_go_back_to_it():
    replicas, shared = Replicas(), Shared()
    for step in (1, 2):
        put(replicas, snapshot(step, rank=7), shared=shared)
        put(replicas, snapshot(step, rank=0))
    replicas.give_back(7, mmap.mmap(-1, 4096))
    replicas.begin_world(1)  # rank 7 has another partner now
    put(replicas, snapshot(2, rank=0))  # what was restored is sent again
    for step in range(3, 3 + MAX_SLOTS):
        put(replicas, snapshot(step, rank=1, attempt=1))
        assert {1, 2} <= set(steps(replicas))
        put(replicas, snapshot(step, rank=0, attempt=1))
    put(replicas, snapshot(3 + MAX_SLOTS, rank=1, attempt=1))
    assert {one.rank for one in replicas.list()} == {0, 1}
    assert shared.released == 2
    assert replicas.buffer(snapshot(9, rank=7))[:1] == b"\0"  # nor is its spare memory kept


def test_a_replica_of_a_rank_that_still_comes_stays():
    replicas = Replicas()
    replicas.begin_world(1)
    put(replicas, snapshot(2, rank=7))  # it was restored, and the rank has saved nothing since
    for step in range(3, 5 + MAX_SLOTS):
        put(replicas, snapshot(step, rank=0, attempt=1))
    assert {one.rank for one in replicas.list()} == {0, 7}
