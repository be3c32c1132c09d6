"""The ring's laws: nothing lost, doubled or torn; what does not fit is dropped and counted."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.layout import G_NAME, MAX_GROUPS, MAX_NAMES, W_READ, pair_head, span_head
from pulsetrain.collectors.rank.ring import create_ring
from tests.collectors.rank.both_ends import CAPACITY, Ring


@given(st.lists(st.one_of(st.integers(1, 150), st.just(0)), max_size=30))
def test_every_interleaving_keeps_order_and_counts_what_it_drops(steps):
    """A number writes so many records; 0 drains."""
    ring = Ring()
    written, got, tried = [], [], 0
    for step in steps:
        if not step:
            got += ring.drained()
        for _ in range(step):
            if ring.write(tried):
                written.append(tried)
            tried += 1
    got += ring.drained()
    assert got == written
    assert tried == len(got) + ring.reader.dropped
    assert ring.reader.drained == len(got)
    assert ring.reader.lost == ring.reader.garbage == 0


def test_full_ring_drops_and_goes_on_after_a_drain():
    ring = Ring()
    kept = [n for n in range(200) if ring.write(n)]
    assert len(kept) == CAPACITY
    assert ring.reader.dropped == 200 - len(kept)
    assert ring.drained() == kept
    assert ring.write(500)
    assert ring.drained() == [500]


def test_threads_that_are_switched_at_every_instruction_lose_nothing():
    ring = Ring(1024)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    accepted: list[list[int]] = [[] for _ in range(8)]

    def write(thread: int) -> None:
        for n in range(2000):
            number = thread * 10_000 + n
            if ring.write(number):
                accepted[thread].append(number)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    try:
        for thread in threads:
            thread.start()
        got = []
        while any(thread.is_alive() for thread in threads):
            got += ring.drained(patience=10**9)  # no agent drains so often that a writer looks dead
    finally:
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    got += ring.drained()
    assert sorted(got) == sorted(n for numbers in accepted for n in numbers)
    assert len(set(got)) == len(got)
    assert len(got) + ring.reader.dropped == 16_000
    for i in range(8):  # each thread's records stay in its order
        assert [n for n in got if n // 10_000 == i] == accepted[i]


def test_names_are_cut_shared_after_the_last_and_survive_any_text():
    ring = Ring()
    assert ring.writer.intern("forward") == ring.writer.intern("forward")
    index = ring.writer.intern("é" * 100)
    assert ring.reader.names[index] == "é" * 31
    indices = [ring.writer.intern(f"phase {i}") for i in range(MAX_NAMES)]
    assert indices[-1] == 0
    assert ring.reader.names[indices[0]] == "phase 0"


@given(st.lists(st.integers(0, 100_000), max_size=20, unique=True))
def test_groups_keep_their_members_in_order(members):
    ring = Ring()
    cell = ring.writer.add_group(ring.writer.name_group("tp"), members, 30 * 10**9)
    ring.writer.set_op(cell, ring.writer.intern("all_reduce"), 9, 64, 5, -1)
    group = ring.reader.status().groups[0]
    assert group.members == tuple(members)
    assert (group.name, group.op, group.op_seq, group.op_bytes) == ("tp", "all_reduce", 9, 64)
    assert group.timeout_ns == 30 * 10**9


def test_a_world_of_many_ranks_takes_no_room_and_a_full_table_refuses():
    ring = Ring()
    ring.writer.add_group(ring.writer.name_group("world"), range(20_000))
    assert ring.reader.status().groups[0].members == tuple(range(20_000))
    assert [ring.writer.add_group(ring.writer.name_group(f"g{i}"), (0, 3, 4)) for i in range(300)][-1] == -1


def test_the_memory_cannot_be_cut_under_the_agent():
    fd = create_ring(64)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 10)
    os.close(fd)


def test_a_second_reader_goes_on_where_the_first_stopped():
    ring = Ring()
    ring.write(1)
    ring.drained()
    ring.write(2)
    fd = create_ring(64)
    os.close(fd)
    assert ring.writer.words[W_READ] == 1


def test_the_cells_of_groups_that_are_gone_are_used_again():
    ring = Ring()
    writer, uneven = ring.writer, (0, 1, 5)
    kept = writer.add_group(writer.name_group("kept"), (0, 1))
    for _ in range(3 * MAX_GROUPS):
        cell = writer.add_group(writer.name_group("late"), uneven)
        assert cell > kept
        writer.free_group(cell, [writer.add_pair(pair_head(1, 5, sends=True))])
    last = writer.add_group(writer.name_group("last"), uneven)
    assert last > kept
    assert [(g.name, g.members) for g in ring.reader.status().groups] == [("kept", (0, 1)), ("last", uneven)]
    position = ring.reader.position()
    assert position.complete
    assert position.pairs == ()


def test_a_group_without_room_for_its_cell_is_told():
    ring = Ring()
    cells = [
        ring.writer.add_group(ring.writer.name_group(str(number)), (0, 1)) for number in range(MAX_GROUPS)
    ]
    assert ring.reader.position().complete
    assert ring.writer.add_group(ring.writer.name_group("one more"), (0, 1)) == -1
    assert not ring.reader.position().complete
    assert min(cells) > 0


def test_a_script_that_makes_and_destroys_groups_for_ever_has_names_for_all_of_them():
    ring = Ring()
    writer, told = ring.writer, []
    kept = writer.name_group("kept")
    for number in range(3 * MAX_NAMES):
        name = writer.name_group(f"pg {number}")
        writer.span(span_head(0, 0, group=name), 0, 1, 2)
        spans, _ = ring.reader.drain()
        told += [ring.reader.drained_names[span["group"]] for span in spans]
        writer.free_name(name)
    assert told == [f"pg {number}" for number in range(3 * MAX_NAMES)]
    assert ring.reader.names[kept] == "kept"
    phase = writer.intern("a name of the script's")
    assert ring.reader.names[phase] == "a name of the script's"
    assert ring.reader.status().errors == 0


def test_a_name_that_is_still_to_be_read_goes_to_no_other_group():
    ring = Ring()
    old = ring.writer.name_group("old")
    ring.write(1)
    ring.writer.free_name(old)
    assert ring.writer.name_group("before the reader came") != old
    assert ring.drained() == [1]
    assert ring.writer.name_group("after it") == old
    assert ring.reader.drained_names[old] == "old", "a record that was handed out keeps its name"
    assert ring.reader.names[old] == "after it"


def test_a_phase_that_is_called_like_a_group_keeps_its_name():
    ring = Ring()
    phase, group = ring.writer.intern("7"), ring.writer.name_group("7")
    ring.writer.free_name(group)
    ring.writer.name_group("8")
    assert ring.reader.names[phase] == "7"


def test_a_status_that_was_read_while_a_name_changed_is_read_again(monkeypatch):
    ring = Ring()
    writer, reader = ring.writer, ring.reader
    old = writer.name_group("old")
    cell = writer.add_group(old, (0, 1))
    writer.free_name(old)
    read = reader._group

    def group(index, names):
        monkeypatch.setattr(reader, "_group", read)
        writer.words[cell + G_NAME] = writer.name_group("new")
        return read(index, names)

    monkeypatch.setattr(reader, "_group", group)
    assert [each.name for each in reader.status().groups] == ["new"]
