"""Events and findings of the hub on their way into the store."""

import json

import pytest
from structlog.testing import capture_logs

from pulsetrain.core.errors import Unavailable
from pulsetrain.hub.event_writer import EventWriter
from tests.hub.fakes import Clock, finding


class Store:
    """Keeps rows by record; raises `error` while it is set."""

    def __init__(self):
        self.inserts, self.error = [], None

    def insert(self, record, table, *, token):
        if self.error:
            raise self.error
        self.inserts.append((record, table.to_pylist(), token))


@pytest.fixture
def writer():
    return EventWriter(Store(), Clock(), gather=lambda seconds: None)


def test_rows_that_wait_together_are_one_insert_for_each_record(writer):
    writer.event("evict", job="j", attempt=2, detail={"reason": "fan"}, node="b", actor="ada")
    writer.event("waiting", job="j", attempt=2, detail={})
    writer.finding(finding())
    assert writer.turn() == 0.0
    inserts = writer._store.inserts
    assert [(record, len(rows)) for record, rows, _ in inserts] == [("events", 2), ("findings", 1)]
    row = inserts[0][1][0]
    assert (row["kind"], row["node"], row["rank"], row["actor"]) == ("evict", "b", -1, "ada")
    assert json.loads(row["detail"]) == {"reason": "fan"}
    assert inserts[0][2] != inserts[1][2]
    assert writer.written_rows == 3


def test_rows_that_the_store_refuses_are_counted_and_later_ones_are_stored(writer):
    writer._store.error = Unavailable("away")
    writer.event("first", job="j", attempt=0, detail={})
    with capture_logs() as lines:
        writer.turn()
    writer._store.error = None
    writer.event("second", job="j", attempt=0, detail={})
    writer.turn()
    assert (writer.failed_rows, writer.written_rows) == (1, 1)
    assert [line["event"] for line in lines] == ["event_write_failed"]


def test_an_error_that_nobody_expected_costs_the_rows_of_its_record_only(writer):
    def insert(record, table, *, token):
        if record == "events":
            raise RuntimeError("engine")
        writer.kept = record

    writer._store.insert = insert
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
    assert sum(len(rows) for _, rows, _ in writer._store.inserts) == 20
    writer.event("late", job="j", attempt=0, detail={})
    writer.close()
    assert writer.written_rows == 21


def test_a_detail_that_json_does_not_know_is_written_as_text(writer):
    writer.event("would", job="j", attempt=0, detail={"when": {1}})
    writer.turn()
    assert json.loads(writer._store.inserts[0][1][0]["detail"]) == {"when": "{1}"}
