"""A hub whose clock is behind keeps the rows of its nodes. A few nodes that are ahead change nothing."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.store.exactly_once import ExactlyOnceWriter
from pulsetrain.stream.store.node_times import NodeTimes
from pulsetrain.stream.store.quarantine import AHEAD_NS, Piece
from tests.stream.fakes import MemoryStore, StillClock, batch
from tests.stream.rows import DAY, table

WEEK = 7 * AHEAD_NS


def piece(node, ahead_ns):
    return Piece(source=f"{node}/1", first_row=0, rows=table("steps", 2, start=[5, DAY + ahead_ns]))


@pytest.mark.parametrize(
    ("ahead", "behind"),
    [
        ([WEEK], 0),
        ([WEEK, WEEK], 0),
        ([WEEK, WEEK, 0], WEEK),
        ([WEEK, WEEK + 9, WEEK - 9], WEEK),
        ([WEEK, 0, 0], 0),
        ([WEEK, 3 * WEEK, 9 * WEEK], 0),  # they do not agree
        ([AHEAD_NS, AHEAD_NS, AHEAD_NS], 0),
        ([-WEEK, -WEEK, -WEEK], 0),
    ],
)
def test_most_of_at_least_three_nodes_know_the_time_better(ahead, behind):
    pieces = [piece(f"n{i}", each) for i, each in enumerate(ahead)]
    assert NodeTimes(StillClock()).now_ns("steps", pieces) == DAY + behind


def test_a_clock_that_is_behind_is_told_once_and_nodes_that_are_gone_do_not_count():
    clock = StillClock()
    times = NodeTimes(clock)
    with capture_logs() as logs:
        for _ in range(2):
            times.now_ns("steps", [piece(f"n{i}", WEEK) for i in range(3)])
        clock.now_s = 4000.0
        assert times.now_ns("steps", []) == DAY
    assert [(line["event"], line["days"]) for line in logs] == [("hub_clock_behind", 7.0)]


def test_rows_of_nodes_that_agree_are_stored_and_not_quarantined():
    store = MemoryStore()
    once = ExactlyOnceWriter(store, StillClock(), IngestMetrics())
    sent = [batch(10 * i, 2, f"n{i}/1", start=DAY + WEEK) for i in range(3)]
    once.insert(once.prepare("steps", sent, "a"))
    assert len(store.rows) == 6
    assert not store.quarantine
