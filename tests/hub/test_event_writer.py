"""Events and findings of the hub on their way into the store."""

import json

import pytest
from structlog.testing import capture_logs

from pulsetrain.core.errors import SchemaMismatch, Unavailable
from pulsetrain.hub import event_writer
from pulsetrain.hub.event_writer import AGAIN_S, EventWriter
from tests.hub.fakes import Clock, finding


class Store:
    """Keeps rows by record; raises `error` while it is set."""

    def __init__(self):
        self.inserts, self.lost, self.error = [], [], None

    def insert(self, record, table, *, token):
        if self.error:
            self.lost.append(token)
            raise self.error
        self.inserts.append((record, table.to_pylist(), token))


@pytest.fixture
def writer():
    store, clock = Store(), Clock()
    made = EventWriter(store, clock, gather=lambda seconds: None)
    made.store, made.clock = store, clock
    return made


def test_rows_that_wait_together_are_one_insert_for_each_record(writer):
    writer.event("evict", job="j", attempt=2, detail={"reason": "fan"}, node="b", actor="ada")
    writer.event("waiting", job="j", attempt=2, detail={})
    writer.finding(finding())
    assert writer.turn() == 0.0
    inserts = writer.store.inserts
    assert [(record, len(rows)) for record, rows, _ in inserts] == [("events", 2), ("findings", 1)]
    row = inserts[0][1][0]
    assert (row["kind"], row["node"], row["rank"], row["actor"]) == ("evict", "b", -1, "ada")
    assert json.loads(row["detail"]) == {"reason": "fan"}
    assert inserts[0][2] != inserts[1][2]
    assert writer.written_rows == 3


def kinds(writer):
    return [[row["kind"] for row in rows] for _, rows, _ in writer.store.inserts]


def test_rows_come_again_under_their_token_when_the_store_is_back(writer):
    writer.store.error = Unavailable("away")
    writer.event("first", job="j", attempt=0, detail={})
    with capture_logs() as lines:
        writer.turn()
    assert [line["event"] for line in lines] == ["event_write_failed"]
    writer.store.error = None
    writer.event("second", job="j", attempt=0, detail={})
    writer.turn()
    assert kinds(writer) == []  # a store that was away is not asked at once again
    writer.clock.now_s += AGAIN_S
    writer.event("third", job="j", attempt=0, detail={})
    writer.turn()
    assert kinds(writer) == [["first"], ["second", "third"]]
    assert writer.store.inserts[0][2] == writer.store.lost[0]
    assert (writer.failed_rows, writer.written_rows) == (0, 3)


def test_a_store_that_stays_away_is_asked_less_and_less_often(writer):
    writer.store.error = Unavailable("away")
    writer.event("first", job="j", attempt=0, detail={})
    for _ in range(200):
        writer.event("more", job="j", attempt=0, detail={})
        writer.turn()
        writer.clock.now_s += AGAIN_S
    assert 8 < len(writer.store.lost) < 20
    assert len(set(writer.store.lost)) == 1


def test_only_so_many_rows_wait_and_the_oldest_are_counted_as_lost(writer, monkeypatch):
    monkeypatch.setattr(event_writer, "KEPT_ROWS", 3)
    writer.store.error = Unavailable("away")
    for kind in "abcde":
        writer.event(kind, job="j", attempt=0, detail={})
        writer.turn()
    writer.store.error = None
    writer.clock.now_s += AGAIN_S
    writer.event("f", job="j", attempt=0, detail={})
    writer.turn()
    assert kinds(writer) == [["d", "e", "f"]]
    assert (writer.failed_rows, writer.written_rows) == (3, 3)


def test_many_rows_at_once_are_stored_where_the_store_answers(writer, monkeypatch):
    """One event for each rank, as where a large job aborts."""
    monkeypatch.setattr(event_writer, "KEPT_ROWS", 3)
    for kind in "abcde":
        writer.event(kind, job="j", attempt=0, detail={})
    writer.turn()
    assert kinds(writer) == [list("abcde")]
    assert writer.failed_rows == 0


def test_rows_that_the_store_can_never_take_hold_up_nothing(writer):
    writer.store.error = SchemaMismatch("no such column")
    writer.event("first", job="j", attempt=0, detail={})
    writer.turn()
    writer.store.error = None
    writer.event("second", job="j", attempt=0, detail={})
    writer.turn()
    assert (kinds(writer), writer.failed_rows) == ([["second"]], 1)


def test_what_the_store_does_not_take_at_the_end_is_counted(writer):
    writer.store.error = Unavailable("away")
    writer.start()
    writer.event("last", job="j", attempt=0, detail={})
    writer.close()
    assert (writer.failed_rows, writer.written_rows) == (1, 0)


def test_an_error_that_nobody_expected_costs_the_rows_of_its_record_only(writer):
    def insert(record, table, *, token):
        if record == "events":
            raise RuntimeError("engine")
        writer.kept = record

    writer.store.insert = insert
    writer.event("evict", job="j", attempt=0, detail={})
    writer.finding(finding())
    with pytest.raises(RuntimeError, match="engine"):
        writer.turn()
    assert (writer.kept, writer.failed_rows, writer.written_rows) == ("findings", 1, 1)


def test_what_still_waits_is_stored_when_the_writer_closes(writer):
    writer.start()
    for number in range(20):
        writer.event(str(number), job="j", attempt=0, detail={})
    writer.close()
    assert sum(len(rows) for _, rows, _ in writer.store.inserts) == 20
    writer.event("late", job="j", attempt=0, detail={})
    writer.close()
    assert writer.written_rows == 21


def test_a_detail_that_json_does_not_know_is_written_as_text(writer):
    writer.event("would", job="j", attempt=0, detail={"when": {1}})
    writer.turn()
    assert json.loads(writer.store.inserts[0][1][0]["detail"]) == {"when": "{1}"}


class Refusing:
    """An audit log that raises."""

    def append(self, events):
        if events:
            raise ValueError("no record")


def test_events_are_stored_also_where_the_audit_log_raises():
    store = Store()
    writer = EventWriter(store, Clock(), audit=Refusing(), gather=lambda seconds: None)
    writer.event("evict", job="j", attempt=0, detail={})
    with pytest.raises(ValueError, match="no record"):
        writer.turn()
    assert sum(len(rows) for _, rows, _ in store.inserts) == 1


def test_events_that_wait_for_the_audit_log_are_tried_again_without_new_ones(monkeypatch):
    monkeypatch.setattr(event_writer, "IDLE_S", 0.0)
    tried = []

    class Audit:
        def append(self, events):
            tried.append(list(events))

    writer = EventWriter(Store(), Clock(), audit=Audit(), gather=lambda seconds: None)
    writer.turn()
    assert tried == [[]]
