"""The store as the analysis asks it."""

import pyarrow as pa

from pulsetrain.analytics.analyze import MACHINE_ANALYZERS
from pulsetrain.analytics.verdict import Inconclusive
from pulsetrain.hub.stored_records import StoreRecords
from tests.analytics.fleet import fleet
from tests.analytics.slowness.test_recent_timings import GrowingStore, whole_steps


class Store:
    """Answers each query with the first table whose words are in it."""

    def __init__(self, **tables):
        self.tables = tables

    def query(self, sql, params=None):
        return next((t for words, t in self.tables.items() if words in sql), pa.table({}))


def job_of(steps):
    store = GrowingStore(fleet(ranks=4, steps=steps))
    whole_steps(store, *range(steps))
    return store


def test_a_store_without_steps_is_blind_and_does_not_raise():
    records = StoreRecords(Store())
    for machines in (True, False):
        (verdict,) = records.verdicts("j", 0, 0, machines=machines)
        assert isinstance(verdict, Inconclusive)
        assert verdict.blind
    assert records.newest_step("j", 0) == -1


def test_machines_and_steps_are_asked_apart():
    extent = pa.table({"attempt": [0], "first_step": [0], "last_step": [9]})
    (of_machines, of_steps) = (
        {v.analyzer for v in StoreRecords(store).verdicts("j", 0, 10**18, machines=machines)}
        for machines, store in ((True, Store(first_step=extent)), (False, job_of(10)))
    )
    assert of_machines == set(MACHINE_ANALYZERS)
    assert "straggler" in of_steps


def test_where_nothing_new_was_stored_nothing_is_said():
    second, store = 10**9, job_of(10)
    records = StoreRecords(store)
    assert records.verdicts("j", 0, 0, machines=False)
    records.verdicts("j", 0, second, machines=False)
    assert records.verdicts("j", 0, 10 * second, machines=False) is None
    assert records.newest_step("j", 0) == 9
    assert records.verdicts("j", 1, 11 * second, machines=False)


def test_the_slowest_ranks_are_those_of_the_attempt_that_was_looked_at():
    store = GrowingStore(fleet(ranks=4, steps=20, slow={2: 1.5}))
    whole_steps(store, *range(20))
    records = StoreRecords(store)
    assert records.slowest("j", 0) is None
    records.verdicts("j", 0, 0, machines=False)
    assert records.slowest("j", 0)["ranks"][0]["rank"] == 2
    assert records.slowest("j", 1) is None
