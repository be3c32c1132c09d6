"""Operations of a group: numbered, shown while in flight, recorded at their end."""

from __future__ import annotations

import itertools
import os
import threading
from enum import IntEnum
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.rank.operations import Group
from pulsetrain.collectors.rank.ring import create_ring
from pulsetrain.collectors.reading.ring_reader import RingReader
from pulsetrain.protocol.transfer_peer import ANY_SOURCE, NO_PEER
from tests.collectors.rank.watched import Watched


class Watchlist:
    """The tracker as a group sees it: keeps what is pending and never asks."""

    def __init__(self, state):
        self.state, self.pending, self.synchronous, self.asked = state, {}, [], 0

    def poll(self):
        self.asked += 1

    def poll_after_backward(self):
        pass

    def capturing(self):
        return False

    def take_synchronous(self, operation, number):
        self.synchronous.append((operation.seq, number))


KINDS = IntEnum("KINDS", ("ALLREDUCE", "SEND", "RECV", "BARRIER", "ALLGATHER", "REDUCE_SCATTER", "ALLTOALL"))


class Side:
    """A group of ranks 4, 5, 6 and the calls that torch's hooks would make for it."""

    def __init__(self):
        self.watched = Watched()
        self.watchlist = Watchlist(self.watched.handle.state)
        self.group = Group(self.watchlist, "dp:1", lambda: (4, 5, 6), host_only=True)
        self.ids = itertools.count()

    def enqueue(self, kind="ALLREDUCE", size=4, root=-1, *, out=0, fails=False, synchronous=False):
        call = SimpleNamespace(
            name=KINDS[kind],
            op_id=next(self.ids),
            input_tensors=[torch.ones(size)],
            output_tensors=[torch.ones(out)],
            root=root,
            work=None if synchronous else object(),
        )
        self.group.before(call)
        if not fails:
            self.group.after(call)
        return call.op_id

    def end(self, key):
        self.group.finish(key, self.group.in_flight[key], self.group.in_flight[key].start + 1000)

    @property
    def cell(self):
        return self.watched.reader.status().groups[0]

    def spans(self):
        names = self.watched.reader.names
        rows = self.watched.reader.drain()[0]
        return [(names[r["name"]], int(r["seq"]), int(r["bytes"]), int(r["peer"])) for r in rows]


@pytest.fixture
def side():
    return Side()


def test_collectives_are_counted_and_transfers_by_pair_and_direction(side):
    keys = [
        side.enqueue("ALLREDUCE"),
        side.enqueue("SEND", root=1),
        side.enqueue("RECV", root=1),
        side.enqueue("SEND", root=1),
        side.enqueue("SEND", root=2),
        side.enqueue("ALLGATHER"),
    ]
    for key in keys:
        side.end(key)
    assert side.spans() == [
        ("all_reduce", 1, 16, -1),
        ("send", 1, 16, 5),
        ("recv", 1, 16, 5),
        ("send", 2, 16, 5),
        ("send", 1, 16, 6),
        ("all_gather", 2, 16, -1),
    ]
    assert side.watched.errors == 0


@pytest.mark.parametrize(
    ("kind", "size", "out", "expected"),
    [
        ("ALLREDUCE", 4, 4, 16),
        ("ALLGATHER", 4, 8, 32),
        ("REDUCE_SCATTER", 8, 4, 32),
        ("ALLTOALL", 4, 6, 24),
        ("ALLTOALL", 6, 4, 24),
        ("ALLGATHER", 4, 0, 16),
        ("REDUCE_SCATTER", 0, 4, 16),
        ("BARRIER", 0, 0, 0),
    ],
)
def test_a_size_is_the_larger_of_what_goes_in_and_what_comes_out(side, kind, size, out, expected):
    side.end(side.enqueue(kind, size, out=out))
    assert [row[2] for row in side.spans()] == [expected]


def test_the_oldest_operation_in_flight_is_shown_and_what_is_complete(side):
    first, second = side.enqueue("ALLREDUCE"), side.enqueue("BARRIER", size=0)
    assert (side.cell.members, side.cell.enqueued, side.cell.op, side.cell.op_seq) == (
        (4, 5, 6),
        2,
        "all_reduce",
        1,
    )
    side.end(first)
    assert (side.cell.completed, side.cell.op, side.cell.op_seq) == (1, "barrier", 2)
    side.end(second)
    assert (side.cell.completed, side.cell.op) == (2, "")


def test_a_transfer_in_flight_says_nothing_of_the_collectives_before_it(side):
    side.end(side.enqueue("ALLREDUCE"))
    side.enqueue("RECV", root=1)
    assert (side.cell.enqueued, side.cell.completed, side.cell.op, side.cell.op_seq) == (1, 1, "recv", 1)
    assert side.cell.op_peer == 5


def test_a_receive_from_any_source_is_no_collective_and_its_span_names_nobody(side):
    side.end(side.enqueue("ALLREDUCE"))
    receive = side.enqueue("RECV", root=-1)
    assert (side.cell.enqueued, side.cell.completed, side.cell.op) == (1, 1, "recv")
    assert side.cell.op_peer == ANY_SOURCE
    side.end(receive)
    assert side.spans()[-1] == ("recv", 1, 16, NO_PEER)


def test_an_enqueue_that_torch_refused_is_not_in_flight_for_ever(side):
    side.end(side.enqueue())
    for kind in ("ALLREDUCE", "SEND"):
        side.enqueue(kind, root=1, fails=True)
        kept = side.enqueue(kind, root=1)
        assert list(side.group.in_flight) == [kept]
        side.end(kept)
    assert [row[:2] for row in side.spans()] == [("all_reduce", 1), ("all_reduce", 2), ("send", 1)]
    assert (side.cell.enqueued, side.cell.completed, side.cell.op) == (2, 2, "")


def test_an_operation_without_a_work_is_synchronous_outside_a_batch_and_one_of_the_batch_inside(side):
    alone = side.enqueue(synchronous=True)
    side.group.batch = []
    member = side.enqueue(synchronous=True)
    assert side.watchlist.synchronous == [(1, alone)]
    assert [(operation.seq, number) for operation, number in side.group.batch] == [(2, member)]
    assert side.watchlist.pending == {}


def test_a_batch_that_nobody_ends_does_not_grow_for_ever(side, monkeypatch):
    monkeypatch.setattr("pulsetrain.collectors.rank.operations.MAX_BATCH", 3)
    side.group.batch = []
    keys = [side.enqueue(synchronous=True) for _ in range(5)]
    assert [number for _, number in side.group.batch] == keys[2:]
    assert list(side.group.in_flight) == keys[2:]


def test_an_enqueue_of_another_thread_that_has_not_returned_is_kept(side):
    call = {"kind": "ALLREDUCE", "fails": True}  # between the two hooks, as far as this thread can see
    other = threading.Thread(target=side.enqueue, kwargs=call)
    other.start()
    other.join()
    mine = side.enqueue()
    assert list(side.group.in_flight) == [0, mine]


def test_an_abandoned_operation_leaves_no_span(side):
    key = side.enqueue("SEND", root=0)
    side.group.abandon(key)
    assert (side.spans(), side.cell.op) == ([], "")


def test_a_call_that_is_not_understood_is_counted_and_not_raised(side):
    side.group.before(SimpleNamespace())
    side.group.after(SimpleNamespace())
    assert side.watched.errors == 2


@given(st.permutations(range(6)))
def test_in_whatever_order_operations_end_the_numbers_below_are_complete(order):
    side = Side()
    keys = [side.enqueue() for _ in order]
    ended = set()
    for position in order:
        side.end(keys[position])
        ended.add(position + 1)
        open_numbers = [n for n in range(1, 7) if n not in ended]
        assert side.cell.completed == (open_numbers[0] - 1 if open_numbers else 6)
    assert sorted(seq for _, seq, _, _ in side.spans()) == [1, 2, 3, 4, 5, 6]


def test_what_goes_to_and_comes_from_each_peer_is_counted_for_the_barrier():
    side = Side()
    for kind, root in (("SEND", 1), ("SEND", 1), ("RECV", 1), ("SEND", 2), ("ALLREDUCE", -1)):
        side.enqueue(kind, root=root)
    pairs = side.watched.reader.position().pairs
    assert [(p.group, p.peer, p.sends, p.count) for p in pairs] == [
        (0, 5, True, 2),
        (0, 5, False, 1),
        (0, 6, True, 1),
    ]


@pytest.mark.parametrize(
    ("members", "size", "named"), [((5,), 4, "world seen by rank 5"), ((5,), 1, "world")]
)
def test_a_group_of_another_world_has_the_rank_in_its_name(members, size, named):
    """Ranks of two trainings in one launch would seem to be members of one group."""
    side = Side()
    side.group = Group(side.watchlist, "world", lambda: members, host_only=True, size=size)
    side.end(side.enqueue())
    names = side.watched.reader.names
    rows = side.watched.reader.drain()[0]
    assert [names[row["group"]] for row in rows] == [named]
    assert (side.cell.name, side.cell.members) == (named, members)


def group_names(side):
    reader = side.watched.reader
    return [reader.drained_names[span["group"]] for span in reader.drain()[0]]


def test_a_group_that_is_gone_gives_its_name_back_once_nothing_of_it_is_in_flight(side):
    ring, key = side.watched.handle.state.ring, side.enqueue()
    label = side.group._label
    assert not side.group.retire()
    assert ring.name_group("too early") != label
    side.end(key)
    assert side.group.retire()
    assert group_names(side) == ["dp:1"]
    assert ring.name_group("the next one") == label
    side.end(side.enqueue())
    assert group_names(side) == [""], "what still comes has no name, and never another one's"


def test_a_group_that_lives_through_a_new_attempt_opens_a_cell_in_its_ring(side):
    side.enqueue()
    side.group.forget()
    fd = create_ring(1024)
    reader = RingReader(fd)
    side.watched.handle.state.ring.move_to(fd)
    os.close(fd)
    assert reader.status().groups == ()
    side.enqueue()
    [cell] = reader.status().groups
    assert (cell.name, cell.members, cell.op) == ("dp:1", (4, 5, 6), "all_reduce")
