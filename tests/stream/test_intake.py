from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.stream.batch import decode, encode
from pulsetrain.stream.errors import Unavailable
from pulsetrain.stream.intake import Intake
from tests.stream.rows import table


class MemoryStore:
    """A store that keeps what is inserted, and fails when told to."""

    def __init__(self):
        self.rows = []
        self.tokens = set()
        self.ranges = []
        self.away = False

    def insert(self, record, rows, *, token):
        if self.away:
            raise Unavailable("away")
        if token not in self.tokens:
            self.tokens.add(token)
            self.rows += rows.column("step").to_pylist()

    def insert_raw(self, name, columns, stream, *, token):
        import pyarrow as pa

        self.ranges += pa.ipc.open_stream(stream).read_all().to_pylist()

    def query(self, sql, params=None):
        import pyarrow as pa

        names = ["source", "record", "first_row", "next_row"]
        return pa.table({n: [r[n] for r in self.ranges] for n in names})


def batch(first, rows, source="s"):
    sent = table("steps", rows, step=list(range(first, first + rows)))
    return decode(encode("steps", sent, source=source, first_row=first))


def test_a_batch_that_comes_twice_is_stored_once_also_after_a_restart():
    store = MemoryStore()
    intake = Intake(store, lambda: 0.0)
    assert [intake.accept(batch(0, 5)), intake.accept(batch(0, 5))] == [5, 0]
    intake.save()
    store.tokens.clear()
    assert Intake(store, lambda: 0.0).accept(batch(0, 5)) == 0


def test_ranges_are_written_about_every_second():
    store, now = MemoryStore(), [0.0]
    intake = Intake(store, lambda: now[0])
    intake.accept(batch(0, 5))
    assert store.ranges == []
    now[0] = 1.5
    intake.accept(batch(5, 5))
    assert [(r["first_row"], r["next_row"]) for r in store.ranges] == [(0, 10)]


def test_a_batch_that_could_not_be_stored_is_taken_when_it_comes_again():
    store = MemoryStore()
    intake = Intake(store, lambda: 0.0)
    store.away = True
    with pytest.raises(Unavailable):
        intake.accept(batch(0, 5))
    store.away = False
    assert intake.accept(batch(0, 5)) == 5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 10), st.sampled_from(["", "crash", "stop", "away"])),
        max_size=15,
    )
)
def test_each_row_is_stored_once_whatever_order_overlap_or_restart(sends):
    store = MemoryStore()
    intake = Intake(store, lambda: 0.0)
    wanted = set()
    for first, rows, event in sends:
        store.away = event == "away"
        try:
            intake.accept(batch(first, rows))
            wanted |= set(range(first, first + rows))
        except Unavailable:
            pass
        store.away = False
        if event == "stop":
            intake.save()
            intake = Intake(store, lambda: 0.0)
        if event == "crash":
            intake.save()  # a killed hub loses at most its last second, which the tokens cover
            intake.accept(batch(first, rows))
            intake = Intake(store, lambda: 0.0)
            intake.accept(batch(first, rows))
            wanted |= set(range(first, first + rows))
    assert wanted <= set(store.rows)
    assert len(store.rows) == len(set(store.rows))
