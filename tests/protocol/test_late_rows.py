"""Rows that came as columns: objects are made when somebody looks, and equal those that were packed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.protocol import late_rows
from pulsetrain.protocol.late_rows import JoinedRows, LateRows, column, tells
from pulsetrain.protocol.messages import GroupStatus, Heartbeat, Held, RankStatus, decode, encode
from pulsetrain.protocol.packing import Packed, pack, unpack


@dataclass(frozen=True, kw_only=True)
class Item:
    number: int
    text: str = ""


ITEM = Packed(Item, {}, {}, {})
ITEMS = st.lists(st.builds(Item, number=st.integers(0, 5), text=st.sampled_from(["", "a"])), max_size=9)


def status(rank: int) -> RankStatus:
    group = GroupStatus(group=f"dp_{rank}", members=(0, 1), enqueued=rank, completed=0)
    return RankStatus(
        rank=rank, local_rank=rank, pid=9, state="running", last_step=rank, last_phase="forward",
        phase_age_ns=0, progress=rank, progress_age_ns=0, groups=(group,) * rank,
    )  # fmt: skip


def heartbeat(ranks: int) -> Heartbeat:
    held = tuple(Held(rank=rank, step=5, tier="memory") for rank in range(ranks))
    return Heartbeat(
        node="a", seq=1, ts_ns=1, job="j", attempt=0, ranks=tuple(map(status, range(ranks))), held=held
    )


@pytest.fixture
def made(monkeypatch) -> list[type]:
    """The class of every table of which objects were made."""
    classes: list[type] = []
    make = late_rows.make

    def noted(cls, names, rows):
        classes.append(cls)
        return make(cls, names, rows)

    monkeypatch.setattr(late_rows, "make", noted)
    return classes


@given(ITEMS, st.slices(9))
def test_any_part_equals_the_same_part_of_the_objects(items, part):
    rows = unpack(ITEM, pack(ITEM, items))
    assert list(rows[part]) == items[part]
    assert (len(rows), list(rows), rows) == (len(items), items, tuple(items))
    assert list(column(rows, "number")) == [item.number for item in items]


def test_decoding_a_heartbeat_makes_no_rank_and_no_group(made):
    beat = decode(encode(heartbeat(4)))
    assert list(column(beat.ranks, "last_step")) == [0, 1, 2, 3]
    assert made == []


def test_a_look_at_ranks_makes_no_group_and_a_look_at_one_group_makes_those_of_its_rank(made):
    beat = decode(encode(heartbeat(4)))
    ranks = list(beat.ranks)
    assert made == [RankStatus]
    assert [g.group for g in ranks[3].groups] == ["dp_3"] * 3
    assert made == [RankStatus, GroupStatus]


def test_objects_are_made_once():
    beat = decode(encode(heartbeat(4)))
    assert beat.ranks[2] is beat.ranks[2]


def test_a_heartbeat_with_late_rows_is_the_one_that_was_sent_and_can_be_sent_again():
    sent = heartbeat(4)
    received = decode(encode(sent))
    assert isinstance(received.ranks, LateRows)
    assert received == sent
    assert decode(encode(received)) == sent
    assert hash(received.ranks) == hash(sent.ranks)


def test_one_row_that_came_late_can_be_sent_again():
    one = decode(encode(heartbeat(4))).ranks[1:2]
    assert decode(encode(Heartbeat(node="a", seq=1, ts_ns=1, job="j", attempt=0, ranks=one))).ranks == (
        status(1),
    )


@pytest.mark.parametrize("late", [True, False])
def test_whether_any_row_tells_something_is_known_without_objects(made, late):
    beat = decode(encode(heartbeat(4))) if late else heartbeat(4)
    assert not tells(beat.ranks, "instrumentation")
    assert not tells(beat.ranks, "saved")
    assert tells(beat.ranks, "last_phase")
    assert made == []


def test_nothing_tells_nothing():
    assert not tells((), "saved")
    assert not tells(decode(encode(heartbeat(0))).ranks, "saved")


def test_a_wrong_value_is_refused_before_anybody_looks():
    packed = pack(ITEM, [Item(number=1), Item(number=2)])
    packed["columns"]["number"] = [1, "2"]
    with pytest.raises(TypeError):
        unpack(ITEM, packed)


@given(st.lists(ITEMS, max_size=4))
def test_rows_of_several_parts_are_one_after_another_whether_made_or_not(parts):
    joined = JoinedRows(
        [unpack(ITEM, pack(ITEM, part)) if i % 2 else tuple(part) for i, part in enumerate(parts)]
    )
    items = [item for part in parts for item in part]
    assert list(column(joined, "number")) == [item.number for item in items]
    assert (len(joined), list(joined), joined) == (len(items), items, tuple(items))


def test_a_column_of_several_parts_makes_no_object(made):
    parts = [decode(encode(heartbeat(3))).ranks for _ in range(2)]
    assert list(column(JoinedRows(parts), "last_step")) == [0, 1, 2, 0, 1, 2]
    assert RankStatus not in made
