"""The arena: what is published stays readable, what is not is never seen."""

import dataclasses
import mmap
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.memory.blocks import blocks, checksum, digests
from pulsetrain.checkpoint.memory.slots import LARGE_BYTES, MAX_SLOTS, Header, payload_offset
from pulsetrain.core.errors import CorruptData, MemoryShort


def header(step: int, *, size: int = 100, pinned=False, durable=False, rank: int = 0) -> Header:
    return Header(
        step=step,
        attempt=0,
        rank=rank,
        world=1,
        layout_bytes=10,
        values_bytes=5,
        payload_bytes=size,
        pinned=pinned or durable,
        durable=durable,
    )


def write(writer: ArenaWriter, step: int, *, fill: int | None = None, **options):
    writing = writer.begin(header(step, **options))
    if writing is None:
        return None
    writing.bytes[:] = bytes([step % 251 if fill is None else fill]) * len(writing.bytes)
    return writing.commit()


@pytest.fixture
def fd():
    fd = create_arena()
    yield fd
    os.close(fd)


def test_a_new_arena_holds_nothing(fd):
    assert ArenaReader(fd).published() == []
    assert ArenaReader(fd).active == 0
    assert ArenaReader(fd).durable_step == -1


def test_a_commit_publishes_and_changes_the_active_word(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    info = write(writer, 7)
    assert reader.active != 0
    assert reader.find(0, 7) == info
    assert reader.verify(info)
    assert bytes(reader.view(info)) == bytes([7]) * (payload_offset(10, 5) + 100)


@pytest.mark.parametrize("size", [0, 100, 300_000, 70 << 20])
def test_digests_of_the_blocks_follow_the_bytes(fd, size):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    writer.prepare(size)
    info = write(writer, 3, size=size)
    assert reader.digests(info) == digests(reader.view(info), blocks(info))
    assert checksum(reader.digests(info)) == info.checksum


@pytest.mark.parametrize("at", [0, 20, 500])
def test_damaged_digests_are_not_returned_and_harm_no_checkpoint(fd, at):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    writing = writer.begin(header(3, size=300_000))
    info = writing.commit()
    writing.region[info.total_bytes + at] ^= 1
    assert reader.digests(info) == b""
    assert reader.verify(info)


def test_an_unfinished_write_is_invisible_and_harms_no_checkpoint(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    for step in range(5):
        write(writer, step)
    for _ in range(3):  # a trainer that dies again and again in mid-save
        torn = ArenaWriter(fd).begin(header(5))
        torn.bytes[:50] = b"x" * 50
    assert reader.published()[0].step == 4
    assert reader.verify(reader.published()[0])
    assert reader.find(0, 5) is None


def test_a_writer_that_follows_a_dead_one_continues_its_generations(fd):
    first = write(ArenaWriter(fd), 0)
    ArenaWriter(fd).begin(header(1))
    second = write(ArenaWriter(fd), 1)
    assert second.generation == first.generation + 1


def test_a_slot_grows_without_moving_the_others(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    small = write(writer, 1, size=100)
    large = write(writer, 2, size=10_000_000)
    assert reader.verify(small)
    assert reader.verify(large)


def test_a_reader_notices_that_a_slot_was_written_over(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    info = write(writer, 0)
    for step in range(1, MAX_SLOTS + 1):
        write(writer, step)
    assert not reader.still(info)
    assert not reader.verify(info)


def test_a_flipped_bit_fails_verification(fd):
    info = write(ArenaWriter(fd), 3)
    reader = ArenaReader(fd)
    offset = reader.file_offset(info)
    os.pwrite(fd, b"\xff", offset + 20)
    assert not reader.verify(info)


def test_a_flipped_bit_in_the_header_hides_the_slot(fd):
    info = write(ArenaWriter(fd), 3)
    with mmap.mmap(fd, 4096) as page:
        at = bytes(page).index((3).to_bytes(8, "little"), 512)
        page[at] ^= 4
    assert ArenaReader(fd).find(info.rank, 3) is None
    assert ArenaReader(fd).published() == []


def test_equal_content_is_flagged(fd):
    writer = ArenaWriter(fd)
    write(writer, 1, fill=9)
    assert write(writer, 2, fill=9).unchanged
    assert not write(writer, 3, fill=8).unchanged


def test_pinned_slots_are_kept_until_taken(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    size = 100
    durable = write(writer, 1, durable=True, size=size)
    for step in range(2, 20):
        assert write(writer, step, size=size) is not None
    assert reader.verify(durable)
    reader.set_taken(durable)
    for step in range(20, 20 + MAX_SLOTS):
        write(writer, step, size=size)
    assert reader.find(0, 1) is None


def test_with_every_slot_pinned_a_save_is_refused_and_counted(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    for step in range(MAX_SLOTS):
        assert write(writer, step, durable=True)
    assert write(writer, 99) is None
    writer.skip(99, "full")
    assert (reader.skip_count, reader.skip_step, reader.skip_reason) == (1, 99, "full")


def test_saves_go_on_in_memory_while_storage_is_too_slow_for_periodic_ones(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    stored = write(writer, 0, pinned=True)
    assert reader.begin_persisting(stored)
    for step in range(1, 4 * MAX_SLOTS):
        assert write(writer, step, pinned=step % 2 == 0)
    assert reader.verify(stored)
    assert reader.newest.step == 4 * MAX_SLOTS - 1
    reader.end_persisting(stored)
    reader.set_taken(stored)
    write(writer, 99, pinned=True)
    write(writer, 100)
    assert reader.find(0, 0) is None


def test_what_waits_for_storage_gives_way_last(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    write(writer, 0, pinned=True)
    for step in range(1, 3 * MAX_SLOTS):
        write(writer, step)
    assert reader.find(0, 0)
    for step in range(20, 20 + MAX_SLOTS - 1):
        write(writer, step, pinned=True)
    assert write(writer, 99) is None  # nothing is written to storage yet: these are what all ranks have
    assert reader.find(0, 0)
    assert not reader.begin_persisting(dataclasses.replace(reader.find(0, 0), seq=0))


def test_large_states_use_two_slots(fd):
    writer = ArenaWriter(fd)
    slots = []
    for step in range(3):  # untouched pages of a sparse slot take no memory and read as zeros
        writing = writer.begin(header(step, size=LARGE_BYTES + 1))
        slots.append(writing.slot)
        if step < 2:
            writing.commit()
    assert slots == [0, 1, 0]


def test_forget_after_drops_later_steps(fd):
    writer, reader = ArenaWriter(fd), ArenaReader(fd)
    for step in (4, 5, 6):
        write(writer, step)
    writer.forget_after(5)
    assert [i.step for i in reader.published()] == [5, 4]
    write(writer, 6)
    assert [i.step for i in reader.published()] == [6, 5, 4]


def test_another_file_is_not_an_arena():
    fd = os.memfd_create("other")
    os.ftruncate(fd, 8192)
    with pytest.raises(CorruptData, match="not an arena"):
        ArenaReader(fd)
    os.close(fd)


@given(
    st.lists(
        st.tuples(st.sampled_from(["save", "die", "pin", "take", "grow"]), st.integers(0, 3)), max_size=40
    )
)
def test_a_reader_always_sees_whole_checkpoints_and_the_newest_one(moves):
    fd = create_arena()
    reader, newest, size = ArenaReader(fd), None, 100
    for step, (move, amount) in enumerate(moves, start=1):
        writer = ArenaWriter(fd)
        if move == "take":
            for info in reader.published():
                reader.set_taken(info)
        elif move == "die":
            torn = writer.begin(header(step, size=size))
            if torn is not None:
                torn.bytes[: 30 * amount] = b"?" * (30 * amount)
        else:
            size += 5000 * amount if move == "grow" else 0
            info = write(writer, step, size=size, pinned=move == "pin")
            newest = info.step if info else newest
        published = reader.published()
        assert all(reader.verify(i) for i in published)
        assert (published[0].step if published else None) == newest
    os.close(fd)


BIG = LARGE_BYTES + 1  # two slots; their pages are never written here


def test_a_save_without_memory_harms_no_checkpoint_and_is_made_once_there_is_some(fd):
    left = [3 * BIG]
    writer = ArenaWriter(fd, lambda: left[0])
    writer.begin(header(1, size=BIG)).bytes[:1] = b"x"
    info = write(writer, 2)  # a small one
    left[0] = 100 << 20
    with pytest.raises(MemoryShort, match=r"268.4 MB needs 268.4 MB more memory, 104.9 MB are left"):
        writer.begin(header(3, size=BIG))
    assert writer.newest == info
    assert writer.verify(info)
    left[0] = 3 * BIG
    assert writer.begin(header(3, size=BIG)) is not None


def test_where_there_is_no_memory_for_one_more_slot_another_is_written(fd):
    left = [1 << 40]
    writer, reader = ArenaWriter(fd, lambda: left[0]), ArenaReader(fd)
    writer.prepare(100)
    infos = [write(writer, step, size=LARGE_BYTES // 3) for step in (1, 2, 3)]
    left[0] = 0
    assert reader.begin_sharing(infos[0])  # it would get a fourth slot
    assert write(writer, 4, size=LARGE_BYTES // 3).slot == infos[1].slot
    assert reader.still(infos[0])


def test_memory_that_others_took_while_a_slot_was_faulted_in_is_given_back(fd, monkeypatch):
    monkeypatch.setattr("pulsetrain.checkpoint.memory.pages._CHUNK_BYTES", 1 << 20)
    left = iter([1 << 40, 1 << 40, 1 << 40, 0])
    writer = ArenaWriter(fd, lambda: next(left))
    writing = writer.begin(header(1, size=4 << 20))
    with pytest.raises(MemoryShort):
        writing.prefault()
    assert os.fstat(fd).st_blocks * 512 < 1 << 20
    left = iter([1 << 40, 1 << 40, 0])
    with pytest.raises(MemoryShort):
        ArenaWriter(fd, lambda: next(left)).prepare(4 << 20)
    assert os.fstat(fd).st_blocks * 512 < 3 << 20  # what a save has begun to use is left alone


def test_what_an_earlier_attempt_has_in_memory_needs_none(fd):
    first = ArenaWriter(fd)
    first.prepare(310_000)
    write(first, 1, size=300_000)
    again = ArenaWriter(fd, lambda: 0)
    again.prepare(310_000)
    assert write(again, 2, size=300_000).step == 2
