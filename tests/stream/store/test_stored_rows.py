"""Rows are new once: until they are claimed, and again when they are released."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.stream.store.clickhouse import ipc
from pulsetrain.stream.store.insert_group import RowRange
from pulsetrain.stream.store.stored_rows import FORGET_S, KEPT_S, StoredRows, ranges_table
from tests.stream.fakes import MemoryStore, StillClock


def rows(first, end, source="s"):
    return RowRange(source=source, first=first, end=end)


def new(claims):
    return [(c.rows.first, c.rows.end) for c in claims]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=15))
def test_each_row_is_claimed_once(spans):
    stored, claimed = StoredRows(StillClock()), []
    for first, size in spans:
        claimed += [i for low, high in new(stored.claim("steps", rows(first, first + size)))
                    for i in range(low, high)]  # fmt: skip
    assert len(claimed) == len(set(claimed))
    assert set(claimed) == {i for first, size in spans for i in range(first, first + size)}


def test_sources_and_records_number_their_rows_apart():
    stored = StoredRows(StillClock())
    assert new(stored.claim("steps", rows(0, 5))) == [(0, 5)]
    assert new(stored.claim("spans", rows(0, 5))) == [(0, 5)]
    assert new(stored.claim("steps", rows(0, 5, source="t"))) == [(0, 5)]
    assert new(stored.claim("steps", rows(0, 5))) == []


def test_a_claim_says_which_range_of_known_rows_it_is_part_of():
    stored = StoredRows(StillClock())
    stored.claim("steps", rows(0, 5))
    stored.claim("steps", rows(10, 15))
    (claim,) = stored.claim("steps", rows(3, 12))
    assert (claim.rows, claim.merged) == (rows(5, 10), rows(0, 15))


def test_released_rows_are_new_again_and_only_they():
    stored = StoredRows(StillClock())
    stored.claim("steps", rows(0, 5))
    later = stored.claim("steps", rows(0, 9))
    stored.release("steps", later)
    assert new(stored.claim("steps", rows(0, 12))) == [(5, 12)]


def test_what_was_saved_is_known_after_loading_and_what_was_claimed_is_not():
    stored, store = StoredRows(StillClock()), MemoryStore()
    table = ranges_table({("s", "steps", 0): 5, ("s", "steps", 10): 12})
    store.insert_raw("ingest_offsets", table.column_names, ipc(table), token=None)
    stored.claim("steps", rows(20, 30))
    stored.load(store)
    assert new(stored.claim("steps", rows(0, 30))) == [(5, 10), (12, 30)]


def test_a_source_that_sends_nothing_for_long_is_forgotten():
    clock = StillClock()
    stored = StoredRows(clock)
    for source in ("a/1", "a/2", "b/1", "c/1"):
        stored.claim("steps", rows(0, 5, source=source))
    clock.now_s += KEPT_S
    stored.claim("steps", rows(5, 6, source="a/2"))
    stored.claim("steps", rows(5, 6, source="c/1"))
    clock.now_s += FORGET_S - KEPT_S
    assert stored.forget_old() == set()
    clock.now_s += KEPT_S
    assert stored.forget_old() == {"b"}  # another process of node a still sends
    assert {source for source, _ in stored._known} == set(stored._seen_s) == {"a/2", "c/1"}
    assert new(stored.claim("steps", rows(0, 6, source="c/1"))) == []


def test_a_source_that_was_loaded_is_kept_as_long_from_then_on():
    clock, store = StillClock(), MemoryStore()
    stored, table = StoredRows(clock), ranges_table({("s", "steps", 0): 5})
    store.insert_raw("ingest_offsets", table.column_names, ipc(table), token=None)
    stored.load(store)
    clock.now_s += KEPT_S
    assert stored.forget_old() == set()
    clock.now_s += FORGET_S
    assert stored.forget_old() == {"s"}
