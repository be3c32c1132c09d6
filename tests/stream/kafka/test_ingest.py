"""What the group is given is in the store once, whoever is killed, gives up or loses partitions on the way.

Here the group and the store are in memory. `test_ingest_broker.py` uses a real broker and real processes.
"""

from __future__ import annotations

import threading
from collections import Counter
from unittest.mock import ANY

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka import TopicPartition

from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.records.batch import encode
from pulsetrain.stream.kafka.ingest import Backlog
from pulsetrain.stream.kafka.ingest_config import IngestConfig
from tests.stream.fakes import MemoryStore
from tests.stream.kafka.fakes import Topic, make_ingest
from tests.stream.rows import table


def data(first, rows, source=1, **more):
    """One message; column `step` numbers the rows of all sources."""
    ids = [1000 * source + first + i for i in range(rows)]
    return encode("steps", table("steps", rows, step=ids, **more), source=f"n{source}/1", first_row=first)


def look(running, seconds=100.0):
    """Fetch, and look again after `seconds`: long enough for anything that waits."""
    running.ingest.poll()
    running.clock.now_s += seconds
    running.ingest.poll()


def drain(running):
    """Look until nothing waits and nothing is on its way."""
    for _ in range(4):
        look(running)
        wait(running)
    look(running)


def wait(running):
    """Until the batch on its way has ended, whatever became of it."""
    in_flight = running.ingest._in_flight
    if in_flight is not None:
        in_flight.stored.exception(timeout=10)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def topic():
    return Topic()


def test_messages_are_stored_and_committed_as_done(monkeypatch, topic, store):
    for i in range(3):
        topic.send(data(5 * i, 5), rows=5)
    running = make_ingest(monkeypatch, topic, store)
    drain(running)
    assert store.rows == list(range(1000, 1015))
    assert store.inserts == 1
    assert topic.committed[TopicPartition("steps", 0)] == (3, "")


def test_an_insert_is_announced_before_it_happens(monkeypatch, topic, store):
    topic.send(data(0, 5), rows=5)
    topic.send(data(5, 5), rows=5)
    seen = []
    keep = store.insert_raw

    def insert_raw(name, columns, stream, *, token, **how):
        seen.append((name, dict(topic.committed)[TopicPartition("steps", 0)]))
        keep(name, columns, stream, token=token)

    store.insert_raw = insert_raw
    drain(make_ingest(monkeypatch, topic, store))
    assert seen == [("steps", (0, "to 2")), ("ingest_offsets", (0, "to 2"))]


def test_a_successor_repeats_the_announced_range_and_no_other(monkeypatch, topic, store):
    """The first one dies after its insert and before anything was saved or committed."""
    topic.send(data(0, 5), rows=5)
    topic.send(data(5, 5), rows=5)
    store.fails = "ranges"
    killed = make_ingest(monkeypatch, topic, store)
    look(killed)
    killed.ingest.stop()
    wait(killed)
    store.fails = ""
    topic.send(data(10, 5), rows=5)
    drain(make_ingest(monkeypatch, topic, store))
    assert store.rows == list(range(1000, 1015))
    assert any(str(token).startswith("steps:0:0-2:") for token in store.tokens)


def test_a_topic_that_was_made_anew_has_other_rows_at_the_same_offsets(monkeypatch, topic, store):
    topic.send(data(0, 5), rows=5)
    drain(make_ingest(monkeypatch, topic, store))
    anew = Topic()
    anew.send(data(5, 5), rows=5)
    drain(make_ingest(monkeypatch, anew, store))
    assert store.rows == list(range(1000, 1010))


def test_a_successor_leaves_out_what_was_stored_and_comes_again_as_another_message(monkeypatch, topic, store):
    topic.send(data(0, 5), rows=5)
    drain(make_ingest(monkeypatch, topic, store))
    topic.send(data(0, 8), rows=8)
    drain(make_ingest(monkeypatch, topic, store))
    assert store.rows == list(range(1000, 1008))


def test_a_member_that_the_group_gave_up_while_it_ends_leaves_everything_to_the_others(
    monkeypatch, topic, store
):
    config = IngestConfig(rows=5_000, linger_s=60, retry_s=0.001)
    for i in range(3):
        topic.send(data(5 * i, 5), rows=5_000)
    running = make_ingest(monkeypatch, topic, store, config=config)
    running.consumer.fetch = 10
    store.fails = "before"
    running.ingest.poll()
    store.fails = ""
    wait(running)
    running.consumer.given_up = True
    running.ingest.stop()
    running.ingest.run()
    assert store.rows == list(range(1000, 1005))
    assert topic.committed[TopicPartition("steps", 0)] == (0, "to 1")


def test_few_rows_wait_for_more(monkeypatch, topic, store):
    running = make_ingest(monkeypatch, topic, store, config=IngestConfig(linger_s=0.5))
    topic.send(data(0, 5), rows=5)
    look(running, 0.4)
    assert running.ingest._in_flight is None
    look(running, 0.2)
    wait(running)
    assert store.inserts == 1


def test_what_cannot_be_read_is_a_dead_letter_and_is_done_with(monkeypatch, topic, store):
    topic.send(b"garbage")
    topic.send(data(0, 5), rows=5)
    running = make_ingest(monkeypatch, topic, store)
    drain(running)
    assert [offset for offset, _ in running.dead_letters.letters] == [0]
    assert store.rows == list(range(1000, 1005))
    assert topic.committed[TopicPartition("steps", 0)] == (2, "")


def test_partitions_that_go_are_left_for_their_new_owner(monkeypatch, store):
    topic = Topic(partitions=2)
    for source in (0, 1):
        for first_row in (0, 5):
            topic.send(data(first_row, 5, source), partition=source, rows=5)
    first = make_ingest(monkeypatch, topic, store, config=IngestConfig(linger_s=60))
    first.ingest.poll()  # fetched, not due
    first.consumer.rebalance([TopicPartition("steps", 0)])
    second = make_ingest(monkeypatch, topic, store)
    second.consumer.rebalance([TopicPartition("steps", 1)])
    drain(second)
    assert topic.committed[TopicPartition("steps", 0)] == (0, "")
    drain(first)
    assert sorted(store.rows) == [*range(10), *range(1000, 1010)]


def test_a_member_that_the_group_gave_up_stores_nothing_of_what_it_held(monkeypatch, topic, store):
    topic.send(data(0, 5), rows=5)
    running = make_ingest(monkeypatch, topic, store)
    running.consumer.given_up = True
    look(running)
    assert running.ingest._in_flight is None
    assert store.inserts == 0
    drain(running)
    assert store.rows == list(range(1000, 1005))


def test_a_store_that_is_away_is_waited_for(monkeypatch, topic, store):
    topic.send(data(0, 5), rows=5)
    store.fails = "before"
    running = make_ingest(monkeypatch, topic, store)
    look(running)
    assert not running.ingest._in_flight.stored.done()
    store.fails = ""
    drain(running)
    assert store.rows == list(range(1000, 1005))


def test_a_store_that_cannot_say_what_is_stored_is_asked_again(monkeypatch, topic, store):
    topic.send(data(0, 5), rows=5)
    ask, refusals = store.query, [PulsetrainError("memory limit exceeded")] * 3

    def query(sql, params=None):
        if refusals:
            raise refusals.pop()
        return ask(sql, params)

    store.query = query
    drain(make_ingest(monkeypatch, topic, store))
    assert store.rows == list(range(1000, 1005))


def test_what_is_gathered_is_stored_before_it_ends(monkeypatch, topic, store):
    for i in range(20):
        topic.send(data(5 * i, 5), rows=5)
    running = make_ingest(monkeypatch, topic, store, config=IngestConfig(linger_s=60))
    running.ingest.poll()
    running.ingest.stop()
    running.ingest.run()
    assert len(store.rows) == 100
    assert topic.committed[TopicPartition("steps", 0)] == (20, "")
    assert running.consumer.closed
    assert running.dead_letters.closed


def test_a_store_that_is_away_does_not_keep_it_from_ending(monkeypatch, topic, store):
    topic.send(data(0, 5), rows=5)
    store.fails = "before"
    running = make_ingest(monkeypatch, topic, store)
    look(running)
    thread = threading.Timer(0.01, running.ingest.stop)
    thread.start()
    with pytest.raises(Unavailable, match="away"):
        running.ingest.run()
    assert topic.committed[TopicPartition("steps", 0)] == (0, "to 1")


def test_while_much_waits_the_next_batch_is_prepared_beside_the_insert(monkeypatch, topic, store):
    config = IngestConfig(rows=5_000, linger_s=0.001, retry_s=0.001)
    store.fails = "before"
    topic.send(data(0, 5), rows=5_000)
    topic.send(data(5, 5), rows=5_000)
    running = make_ingest(monkeypatch, topic, store, config=config)
    look(running)
    assert [(r.start, r.end) for r in running.ingest._prepared.ranges] == [(1, 2)]
    store.fails = ""
    drain(running)
    assert store.rows == list(range(1000, 1010))


ACTIONS = st.sampled_from(
    [
        *("send", "send", "send again", "look", "look", "wait"),
        *("fail before", "fail after", "fail ranges", "heal", "kill", "rebalance", "give up"),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(st.tuples(ACTIONS, st.integers(1, 6), st.integers(0, 1)), max_size=30))
def test_each_row_is_stored_once_whatever_befalls_the_member(monkeypatch, events):
    store, topic, sent, next_row = MemoryStore(), Topic(partitions=2), [], Counter()
    running = make_ingest(monkeypatch, topic, store)
    for action, rows, source in events:
        match action.split():
            case ["send"]:
                sent.append((source, next_row[source], rows))
                topic.send(data(next_row[source], rows, source), partition=source, rows=rows)
                next_row[source] += rows
            case ["send", "again"] if sent:
                where, first, size = sent[rows % len(sent)]
                topic.send(data(first, size, where), partition=where, rows=size)
            case ["look"]:
                look(running)
            case ["wait"] if not store.fails:
                wait(running)
            case ["fail", how]:
                store.fails = how
            case ["heal"]:
                store.fails = ""
            case ["kill"]:
                kill(running, store)
                running = make_ingest(monkeypatch, topic, store)
            case ["rebalance"] if not store.fails:
                wait(running)
                running.consumer.rebalance(list(topic.messages))
            case ["give", "up"]:
                running.consumer.given_up = True
    kill(running, store)
    running = make_ingest(monkeypatch, topic, store)
    drain(running)
    wanted = {1000 * source + first + i for source, first, rows in sent for i in range(rows)}
    assert Counter(store.rows) == Counter(wanted)


def kill(running, store):
    """The member commits nothing more; its insert under way happens or not."""
    running.ingest.stop()
    wait(running)
    store.fails = ""


def test_a_message_that_the_store_refuses_is_a_dead_letter_and_all_others_are_stored(monkeypatch, store):
    topic = Topic(partitions=2)
    for first in range(0, 35, 5):
        topic.send(data(first, 5, **({"job": "poison"} if first == 15 else {})), rows=5)
    topic.send(b"garbage")
    topic.send(data(0, 5, source=2), partition=1, rows=5)
    running = make_ingest(monkeypatch, topic, store)
    drain(running)
    assert sorted(store.rows) == [*range(1000, 1015), *range(1020, 1035), *range(2000, 2005)]
    assert running.dead_letters.letters == [(7, ANY), (3, "cannot read")]
    assert topic.committed == {TopicPartition("steps", 0): (8, ""), TopicPartition("steps", 1): (1, "")}


def test_what_was_prepared_beside_a_refused_insert_is_stored_once(monkeypatch, topic, store):
    config = IngestConfig(rows=5_000, linger_s=0.001, retry_s=0.001)
    running = make_ingest(monkeypatch, topic, store, config=config)
    store.fails = "before"
    topic.send(data(0, 5, job="poison"), rows=5_000)
    topic.send(data(5, 5), rows=5_000)
    look(running)
    assert running.ingest._prepared is not None
    store.fails = ""
    drain(running)
    topic.send(data(0, 10), rows=10)  # the source sends all again, and this time it can be read
    drain(running)
    assert sorted(store.rows) == list(range(1000, 1010))


def test_a_successor_of_a_member_that_died_amid_the_parts_stores_each_row_once(monkeypatch, topic, store):
    for first in range(0, 20, 5):
        topic.send(data(first, 5, **({"job": "poison"} if first == 15 else {})), rows=5)
    killed = make_ingest(monkeypatch, topic, store)
    keep = store.insert_raw

    def insert_raw(name, columns, stream, *, token, **how):
        if str(token).startswith("steps:0:2-3:"):
            killed.ingest.stop()
            raise Unavailable("away")
        keep(name, columns, stream, token=token)

    store.insert_raw = insert_raw
    look(killed)
    wait(killed)
    with pytest.raises(Unavailable):
        killed.ingest.poll()
    assert store.rows == list(range(1000, 1010))
    store.insert_raw = keep
    drain(make_ingest(monkeypatch, topic, store))
    assert store.rows == list(range(1000, 1015))


def test_the_backlog_is_what_waits_in_kafka_and_here(monkeypatch, topic, store):
    running = make_ingest(monkeypatch, topic, store)
    sent_ms = running.clock.wall_ns() // 10**6 - 30_000
    for first in range(0, 40, 4):
        topic.send(data(first, 4), timestamp=sent_ms + first)
    running.consumer.fetch = 6
    assert running.ingest.backlog() == Backlog(stored=0, waiting=10, age_s=0.0)
    running.ingest.poll()
    backlog = running.ingest.backlog()
    assert (backlog.stored, backlog.waiting) == (0, 10)
    assert backlog.age_s == pytest.approx(30.0, abs=0.1)
    drain(running)
    assert running.ingest.backlog() == Backlog(stored=10, waiting=0, age_s=0.0)
