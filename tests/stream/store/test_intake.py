from __future__ import annotations

import base64
import os
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.clock import SystemClock
from pulsetrain.core.errors import SchemaMismatch, Unavailable, UsageError
from pulsetrain.records.batch import decode, encode
from pulsetrain.stream.store import exactly_once
from pulsetrain.stream.store.batch_queue import IntakeConfig
from pulsetrain.stream.store.intake import OWN_TOKENS_S, Intake
from tests.stream.fakes import MemoryStore, StillClock, batch
from tests.stream.rows import DAY, table


@pytest.fixture
def store():
    return MemoryStore()


def stored(intake, *batches):
    futures = [intake.submit(b) for b in batches]
    intake.run(everything=True)
    return [f.result(timeout=0) for f in futures]


def test_batches_gather_into_one_insert(tmp_path, store):
    clock = StillClock()
    intake = Intake(store, tmp_path, clock)
    futures = [intake.submit(batch(0, 5, source=f"n{i}")) for i in range(4)]
    intake.run()
    assert not any(f.done() for f in futures)
    clock.now_s = 0.5
    intake.run()
    assert [f.result(timeout=0) for f in futures] == [5, 5, 5, 5]
    assert store.inserts == 1


def test_inserts_are_counted_by_record_once_rows_can_be_queried(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock())
    assert intake.inserts(["spans", "steps"]) == 0
    stored(intake, batch(0, 5))
    stored(intake, batch(5, 5))
    record = batch(0, 1).record
    assert intake.inserts([record]) == intake.inserts([record, "heartbeats"]) == 2


def test_enough_rows_do_not_wait(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock(), IntakeConfig(group_rows=8))
    first, second = intake.submit(batch(0, 5)), intake.submit(batch(5, 5))
    intake.run()
    assert (first.result(timeout=0), second.result(timeout=0)) == (5, 5)


def test_a_batch_that_comes_again_is_stored_once(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock())
    assert stored(intake, batch(0, 5), batch(0, 5), batch(3, 5)) == [5, 0, 3]
    assert stored(intake, batch(0, 8)) == [0]
    assert sorted(store.rows) == list(range(8))


def test_ranges_outlive_the_journal_and_the_tokens(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock())
    stored(intake, batch(0, 5))
    assert len(list(tmp_path.iterdir())) == 1
    intake.close()
    assert list(tmp_path.iterdir()) == []
    store.tokens.clear()
    assert stored(Intake(store, tmp_path, StillClock()), batch(0, 5)) == [0]


def test_a_killed_hub_finishes_at_its_next_start_what_it_had_begun(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock())
    store.fails = "after"
    future = intake.submit(batch(0, 5))
    intake.run(everything=True)
    assert isinstance(future.exception(timeout=0), Unavailable)
    store.fails = ""
    again = Intake(store, tmp_path, StillClock())
    assert stored(again, batch(0, 5), batch(5, 2)) == [0, 2]
    assert sorted(store.rows) == list(range(7))


def test_a_store_that_refuses_what_the_journal_holds_keeps_no_hub_from_starting(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock())
    store.fails = "after"
    intake.submit(batch(0, 5))
    intake.run(everything=True)
    store.fails = "before"
    again = Intake(store, tmp_path, StillClock())
    future = again.submit(batch(5, 2))
    again.run(everything=True)
    assert isinstance(future.exception(timeout=0), Unavailable)
    store.fails = ""
    assert stored(again, batch(0, 5), batch(5, 2)) == [0, 2]
    assert sorted(store.rows) == list(range(7))


@pytest.mark.parametrize("odd", [0, 10**17, DAY + 2 * 86_400 * 10**9, -1])
def test_rows_of_an_impossible_time_go_aside_unchanged(tmp_path, store, odd):
    sent = table("steps", 3, start=[DAY, odd, DAY + 1])
    data = decode(encode("steps", sent, source="n/1", first_row=4))
    intake = Intake(store, tmp_path, StillClock())
    assert stored(intake, data) == [3]
    assert store.rows == [0, 2]
    (row,) = store.quarantine
    assert (row["record"], row["source"], row["first_row"], row["rows"]) == ("steps", "n/1", 4, 1)
    kept = pa.ipc.open_stream(base64.b64decode(row["data"])).read_all()
    assert kept.to_pylist() == sent.slice(1, 1).to_pylist()
    assert stored(intake, data) == [0]
    assert len(store.quarantine) == 1


def test_a_batch_of_nothing_but_impossible_times_is_done_with(tmp_path, store):
    data = decode(encode("steps", table("steps", 3, start=7), source="n/1", first_row=0))
    assert stored(Intake(store, tmp_path, StillClock()), data) == [3]
    assert store.inserts == 0
    assert stored(Intake(store, tmp_path, StillClock()), data) == [0]


def test_a_batch_that_the_engine_cannot_read_is_refused_alone(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock())
    bad = decode(encode("steps", table("steps", 2, job="poison"), source="bad", first_row=0))
    good, refused, other = intake.submit(batch(0, 5)), intake.submit(bad), intake.submit(batch(5, 5))
    intake.run(everything=True)
    assert (good.result(timeout=0), other.result(timeout=0)) == (5, 5)
    assert isinstance(refused.exception(timeout=0), SchemaMismatch)
    assert len(list(tmp_path.iterdir())) == 2
    assert stored(intake, batch(10, 5)) == [5]


@pytest.mark.parametrize(
    ("error", "told"), [(pa.ArrowInvalid("offset overflow"), SchemaMismatch), (KeyError("x"), Unavailable)]
)
def test_a_batch_that_no_insert_can_hold_does_not_hold_up_the_others(
    tmp_path, store, monkeypatch, error, told
):
    encode_group = exactly_once.encode_group

    def overflowing(record, token, ranges, *rows):
        if any(each.source == "bad" for each in ranges):
            raise error
        return encode_group(record, token, ranges, *rows)

    monkeypatch.setattr(exactly_once, "encode_group", overflowing)
    intake = Intake(store, tmp_path, StillClock())
    futures = [intake.submit(b) for b in (batch(0, 5), batch(0, 5, source="bad"), batch(5, 5))]
    intake.run(everything=True)
    good, bad, other = futures
    assert (good.result(timeout=0), other.result(timeout=0)) == (5, 5)
    assert isinstance(bad.exception(timeout=0), told)


def test_a_half_written_group_is_forgotten(tmp_path, store):
    (tmp_path / "abc.part").write_bytes(b"half")
    (tmp_path / "abd.arrow").write_bytes(b"not arrow")
    assert stored(Intake(store, tmp_path, StillClock()), batch(0, 5)) == [5]
    assert not (tmp_path / "abc.part").exists()


def test_a_journal_folder_that_cannot_be_made_is_named(tmp_path, store):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="journal folder"):
        Intake(store, tmp_path / "file" / "x", StillClock())


SENDS = st.tuples(st.just("send"), st.integers(0, 30), st.integers(1, 10), st.sampled_from("ab"))
EVENTS = st.tuples(st.sampled_from(["flush", "fail before", "fail after", "heal", "kill", "stop"]))


@given(st.lists(st.one_of(SENDS, SENDS, EVENTS), max_size=25))
def test_each_row_is_stored_once_whatever_order_overlap_failure_or_restart(events):
    with tempfile.TemporaryDirectory() as name:
        check(Path(name), events)


def check(folder, events):
    store, clock = MemoryStore(), StillClock()
    intake, promised = Intake(store, folder, clock), []
    for kind, *rest in events:
        match kind:
            case "send":
                first, rows, source = rest
                shifted = batch(first + 1000 * (source == "b"), rows, source=source)
                promised.append((shifted, intake.submit(shifted)))
            case "flush":
                intake.run(everything=True)
            case "fail before" | "fail after":
                store.fails = kind.removeprefix("fail ")
            case "heal":
                store.fails = ""
            case "kill" | "stop":
                store.fails = "" if kind == "stop" else store.fails
                if kind == "stop":
                    intake.close()
                store.fails = ""
                intake = Intake(store, folder, clock)
    store.fails = ""
    intake.close()
    kept = set(store.rows)
    assert len(store.rows) == len(kept)
    for sent, future in promised:
        if future.done() and future.exception(timeout=0) is None:
            assert set(sent.table.column("step").to_pylist()) <= kept


def test_a_refused_retry_does_not_cost_the_batch_that_comes_after_it(tmp_path, store):
    """The engine was away when the bad batch came, and refuses it only when it is tried again."""
    intake = Intake(store, tmp_path, StillClock())
    store.fails = "before"
    bad = intake.submit(batch(0, 5, source="bad", job="poison"))
    intake.run(everything=True)
    assert isinstance(bad.exception(timeout=0), Unavailable)
    store.fails = ""
    assert stored(intake, batch(0, 5)) == [5]
    assert store.rows == list(range(5))


def test_a_sender_hears_what_its_thread_did_not_expect_and_its_rows_can_come_again(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock())
    keep, store._keep = store._keep, None
    future = intake.submit(batch(0, 5))
    intake.run(everything=True)
    assert "TypeError" in str(future.exception(timeout=0))
    store._keep = keep
    store.tokens.clear()
    assert stored(intake, batch(0, 5)) == [0]  # the insert of unknown outcome was repeated first
    assert store.rows == list(range(5))


def test_ranges_that_cannot_be_saved_are_saved_later(tmp_path, store):
    clock = StillClock()
    intake = Intake(store, tmp_path, clock)
    stored(intake, batch(0, 5))
    store.fails = "ranges"
    clock.now_s = 6.0
    intake.run()
    assert store.ranges == []
    store.fails = ""
    clock.now_s = 12.0
    intake.run()
    assert [(r["first_row"], r["next_row"]) for r in store.ranges] == [(0, 5)]


def test_its_thread_stores_what_is_submitted_until_it_is_closed(tmp_path, store):
    intake = Intake(store, tmp_path, SystemClock(), IntakeConfig(linger_s=0.001))
    intake.start()
    assert intake.submit(batch(0, 5)).result(timeout=10) == 5
    last = intake.submit(batch(5, 5))
    intake.close()
    intake.close()
    assert last.result(timeout=0) == 5
    assert len(store.ranges) == 1 or store.ranges[-1]["next_row"] == 10


def test_everything_that_waits_is_stored_at_the_end_however_many_inserts_that_takes(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock(), IntakeConfig(insert_rows=10))
    futures = [intake.submit(batch(first, 5)) for first in range(0, 50, 5)]
    assert intake.metrics.registry.get_sample_value("pulsetrain_ingest_waiting_rows") == 50
    intake.close()
    assert [f.result(timeout=0) for f in futures] == 10 * [5]
    assert store.inserts == 5
    assert intake.metrics.registry.get_sample_value("pulsetrain_ingest_waiting_rows") == 0


def test_a_hub_that_takes_the_lead_stores_nothing_that_the_last_one_has_told_as_stored(tmp_path, store):
    waits = Intake(store, tmp_path / "b", StillClock(), shared=True)
    leads = Intake(store, tmp_path / "a", StillClock(), shared=True)
    assert stored(leads, batch(0, 5)) == [5]  # and is killed at once
    assert stored(waits, batch(0, 8)) == [3]
    assert store.rows == list(range(8))


def test_ranges_are_saved_before_senders_are_told_where_another_hub_may_take_over(tmp_path, store):
    intake, saved = Intake(store, tmp_path, StillClock(), shared=True), []
    intake.submit(batch(0, 5)).add_done_callback(lambda _: saved.extend(store.ranges))
    intake.run(everything=True)
    assert [(each["first_row"], each["next_row"]) for each in saved] == [(0, 5)]


def test_senders_are_not_told_where_the_ranges_cannot_be_saved(tmp_path, store):
    intake = Intake(store, tmp_path, StillClock(), shared=True)
    store.fails = "ranges"
    future = intake.submit(batch(0, 5))
    intake.run(everything=True)
    assert isinstance(future.exception(timeout=0), Unavailable)
    store.fails = ""
    assert stored(intake, batch(0, 5)) == [0]
    assert (store.rows, len(store.ranges)) == (list(range(5)), 1)


def test_a_hub_that_cannot_read_the_ranges_stores_nothing_until_it_can(tmp_path, store):
    intake, query = Intake(store, tmp_path, StillClock(), shared=True), store.query

    def away(sql, params=None):
        raise Unavailable("away")

    store.query = away
    future = intake.submit(batch(0, 5))
    intake.run(everything=True)
    assert isinstance(future.exception(timeout=0), Unavailable)
    store.query = query
    assert stored(intake, batch(0, 5)) == [5]


def test_a_hub_that_was_deposed_stores_nothing_more(tmp_path, store):
    deposed = threading.Event()
    intake = Intake(store, tmp_path, StillClock(), shared=True, may_store=lambda: not deposed.is_set())
    future = intake.submit(batch(0, 5))
    deposed.set()
    intake.close()
    assert isinstance(future.exception(timeout=0), Unavailable)
    assert store.rows == []


@pytest.mark.parametrize(("shared", "twice"), [(True, False), (False, True)])
def test_one_of_several_hubs_leaves_an_old_journal_to_its_senders(tmp_path, store, shared, twice):
    killed = Intake(store, tmp_path, StillClock(), shared=shared)
    store.fails = "after"
    killed.submit(batch(0, 5))
    killed.run(everything=True)
    store.fails = ""
    (kept,) = tmp_path.iterdir()
    written_ns = DAY - int((OWN_TOKENS_S + 60) * 1e9)
    os.utime(kept, ns=(written_ns, written_ns))
    store.tokens.clear()  # others have inserted 10,000 times
    stored(Intake(store, tmp_path, StillClock(), shared=shared), batch(20, 1))
    assert sorted(store.rows) == sorted([*range(5), *(range(5) if twice else ()), 20])


def test_a_hub_that_waits_stores_nothing_of_its_journal_before_it_leads(tmp_path, store):
    deposed = Intake(store, tmp_path / "a", StillClock(), shared=True)
    store.fails = "before"
    deposed.submit(batch(0, 5))
    deposed.run(everything=True)
    store.fails = ""
    leads = Intake(store, tmp_path / "b", StillClock(), shared=True)
    stored(leads, batch(20, 1))
    again = Intake(store, tmp_path / "a", StillClock(), shared=True)
    again.run()
    assert stored(leads, batch(0, 8)) == [8]
    assert stored(again, batch(0, 9)) == [1]
    assert sorted(store.rows) == [*range(9), 20]
