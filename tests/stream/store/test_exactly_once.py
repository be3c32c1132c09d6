"""A writer stores each row once, whatever overlaps, fails, is repeated or is killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import PulsetrainError, SchemaMismatch, Unavailable
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.store import exactly_once
from pulsetrain.stream.store.exactly_once import ExactlyOnceWriter
from pulsetrain.stream.store.journal import Journal
from pulsetrain.stream.store.stored_rows import KEPT_S
from tests.stream.fakes import MemoryStore, StillClock, batch
from tests.stream.rows import DAY


def writer(store, folder=None, metrics=None):
    made = ExactlyOnceWriter(
        store, StillClock(), metrics or IngestMetrics(), Journal(folder) if folder else None
    )
    made.recover()
    return made


def write(to, *batches, token):
    prepared = to.prepare("steps", batches, token)
    to.insert(prepared)
    return prepared.new_rows


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"pulsetrain_ingest_{name}", labels)


@pytest.fixture
def store():
    return MemoryStore()


def test_rows_that_come_again_are_left_out_within_one_insert_and_between_two(store):
    once = writer(store)
    assert write(once, batch(0, 5), batch(3, 5), token="a") == (5, 3)
    assert write(once, batch(0, 10), token="b") == (2,)
    assert sorted(store.rows) == list(range(10))


def test_rows_count_as_stored_as_soon_as_their_insert_is_prepared(store):
    once = writer(store)
    first, second = (once.prepare("steps", [batch(0, 5)], token) for token in "ab")
    once.insert(first)
    once.insert(second)
    assert (first.new_rows, second.new_rows) == ((5,), (0,))
    assert store.inserts == 1


def test_an_insert_of_unknown_outcome_may_be_repeated(store):
    once = writer(store)
    prepared = once.prepare("steps", [batch(0, 5)], "a")
    store.fails = "after"
    for _ in range(3):
        with pytest.raises(Unavailable):
            once.insert(prepared)
    store.fails = ""
    once.insert(prepared)
    assert store.rows == list(range(5))


def test_a_discarded_insert_leaves_its_rows_new(store, tmp_path):
    once = writer(store, tmp_path)
    refused = once.prepare("steps", [batch(0, 5, job="poison")], "a")
    with pytest.raises(SchemaMismatch):
        once.insert(refused)
    once.discard(refused)
    assert list(tmp_path.iterdir()) == []
    assert write(once, batch(0, 5), token="b") == (5,)


def test_what_cannot_be_prepared_leaves_its_rows_new(store):
    once = writer(store)
    with pytest.raises(KeyError):
        once.prepare("no such record", [batch(0, 5)], "a")
    assert write(once, batch(0, 5), token="b") == (5,)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(pa.ArrowInvalid("offset overflow"), SchemaMismatch), (pa.ArrowMemoryError("no memory"), MemoryError)],
)
def test_rows_that_no_insert_can_hold_are_refused_and_lack_of_memory_is_not(
    store, monkeypatch, error, raised
):
    def throw(*parts):
        raise error

    once = writer(store)
    with monkeypatch.context() as patch:
        patch.setattr(exactly_once, "encode_group", throw)
        with pytest.raises(raised):
            once.prepare("steps", [batch(0, 5)], "a")
    assert write(once, batch(0, 5), token="b") == (5,)


def test_a_successor_knows_what_was_saved_and_only_that(store):
    once = writer(store)
    write(once, batch(0, 5), token="a")
    once.save_ranges()
    write(once, batch(5, 5), token="b")
    assert write(writer(store), batch(0, 10), token="b") == (5,)  # as after a crash: the same rows and token
    assert store.rows == list(range(10))


def test_the_journal_keeps_a_group_until_its_ranges_are_saved(store, tmp_path):
    once = writer(store, tmp_path)
    write(once, batch(0, 5), token="a")
    store.fails = "ranges"
    with pytest.raises(Unavailable):
        once.save_ranges()
    assert len(list(tmp_path.iterdir())) == 1
    store.fails = ""
    once.save_ranges()
    assert list(tmp_path.iterdir()) == []


def test_a_group_whose_ranges_are_saved_is_not_inserted_again(store, tmp_path):
    """The store remembers only so many tokens."""
    once = writer(store, tmp_path)
    prepared = once.prepare("steps", [batch(0, 5)], "a")
    once.insert(prepared)
    once.save_ranges()
    Journal(tmp_path).write(prepared.group)
    store.tokens.clear()
    writer(store, tmp_path)
    assert store.rows == list(range(5))
    assert list(tmp_path.iterdir()) == []


def test_a_group_older_than_the_store_remembers_tokens_is_not_inserted_again(store, tmp_path):
    write(writer(store, tmp_path), batch(0, 5), token="old")
    (kept,) = tmp_path.iterdir()
    os.utime(kept, ns=(0, DAY - 150 * 10**9))
    store.tokens.clear()
    ExactlyOnceWriter(store, StillClock(), IngestMetrics(), Journal(tmp_path), remembered_s=100).recover()
    assert store.rows == list(range(5))
    assert list(tmp_path.iterdir()) == []


def test_only_what_another_hub_has_not_stored_of_a_group_is_inserted(store, tmp_path):
    killed = writer(store, tmp_path)
    store.fails = "before"
    with pytest.raises(Unavailable):
        write(killed, batch(0, 5, "a"), batch(0, 10, "b"), token="old")
    store.fails = ""
    other = writer(store)
    write(other, batch(0, 5, "a"), batch(3, 4, "b"), token="new")
    other.save_ranges()
    writer(store, tmp_path)
    assert sorted(store.rows) == sorted([*range(5), *range(10)])
    assert list(tmp_path.iterdir()) == []


def test_a_group_with_quarantined_rows_is_stored_once_too(store, tmp_path):
    killed = writer(store, tmp_path)
    store.fails = "before"
    prepared = killed.prepare(
        "steps", [batch(0, 5, "a", start=[DAY, 0, DAY, DAY, DAY]), batch(0, 3, "b")], "old"
    )
    with pytest.raises(Unavailable):
        killed.insert(prepared)
    Journal(tmp_path).write(prepared.group)
    store.fails = ""
    other = writer(store)
    write(other, batch(0, 3, "a", start=[DAY, 0, DAY]), token="new")
    other.save_ranges()
    writer(store, tmp_path)
    assert sorted(store.rows) == sorted([0, 2, 3, 4, *range(3)])
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_a_group_whose_insert_has_happened_is_not_stored_again(store, tmp_path):
    killed = writer(store, tmp_path)
    write(killed, batch(0, 5, "a"), batch(0, 10, "b"), token="old")
    other = writer(store)
    write(other, batch(0, 5, "a"), token="new")
    other.save_ranges()
    before = list(store.rows)
    writer(store, tmp_path)
    assert store.rows == before


def test_a_group_that_the_engine_refuses_is_forgotten_at_the_next_start(store, tmp_path):
    once = writer(store, tmp_path)
    store.fails = "before"
    with pytest.raises(Unavailable):
        once.insert(once.prepare("steps", [batch(0, 5, job="poison")], "a"))
    store.fails = ""
    Journal(tmp_path).write(once.prepare("steps", [batch(5, 5, job="poison")], "b").group)
    again = writer(store, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert write(again, batch(0, 10), token="c") == (10,)


def test_quarantined_rows_are_kept_once_and_count_as_stored(store):
    metrics = IngestMetrics()
    once = writer(store, metrics=metrics)
    prepared = once.prepare("steps", [batch(0, 3, "n/1", start=[0, DAY, 1])], "a")
    for fails in ("before", "after", ""):
        store.fails = fails
        try:
            once.insert(prepared)
        except Unavailable:
            assert fails
    assert store.rows == [1]
    assert [(q["source"], q["first_row"], q["rows"]) for q in store.quarantine] == [("n/1", 0, 2)]
    assert write(once, batch(0, 3, "n/1"), token="b") == (0,)
    assert value(metrics, "quarantined_rows_total", record="steps") == 2


def test_a_node_that_has_not_sent_for_a_month_has_no_metric(store):
    clock, metrics = StillClock(), IngestMetrics()
    once = ExactlyOnceWriter(store, clock, metrics)
    write(once, batch(0, 5, source="gone/1"), token="a")
    write(once, batch(0, 5, source="there/1"), token="b")
    assert value(metrics, "last_seen_timestamp_seconds", node="gone")
    clock.now_s += KEPT_S + 1
    write(once, batch(0, 5, source="there/2"), token="c")
    assert value(metrics, "last_seen_timestamp_seconds", node="gone") is None
    assert value(metrics, "last_seen_timestamp_seconds", node="there")


def test_metrics_count_what_was_stored_and_what_came_again(store):
    metrics = IngestMetrics()
    once = writer(store, metrics=metrics)
    write(once, batch(0, 5, "n7/1"), batch(3, 5, "n7/1"), token="a")
    assert value(metrics, "rows_total", record="steps") == 8
    assert value(metrics, "repeated_rows_total", record="steps") == 2
    assert value(metrics, "last_seen_timestamp_seconds", node="n7") == DAY / 1e9
    store.fails = "before"
    with pytest.raises(Unavailable):
        write(once, batch(8, 5, "n7/1"), token="b")
    assert value(metrics, "rows_total", record="steps") == 8
    assert value(metrics, "failed_inserts_total", record="steps") == 1


SENDS = st.tuples(st.integers(0, 30), st.integers(1, 10), st.sampled_from("ab"))
ACTIONS = st.sampled_from(
    ["prepare", "insert", "save", "fail before", "fail after", "fail ranges", "heal", "kill"]
)


@given(st.lists(st.tuples(ACTIONS, SENDS), max_size=30))
def test_each_row_is_stored_once_whatever_fails_or_is_killed(events):
    with tempfile.TemporaryDirectory() as name:
        check(Path(name), events)


def check(folder, events):
    """Inserts wait in order, and one that failed is tried again first, as both callers do."""
    store, waiting, finished = MemoryStore(), [], set()
    once = writer(store, folder)
    for number, (action, (first, rows, source)) in enumerate(events):
        match action.split():
            case ["prepare"]:
                sent = batch(first + 1000 * (source == "b"), rows, source=source)
                waiting.append(once.prepare("steps", [sent], f"t{number}"))
            case ["insert"] if waiting:
                attempt(once, waiting, finished)
            case ["save"]:
                ignoring(once.save_ranges)
            case ["fail", how]:
                store.fails = how
            case ["heal"]:
                store.fails = ""
            case ["kill"]:
                store.fails, waiting = "", []
                once = writer(store, folder)
    assert len(store.rows) == len(set(store.rows))
    assert finished <= set(store.rows)


def attempt(once, waiting, finished):
    if ignoring(lambda: once.insert(waiting[0])):
        for rows in waiting.pop(0).group.ranges:
            finished |= set(range(rows.first, rows.end))


def ignoring(act):
    try:
        act()
    except PulsetrainError:
        return False
    return True
