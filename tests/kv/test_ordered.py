"""Writes stay in order, whatever the store answers late or not at all."""

from __future__ import annotations

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.kv.ordered import MARK, MOST, OrderedWrites
from pulsetrain.kv.store import MAX_WRITES, Committed, Compare, Of, Write
from pulsetrain.kv.table import Table

FENCE = Compare(key="leader", of=Of.CREATED, revision=1)


class Store:
    """A store that may carry out a transaction before it loses the answer, or after, or say that it did not.

    `next` are what it does with the next transactions: "answer", "lose", "late" or "twice".
    """

    def __init__(self):
        self.table, self.late, self.next = Table(), [], []
        self.table.commit((), [Write(key="leader", value="me")])

    def commit(self, compares, writes):
        how = self.next.pop(0) if self.next else "answer"
        if how == "late":
            self.late.append((compares, writes))
            raise Unavailable("no answer")
        result = self.table.commit(compares, writes)
        if how == "lose":
            raise Unavailable("no answer")
        return self.table.commit(compares, writes) if how == "twice" else result

    def get(self, key):
        return self.table.entries.get(key)

    def arrive(self):
        """Carry out what came late. Whether it changed anything."""
        return [self.table.commit(*each).ok for each in self.late]

    @property
    def value(self):
        return self.get("a").value


@pytest.fixture
def store():
    return Store()


def writer(store):
    made = OrderedWrites(store, lambda: [FENCE])
    made.load()
    return made


def write(to, value):
    return to.commit([Write(key="a", value=value)])


def unanswered(to, value):
    with pytest.raises(Unavailable):
        write(to, value)


def test_what_comes_late_does_not_overwrite_what_was_written_since(store):
    writes = writer(store)
    store.next = ["late"]
    unanswered(writes, "old")
    assert write(writes, "new")
    assert store.arrive() == [False]
    assert store.value == "new"


def test_what_comes_late_before_the_next_write_is_overwritten_by_it(store):
    writes = writer(store)
    write(writes, "first")
    store.next = ["late"]
    unanswered(writes, "old")
    assert store.arrive() == [True]
    assert write(writes, "new")
    assert store.value == "new"


def test_the_next_write_goes_on_from_one_whose_answer_was_lost(store):
    writes = writer(store)
    store.next = ["lose", "lose"]
    unanswered(writes, "1")
    unanswered(writes, "2")
    assert store.value == "1"  # the second found the mark of the first
    assert write(writes, "3")
    assert write(writes, "4")
    assert store.value == "4"


def test_a_write_that_two_members_carried_out_is_written(store):
    writes = writer(store)
    store.next = ["twice"]
    assert write(writes, "1")
    assert write(writes, "2")
    assert store.value == "2"


def test_who_does_not_lead_any_more_writes_nothing(store):
    stale = writer(store)
    write(stale, "mine")
    store.table.commit((), [Write(key="leader", value=None)])
    store.table.commit((), [Write(key="leader", value="other")])
    assert not write(stale, "late")
    assert store.value == "mine"


def test_another_writer_of_the_same_leader_is_noticed(store):
    first, second = writer(store), writer(store)
    assert write(first, "1")
    assert not write(second, "2")
    assert write(writer(store), "3")
    assert not write(first, "4")
    assert store.value == "3"


def test_the_mark_fits_into_a_transaction_that_is_full(store, monkeypatch):
    sizes = []

    def commit(compares, writes):
        sizes.append(len(writes))
        return Committed(ok=True, revision=9)

    monkeypatch.setattr(store, "commit", commit)
    writer(store).commit([Write(key=str(n), value="") for n in range(MOST)])
    assert sizes == [MAX_WRITES]
    assert MARK not in map(str, range(MOST))
