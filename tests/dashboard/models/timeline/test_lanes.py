"""Spans on lanes."""

from __future__ import annotations

from pulsetrain.dashboard.models.timeline.lanes import lanes_of
from tests.dashboard.models.timeline.rows import MS, collective, row, spans


def lanes(*rows):
    found = lanes_of(spans(*rows))
    return [(lane.rank, lane.label, lane.last - lane.first) for lane in found.lanes]


def levels(*rows):
    return lanes_of(spans(*rows)).level.tolist()


def test_lanes_are_in_order_of_rank_with_communication_apart():
    stream = row(rank=2, lane="stream 7")
    assert lanes(row(rank=10), collective(rank=2), row(rank=2), row(5, rank=2), stream) == [
        (2, "host", 2), (2, "communication", 1), (2, "stream 7", 1), (10, "host", 1),
    ]  # fmt: skip


def test_communication_of_a_stream_is_named_after_it():
    assert lanes(collective(lane="stream 7")) == [(0, "stream 7 communication", 1)]


def test_a_span_inside_another_is_one_level_up_and_one_behind_it_is_not():
    rows = (row(0, 100 * MS), row(10 * MS, 20 * MS), row(12 * MS, 5 * MS), row(100 * MS, 10 * MS))
    assert levels(*rows) == [0, 1, 2, 0]


def test_operations_that_overlap_lie_beside_each_other():
    rows = (collective(0, 50 * MS), collective(20 * MS, 60 * MS), collective(55 * MS, 10 * MS))
    assert levels(*rows) == [0, 1, 0]


def test_times_that_were_rounded_do_not_overlap():
    assert levels(row(0, 100 * MS), row(100 * MS - 1, 10)) == [0, 0]


def test_what_lies_deeper_than_three_stays_on_the_last_level():
    assert levels(*(row(k * MS, (100 - k) * MS) for k in range(5))) == [0, 1, 2, 2, 2]


def test_a_rank_that_moved_has_the_lane_of_its_newest_node():
    (lane,) = lanes_of(spans(row(0, node="old", attempt=0), row(50, node="new", attempt=1))).lanes
    assert lane.node == "new"


def test_no_span_is_no_lane():
    assert lanes_of(spans()).lanes == ()
    assert list(lanes_of(spans(row())).of_rank(7)) == []
