"""The store as the analysis asks it."""

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.analytics.analyze import MACHINE_ANALYZERS, STEP_ANALYZERS
from pulsetrain.analytics.incidents.alert_state import AlertConfig
from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.analytics.slowness import stepless
from pulsetrain.analytics.verdict import Failed, Healthy, Inconclusive, findings
from pulsetrain.hub import stored_records
from pulsetrain.hub.stored_records import FREE_S, YOUNG_S, StoreRecords
from tests.analytics.fleet import fleet
from tests.analytics.slowness.collectives_of import BEGAN_NS, Job, ddp, slow
from tests.analytics.slowness.test_recent_timings import GrowingStore, whole_steps
from tests.analytics.slowness.test_stepless import Store as CollectivesStore
from tests.hub.fakes import Clock


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


def analyzers(said):
    return {verdict.analyzer for verdicts in said.values() for verdict in verdicts}


def test_a_store_without_steps_is_blind_and_does_not_raise():
    clock = Clock()
    records = StoreRecords(Store(), clock=clock)
    said = records.look("j", 0, 0, ("ranks", "steps"))
    assert said["steps"] == []
    clock.now_s += YOUNG_S
    said = {group: records.look("j", 0, 0, (group,))[group] for group in ("ranks", "machines")}
    for (verdict,) in said.values():
        assert isinstance(verdict, Inconclusive)
        assert verdict.blind
    assert records.newest_step("j", 0) == -1


def test_nobody_is_told_that_a_new_attempt_has_no_rows_yet(tmp_path):
    clock, book = Clock(), AlertBook(tmp_path / "a.db", AlertConfig(channels=("pager",)))
    records = StoreRecords(Store(), clock=clock)
    for attempt, began in ((0, 0), (1, 1000)):
        for second in range(began, began + 25, 5):
            for group in ("ranks", "machines"):
                clock.now_s = second
                now_ns = clock.wall_ns()
                book.observe(records.look("j", attempt, now_ns, (group,))[group], now_ns, job="j")
                assert book.tick(now_ns) == []
    assert book.list() == []
    book.close()


def test_a_job_that_starts_for_long_is_as_young_as_ever_once_it_trains():
    clock = Clock()
    records = StoreRecords(Store(), clock=clock)
    for second in range(0, 120, 10):
        clock.now_s += 10
        said = records.look("j", 0, second * 10**9, ("ranks",))["ranks"]
        assert not any(verdict.blind for verdict in said)
    records.look("j", 0, 120 * 10**9, ("steps",))
    for after_s, blind in ((YOUNG_S - 1, False), (1, True)):
        clock.now_s += after_s
        (verdict,) = records.look("j", 0, 120 * 10**9, ("ranks",))["ranks"]
        assert verdict.blind is blind


def test_a_slow_rank_of_a_job_without_steps_is_named_by_its_collectives():
    """The same operations again confirm nothing."""
    store = CollectivesStore(ddp(Job(factor=slow(2, 1.4)), 160))
    records = StoreRecords(store)
    said = records.look("j", 0, BEGAN_NS, ("ranks", "steps"))
    blind, finding = said["ranks"]
    assert (blind.analyzer, finding.kind, finding.subject) == ("analyze", "straggler", "2")
    assert said["steps"] == []
    assert records.look("j", 0, BEGAN_NS + 10**9, ("ranks", "steps")) == {"ranks": None, "steps": []}


def test_each_analyzer_is_of_one_group():
    extent = pa.table({"attempt": [0], "first_step": [0], "last_step": [9]})
    assert analyzers(StoreRecords(Store(first_step=extent)).look("j", 0, 10**18, ("machines",))) == set(
        MACHINE_ANALYZERS
    )
    of_ranks, of_steps = (
        analyzers(StoreRecords(job_of(10)).look("j", 0, 10**18, (group,))) for group in ("ranks", "steps")
    )
    assert of_ranks == {"straggler"}
    assert of_ranks | of_steps == set(STEP_ANALYZERS)


def test_where_nothing_new_was_stored_nothing_is_said():
    second, store = 10**9, job_of(10)
    records = StoreRecords(store)
    assert records.look("j", 0, 0, ("ranks",))["ranks"]
    records.look("j", 0, second, ("ranks",))
    later = records.look("j", 0, 10 * second, ("ranks", "steps"))
    assert later["ranks"] is None
    assert later["steps"]  # they had not been asked yet
    assert records.look("j", 0, 11 * second, ("steps",)) == {"steps": None}
    assert records.newest_step("j", 0) == 9
    assert records.look("j", 1, 12 * second, ("ranks",))["ranks"]


def test_a_job_that_stays_slow_stays_a_finding():
    """From step 1000 on all ranks take half as long again. At the end no look sees a step before it."""
    columns = fleet(ranks=4, steps=2000, everyone=np.where(np.arange(2000) < 1000, 1.0, 1.5))
    store = GrowingStore(columns)
    records = StoreRecords(store)
    for look in range(25):
        whole_steps(store, *range(80 * look, 80 * look + 80))
        said = records.look("j", 0, look * 4 * 10**9, ("steps",))["steps"]
        slow = {f.kind for f in findings(said) if f.subject_type == "job"}
        assert slow == ({"fail_slow", "mfu_decay"} if look >= 12 else set()), look


@pytest.mark.parametrize(("wall_s", "pause_s"), [(0, FREE_S + 1), (200, 4)])
def test_a_slowdown_is_known_after_a_long_round_of_looks_and_a_step_of_the_clock(wall_s, pause_s):
    """The other job is looked at last, so late that no rows of the slow one are held any more."""
    columns = fleet(ranks=4, steps=1600, everyone=np.where(np.arange(1600) < 1000, 1.0, 1.5))
    store, clock = GrowingStore(columns), Clock()
    records = StoreRecords(store, clock=clock)
    for look in range(20):
        whole_steps(store, *range(80 * look, 80 * look + 80))
        clock.now_s += 4
        wall_ns = clock.wall_ns() + (look > 18) * wall_s * 10**9
        if look == 19:
            clock.now_s += pause_s
            records.look("other", 0, wall_ns, ("steps",))
        said = records.look("j", 0, wall_ns, ("steps",))["steps"]
    assert {f.kind for f in findings(said)} == {"fail_slow", "mfu_decay"}
    records.forget("j")
    said = records.look("j", 0, wall_ns, ("steps",))["steps"]
    assert not findings(said)


def test_a_slowdown_of_an_attempt_is_known_to_the_next_hub():
    columns = fleet(ranks=4, steps=2000, everyone=np.where(np.arange(2000) < 1000, 1.0, 1.5))
    store = GrowingStore(columns)
    whole_steps(store, *range(1100))
    open_before = findings(StoreRecords(store).look("j", 0, 0, ("steps",))["steps"])
    assert {f.kind for f in open_before} == {"fail_slow", "mfu_decay"}
    whole_steps(store, *range(1100, 2000))
    for attempt, kinds in ((0, {"fail_slow", "mfu_decay"}), (1, set())):
        records = StoreRecords(store)
        records.recall(open_before)
        said = records.look("j", attempt, 0, ("steps",))["steps"]
        assert {f.kind for f in findings(said)} == kinds


def test_a_loss_that_is_not_finite_between_two_looks_is_told():
    """Steps of 10 ms: the window of a look holds less than a second look's pause."""
    columns = fleet(ranks=4, steps=1700)
    columns["loss"] = np.where(columns["step"] == 500, np.nan, columns["loss"])
    store = GrowingStore(columns)
    records, told = StoreRecords(store), []
    for look in range(4):
        whole_steps(store, *range(400 * look, 400 * look + 400))
        said = records.look("j", 0, look * 4 * 10**9, ("steps",))["steps"]
        told.append([f.summary for f in said if getattr(f, "kind", "") == "nan"])
    once = ["The loss was not finite in one step, first at step 500."]
    assert told == [[], once, once, once]
    whole_steps(store, 1600)
    said = records.look("j", 0, 100 * 10**9, ("steps",))["steps"]
    assert not any(getattr(f, "kind", "") == "nan" for f in said)


def test_the_slowest_ranks_are_those_of_the_attempt_that_was_looked_at():
    store = GrowingStore(fleet(ranks=4, steps=20, slow={2: 1.5}))
    whole_steps(store, *range(20))
    records = StoreRecords(store)
    assert records.slowest("j", 0) is None
    records.look("j", 0, 0, ("ranks",))
    assert records.slowest("j", 0)["ranks"][0]["rank"] == 2
    assert records.slowest("j", 1) is None


def test_ranks_are_judged_though_it_is_not_known_which_are_the_slowest(monkeypatch):
    def broken(timings):
        raise ZeroDivisionError

    monkeypatch.setattr(stored_records, "slowest", broken)
    records = StoreRecords(job_of(10))
    assert records.look("j", 0, 0, ("ranks",))["ranks"]
    assert records.slowest("j", 0) is None


def broken(*args):
    raise OSError("no answer")


def test_open_slowdowns_that_cannot_be_told_leave_the_other_answers_and_nobody_healthy(monkeypatch):
    monkeypatch.setattr(stored_records.OpenSlowdowns, "take", broken)
    said = StoreRecords(job_of(60)).look("j", 0, 0, ("steps",))["steps"]
    failed = {v.analyzer: v.error for v in said if isinstance(v, Failed)}
    assert (failed["fail_slow"], failed["mfu"]) == ("OSError: no answer",) * 2
    healthy = {v.analyzer for v in said if isinstance(v, Healthy)}
    assert not healthy & set(failed)
    assert {"numerics", "data_stall"} <= healthy


def test_hardware_that_cannot_be_read_again_is_as_it_was(monkeypatch):
    """Where it never was read nobody may be compared: ranks may have GPUs of different models."""
    records, unread = StoreRecords(store := job_of(60)), StoreRecords(store)
    assert records.look("j", 0, 0, ("ranks",))["ranks"]
    monkeypatch.setattr(stored_records.JobHardware, "read", broken)
    later_ns = 61 * 10**9
    assert isinstance(records.look("j", 0, later_ns, ("steps",))["steps"][-1], Healthy | Inconclusive)
    with pytest.raises(OSError, match="no answer"):
        unread.look("j", 0, later_ns, ("ranks",))


def test_rounds_that_cannot_be_read_leave_the_other_answers_and_say_that_they_failed(monkeypatch):
    monkeypatch.setattr(stepless, "newest", broken)
    nothing, failed = StoreRecords(Store()).look("j", 0, 0, ("ranks",))["ranks"]
    assert (nothing.analyzer, failed.error) == ("analyze", "OSError: no answer")


def test_operations_that_are_too_many_to_read_are_counted_once_a_minute():
    many = pa.table({"node": ["a"], "second": [99], "operations": [10**7]})
    store, counted = Store(), []

    def query(sql, params=None):
        if "operations" not in sql:
            return pa.table({})
        counted.append(params["since_ns"])
        return many

    store.query = query
    records, second = StoreRecords(store), 10**9
    (_, told) = records.look("j", 0, 1000 * second, ("ranks",))["ranks"]
    assert stepless.TOO_MANY in told.reason
    for later in range(1, 60):
        assert records.look("j", 0, (1000 + later) * second, ("ranks",)) == {"ranks": None}
    assert counted == [(1000 - stepless.LONGEST_S) * second]
    many = pa.table({"node": ["a"], "second": [1060], "operations": [10**7]})
    assert stepless.TOO_MANY in records.look("j", 0, 1060 * second, ("ranks",))["ranks"][1].reason


def test_the_newest_step_is_asked_for_where_the_timings_could_not_be_read(monkeypatch):
    store = job_of(10)
    records = StoreRecords(store)
    records.look("j", 0, 0, ("ranks",))

    def broken(sql, params=None):
        if "ORDER BY step DESC LIMIT 1" in sql:
            return pa.table({"step": [12]})
        raise OSError("no answer")

    monkeypatch.setattr(store, "query", broken)
    with pytest.raises(OSError, match="no answer"):
        records.look("j", 0, 10**9, ("ranks",))
    assert records.newest_step("j", 0) == 12


class Inserts:
    """How often rows were inserted into any table."""

    def __init__(self):
        self.number = 0

    def __call__(self, *tables):
        return (self.number,) * len(tables)


def test_the_store_is_asked_again_only_where_something_was_inserted():
    second, store, inserts = 10**9, job_of(10), Inserts()
    records = StoreRecords(store, versions=inserts)
    assert records.look("j", 0, 0, ("ranks", "steps"))["ranks"]
    asked = len(store.asked)
    assert records.look("j", 0, second, ("ranks", "steps")) == {"ranks": None, "steps": None}
    assert len(store.asked) == asked
    inserts.number += 1
    records.look("j", 0, 2 * second, ("ranks",))
    assert len(store.asked) > asked


def test_an_analyzer_that_was_not_asked_yet_is_asked_without_an_insert():
    records = StoreRecords(job_of(10), versions=Inserts())
    records.look("j", 0, 0, ("ranks",))
    assert records.look("j", 0, 1, ("steps",))["steps"]


class LoggingStore(Store):
    """A job of ten steps. Counts how often its logs are read."""

    def __init__(self):
        extent = pa.table({"attempt": [0], "first_step": [0], "last_step": [9]})
        super().__init__(first_step=extent, end_ns=pa.table({"begin_ns": [0], "end_ns": [1], "n": [40]}))
        self.log_queries = 0

    def query(self, sql, params=None):
        self.log_queries += "FROM logs" in sql
        return super().query(sql, params)


def test_logs_are_read_again_after_an_insert_and_from_time_to_time():
    second, store, inserts = 10**9, LoggingStore(), Inserts()
    records = StoreRecords(store, versions=inserts)
    said = [records.look("j", 0, at * second, ("machines",))["machines"] for at in (1, 6)]
    assert [v.analyzer for v in said[0]] == [v.analyzer for v in said[1]]
    assert store.log_queries == 2  # the kernel's, and the ranks'
    inserts.number += 1
    records.look("j", 0, 11 * second, ("machines",))
    assert store.log_queries == 4
    records.look("j", 0, 60 * second, ("machines",))
    assert store.log_queries == 6
