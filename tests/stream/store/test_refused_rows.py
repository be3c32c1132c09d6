"""What the store refuses again and again is stored in parts, and a row that it refuses alone is set aside."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import Refused, Unavailable
from pulsetrain.stream.ingest_metrics import IngestMetrics
from pulsetrain.stream.store.exactly_once import ExactlyOnceWriter
from pulsetrain.stream.store.intake import Intake
from pulsetrain.stream.store.refused_rows import PATIENCE_S
from tests.stream.fakes import MemoryStore, StillClock, batch
from tests.stream.rows import DAY


class Site:
    """A hub's intake over a store in memory."""

    def __init__(self, folder):
        self.folder, self.store, self.clock = folder, MemoryStore(), StillClock()
        self.start()

    def start(self):
        self.intake = Intake(self.store, self.folder, self.clock)

    def send(self, *batches, for_s=0.0):
        """Send batches, and again for some time. Returns what came of the last time."""
        until_s = self.clock.now_s + for_s
        while True:
            futures = [self.intake.submit(each) for each in batches]
            self.intake.run(everything=True)
            if self.clock.now_s >= until_s:
                return [f.exception(timeout=0) or f.result(timeout=0) for f in futures]
            self.clock.now_s += 5.0

    def counted(self, name):
        labels = {"record": "steps"}
        return self.intake.metrics.registry.get_sample_value(f"pulsetrain_ingest_{name}_total", labels)

    @property
    def aside(self):
        return sorted((row["first_row"], row["rows"]) for row in self.store.quarantine)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_batch_that_is_too_large_for_the_store_is_stored_in_parts(site):
    site.store.most = 30
    assert isinstance(site.send(batch(0, 100))[0], Unavailable)
    assert site.send(batch(0, 100), batch(100, 5), for_s=PATIENCE_S + 5) == [0, 0]
    assert sorted(site.store.rows) == list(range(105))
    assert (site.counted("rows"), site.counted("set_aside_rows"), site.aside) == (105, 0, [])


def test_a_row_that_is_refused_alone_goes_to_the_quarantine_and_the_others_are_stored(site):
    site.store.refused = frozenset({3, 17})
    site.send(batch(0, 20), for_s=PATIENCE_S + 5)
    assert sorted(site.store.rows) == [n for n in range(20) if n not in {3, 17}]
    assert site.aside == [(3, 1), (17, 1)]
    assert (site.counted("rows"), site.counted("set_aside_rows")) == (18, 2)
    assert "Code: 241" in site.store.quarantine[0]["reason"]
    assert site.send(batch(20, 5)) == [5]


def test_a_quarantine_that_refuses_what_rows_hold_does_not_hold_up_the_others(site):
    odd = batch(0, 3, start=[DAY, 7, DAY])
    site.store.fails = "data"
    assert isinstance(site.send(odd)[0], Unavailable)
    site.send(odd, batch(3, 2), for_s=PATIENCE_S + 5)
    assert sorted(site.store.rows) == [0, 2, 3, 4]
    assert [(row["first_row"], row["rows"], row["data"]) for row in site.store.quarantine] == [(0, 1, "")]
    site.store.fails = ""
    site.send(odd, batch(5, 2, start=7))
    assert len(site.store.rows) == 4
    assert [bool(row["data"]) for row in site.store.quarantine] == [False, True]


@pytest.mark.parametrize("fails", ["full", "before"])
def test_nothing_is_given_up_while_the_store_takes_no_row_at_all(site, fails):
    site.store.fails = fails
    for _ in range(3):
        assert isinstance(site.send(batch(0, 4), for_s=10 * PATIENCE_S)[0], Unavailable)
    site.store.fails = ""
    site.send(batch(0, 4))
    assert sorted(site.store.rows) == [0, 1, 2, 3]
    assert site.aside == []


def test_a_short_lack_of_memory_splits_nothing(site):
    site.store.most = 3
    site.send(batch(0, 10), for_s=PATIENCE_S - 10)
    site.store.most = 100
    site.send(batch(0, 10))
    assert (sorted(site.store.rows), site.store.inserts) == (list(range(10)), 1)


def test_rows_whose_view_fails_are_stored_once(site):
    """The table has the rows while their insert ends with an error."""
    site.store.view_fails = True
    site.send(batch(0, 10), for_s=PATIENCE_S + 5)
    assert sorted(site.store.rows) == list(range(10))


def test_without_a_journal_the_ranges_of_each_part_are_saved_before_the_next_is_tried():
    """As with Kafka: whoever takes over repeats what is left."""
    store, clock = MemoryStore(), StillClock()
    writer = ExactlyOnceWriter(store, clock, IngestMetrics())
    prepared = writer.prepare("steps", [batch(0, 16)], "t:0-16")
    store.most, store.refused = 4, frozenset({9})
    for _ in range(2):
        with pytest.raises(Refused):
            writer.insert(prepared)
        clock.now_s += PATIENCE_S / 2
    keep, left = store.insert_raw, iter([0] * 8)

    def dies(name, *parts, **how):
        if name == "steps" and next(left, None) is None:
            raise Unavailable("away")
        keep(name, *parts, **how)

    store.insert_raw = dies
    with pytest.raises(Unavailable):
        writer.insert(prepared)
    store.insert_raw, stored = keep, sorted(store.rows)
    assert stored
    next_one = ExactlyOnceWriter(store, clock, IngestMetrics())
    next_one.load()
    rest = next_one.prepare("steps", [batch(0, 16)], "t:0-16")
    assert rest.new_rows == (16 - len(stored) - len(store.quarantine),)
    writer.insert(prepared)  # or it goes on itself
    assert sorted(store.rows) == [n for n in range(16) if n != 9]
    assert [row["first_row"] for row in store.quarantine] == [9]


STEPS = st.sampled_from(["send", "away", "lost", "back", "full", "kill", "wait"])


@given(
    st.lists(STEPS, max_size=25),
    st.integers(1, 12),
    st.frozensets(st.integers(0, 39), max_size=4),
)
def test_rows_are_stored_once_or_counted_whatever_fails_or_is_killed_meanwhile(steps, most, refused):
    with tempfile.TemporaryDirectory() as name:
        site = Site(Path(name))
        site.store.most, site.store.refused, sent = most, refused, 0
        for step in steps:
            match step:
                case "send":
                    sent = min(40, sent + 10)
                case "away" | "lost" | "back" | "full":
                    names = {"away": "before", "lost": "after", "full": "full"}
                    site.store.fails = names.get(step, "")
                case "kill":
                    fails, site.store.fails = site.store.fails, ""
                    site.start()
                    site.store.fails = fails
                case _:
                    site.clock.now_s += PATIENCE_S
            site.send(*(batch(first, 10) for first in range(0, sent, 10)))
        site.store.fails = ""
        site.send(*(batch(first, 10) for first in range(0, sent, 10)), for_s=4 * PATIENCE_S)
        aside = sorted(n for first, rows in site.aside for n in range(first, first + rows))
        assert sorted([*site.store.rows, *aside]) == list(range(sent))
        assert set(aside) == set(refused) & set(range(sent))
