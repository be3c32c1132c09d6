"""Batches of inserts: whatever comes twice or in another order, each row is inserted once."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition

from pulsetrain.core.errors import Unavailable
from pulsetrain.records.batch import encode
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.kafka.insert_batch import BatchBuilder
from pulsetrain.stream.kafka.partition_buffer import OffsetRange
from pulsetrain.stream.store import exactly_once
from pulsetrain.stream.store.exactly_once import ExactlyOnceWriter
from tests.stream.rows import DAY, table


class Clock:
    def monotonic_s(self):
        return 0.0

    def wall_ns(self):
        return DAY


class Store:
    """Keeps what is inserted; fails the first `failures` times."""

    def __init__(self, failures=0):
        self.inserted, self.tokens, self.failures = {}, [], failures

    def insert_raw(self, name, columns, stream, *, token, **how):
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        rows = pa.ipc.open_stream(stream).read_all()
        assert list(columns) == rows.column_names
        self.tokens.append(token)
        self.inserted.setdefault(name, []).extend(rows.to_pylist())

    def query(self, sql, params=None):
        rows = [{k: r[k] for k in ("source", "record", "first_row", "next_row")} for r in self.saved]
        return pa.Table.from_pylist(rows) if rows else pa.table({"source": []})

    @property
    def saved(self):
        return self.inserted.get("ingest_offsets", [])

    def steps(self):
        return Counter(row["step"] for row in self.inserted.get("steps", []))


def batch(source, first, rows):
    ids = [1000 * source + first + i for i in range(rows)]
    data = encode("steps", table("steps", rows, step=ids), source=f"n{source}/1", first_row=first)
    return data, ids


def messages(datas, first=0):
    return [
        SimpleNamespace(offset=first + i, value=data, headers=[], topic="steps", partition=0, key=None)
        for i, data in enumerate(datas)
    ]


class Member:
    """One member of the group: what it builds, it writes to `store`."""

    def __init__(self, store, unreadable=None):
        self.writer = ExactlyOnceWriter(store, Clock(), IngestMetrics())
        self.writer.load()
        dead_letter = pytest.fail
        if unreadable is not None:
            dead_letter = lambda message, why: unreadable.append((message.offset, why))  # noqa: E731
        self.builder = BatchBuilder(self.writer, lambda topic: topic, dead_letter)

    def build(self, datas, first=0):
        return self.builder.build([OffsetRange(TopicPartition("steps", 0), messages(datas, first))])

    def write(self, datas, first=0, retry=lambda act: act()):
        self.build(datas, first).write(self.writer, retry)


@given(data=st.data())
def test_each_row_is_inserted_once_however_messages_come(data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    sent = [batch(s, first, n) for s in (1, 2) for first, n in zip(firsts, sizes, strict=True)]
    arrivals = data.draw(st.lists(st.sampled_from(sent), min_size=1, max_size=20)) + sent
    cut = data.draw(st.integers(1, len(arrivals)))
    store = Store()
    member = Member(store)
    for first in range(0, len(arrivals), cut):
        member.write([d for d, _ in arrivals[first : first + cut]], first)
    assert store.steps() == Counter(i for _, ids in sent for i in ids)


def test_rows_that_overlap_what_is_stored_are_cut_to_what_is_new():
    store = Store()
    member = Member(store)
    member.write([batch(1, 0, 5)[0]])
    member.write([batch(1, 3, 5)[0]], 1)
    assert store.steps() == Counter(range(1000, 1008))


def test_a_new_member_knows_from_the_store_what_is_stored():
    store, (data, ids) = Store(), batch(1, 0, 5)
    Member(store).write([data])
    Member(store).write([data])
    assert store.steps() == Counter(ids)


def test_the_same_range_has_the_same_token_and_rows_when_it_is_repeated():
    datas = [batch(1, 0, 3)[0], batch(2, 0, 4)[0]]
    once, again = Member(Store()).build(datas, 7), Member(Store()).build(datas, 7)
    assert [i.group for i in once.inserts] == [i.group for i in again.inserts]
    assert once.inserts[0].group.token.startswith("steps:0:7-9:")


def test_a_store_that_is_away_gets_everything_once_when_it_is_back():
    def retry(act):
        while True:
            try:
                return act()
            except Unavailable:
                continue

    store, (data, ids) = Store(failures=5), batch(1, 0, 5)
    Member(store).write([data], retry=retry)
    assert store.steps() == Counter(ids)
    assert store.tokens[-1] is None  # the row ranges come last


def test_what_cannot_be_read_is_a_dead_letter_and_the_rest_goes_on():
    unreadable, store = [], Store()
    other = encode("logs", table("logs", 2), source="n1/1", first_row=0)
    Member(store, unreadable).write([b"garbage", other, batch(1, 0, 2)[0]])
    assert [offset for offset, _ in unreadable] == [0, 1]
    assert "not an Arrow IPC stream" in unreadable[0][1]
    assert unreadable[1][1] == "a batch of logs"
    assert store.steps().total() == 2


def test_impossible_times_go_aside_and_count_as_stored():
    odd = encode("steps", table("steps", 3, start=[0, 1, DAY]), source="n1/1", first_row=0)
    store = Store()
    Member(store).write([odd, odd])
    assert store.steps().total() == 1
    assert [row["rows"] for row in store.inserted["quarantine"]] == [2]


def test_a_range_that_no_insert_can_hold_is_halved_and_costs_no_other_message(monkeypatch):
    encode_group = exactly_once.encode_group

    def overflowing(record, token, ranges, *rows):
        if sum(each.end - each.first for each in ranges) > 8 or any(r.source == "n9/1" for r in ranges):
            raise pa.ArrowInvalid("offset overflow")
        return encode_group(record, token, ranges, *rows)

    monkeypatch.setattr(exactly_once, "encode_group", overflowing)
    unreadable, store = [], Store()
    member = Member(store, unreadable)
    sent = [batch(1, 0, 5), batch(9, 0, 2), batch(1, 5, 5), batch(2, 0, 5)]
    (refused,) = member.build([data for data, _ in sent]).write(member.writer, lambda act: act())
    member.builder.store_parts(refused, lambda act: act())
    assert store.steps() == Counter(i for _, ids in (sent[0], *sent[2:]) for i in ids)
    assert [(offset, "offset overflow" in why) for offset, why in unreadable] == [(1, True)]
