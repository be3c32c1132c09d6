"""What is held of a running job equals what a store gives that is read anew, whatever comes when."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.slowness import load_timings
from pulsetrain.analytics.slowness.recent_timings import (
    LATE_NS,
    PAUSE_NS,
    RELOAD_NS,
    RecentTimings,
)
from pulsetrain.stream.queries.queryable import AttemptSteps
from tests.analytics.fleet import fleet
from tests.analytics.slowness.test_load_timings import FakeStore, same

SECOND = 1_000_000_000
RANKS = 4
MOST_BEHIND = 8  # steps of a rank, fewer than the window has: else it is found by a reload alone


class GrowingStore(FakeStore):
    """Holds of a fleet the cells (step, rank) that have come so far. A cell's phases may come after it."""

    def __init__(self, columns):
        super().__init__(columns)
        cells = list(zip(columns["step"].tolist(), columns["rank"].tolist(), strict=True))
        self.row_of = {cell: i for i, cell in enumerate(cells)}
        self.have = {"steps": np.zeros(len(cells), bool), "parts": np.zeros(len(cells), bool)}
        self.whole = columns

    def come(self, *cells, parts=True):
        rows = [self.row_of[cell] for cell in cells]
        self.have["steps"][rows] = True
        self.have["parts"][rows] |= parts

    def query(self, sql, params=None):
        if "FROM events" in sql:
            return pa.table({"node": [], "detail": []})
        if "LIMIT 1) AS first_step" in sql:
            self.asked.append((sql, params))
            steps = self.whole["step"][self.have["steps"]]
            found = [] if not len(steps) else [(0, int(steps.min()), int(steps.max()))]
            names = ("attempt", "first_step", "last_step")
            return pa.table({n: [row[i] for row in found] for i, n in enumerate(names)})
        kind = "parts" if "span_rollup" in sql else "steps"
        keep = self.have[kind].copy()
        if "first" in (params or {}):
            keep &= (self.whole["step"] >= params["first"]) & (self.whole["step"] <= params["last"])
        self.columns = {name: values[keep] for name, values in self.whole.items()}
        if "DISTINCT" in sql and not keep.any():
            return pa.table({"phase": pa.array([], pa.string()), "category": pa.array([], pa.string())})
        return super().query(sql, params)


def anew(store, window):
    recent = RecentTimings("j", 0, window=window)
    return recent.look(store, 0)


def whole_steps(store, *steps):
    for step in steps:
        store.come(*((step, rank) for rank in range(RANKS)))


@settings(max_examples=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
def test_whatever_comes_late_the_timings_are_those_of_a_store_read_anew(data):
    steps, window = 36, data.draw(st.integers(MOST_BEHIND + 2, 36), label="window")
    store = GrowingStore(fleet(ranks=RANKS, steps=steps))
    late = data.draw(
        st.lists(st.integers(0, MOST_BEHIND), min_size=RANKS, max_size=RANKS), label="steps behind"
    )
    spans_late = data.draw(st.booleans(), label="phases come a look later")
    recent, now_ns = RecentTimings("j", 0, window=window), 0
    for newest in range(steps + max(late)):
        for rank in range(RANKS):
            step = newest - late[rank]
            if 0 <= step < steps:
                store.come((step, rank), parts=not spans_late)
            if spans_late and 0 <= step - 1 < steps:
                store.come((step - 1, rank))
        now_ns += data.draw(st.integers(0, 2), label="seconds") * SECOND
        if data.draw(st.booleans(), label="look"):
            found = recent.look(store, now_ns)
            expected = anew(store, window)
            assert (found is None) == (expected is None)
            if found is not None:
                same(found, expected)
                assert found.steps.tolist() == expected.steps.tolist()


def test_a_look_asks_only_for_steps_that_may_be_new():
    store = GrowingStore(fleet(ranks=RANKS, steps=100))
    recent = RecentTimings("j", 0, window=64)
    whole_steps(store, *range(90))
    recent.look(store, 0)
    recent.look(store, LATE_NS - 1)
    recent.look(store, LATE_NS)
    whole_steps(store, 90)
    store.asked.clear()
    same(recent.look(store, LATE_NS + SECOND), anew(store, 64))
    asked = [params["first"] for sql, params in store.asked[:2]]
    assert min(asked) >= 89
    assert len(store.asked) < 12  # of both looks
    assert recent.last_step == 90


def test_nothing_new_is_seen_by_one_query():
    store = GrowingStore(fleet(ranks=RANKS, steps=20))
    whole_steps(store, *range(20))
    recent = RecentTimings("j", 0, window=64)
    for seconds in (0, 10, 20, 24, 28):
        recent.look(store, seconds * SECOND)
    store.asked.clear()
    found = recent.look(store, 29 * SECOND)
    assert not recent.changed
    assert len(store.asked) == 1
    same(found, anew(store, 64))


def test_what_comes_after_all_patience_is_seen_at_the_reload():
    store = GrowingStore(fleet(ranks=RANKS, steps=103))
    for step in range(100):
        store.come(*((step, rank) for rank in range(RANKS) if not (rank == 3 and step == 40)))
    recent = RecentTimings("j", 0, window=90)
    for look in range(3):
        whole_steps(store, 100 + look)
        recent.look(store, look * LATE_NS // 2)
    assert recent.unsettled > 40
    store.come((40, 3))
    for now_ns in range(LATE_NS, RELOAD_NS, PAUSE_NS // 2):
        assert np.isnan(recent.look(store, now_ns).numbers["duration_ns"]).any()
    same(recent.look(store, RELOAD_NS + SECOND), anew(store, 90))


@pytest.mark.parametrize("what", ["rank", "pause"])
def test_a_new_rank_or_a_pause_is_read_anew(what):
    store = GrowingStore(fleet(ranks=RANKS, steps=30))
    for step in range(20):
        store.come(*((step, rank) for rank in range(RANKS - 1)))
    recent = RecentTimings("j", 0, window=64)
    recent.look(store, 0)
    assert recent.reloads == 1
    store.come((20, 3) if what == "rank" else (20, 0))
    same(recent.look(store, SECOND if what == "rank" else PAUSE_NS), anew(store, 64))
    assert recent.reloads == 2


def test_steps_settle_after_the_clock_was_set_back():
    store = GrowingStore(fleet(ranks=RANKS, steps=100))
    recent = RecentTimings("j", 0, window=64)
    whole_steps(store, *range(90))
    hour_ns = 3600 * SECOND
    for now_ns in (hour_ns, hour_ns + LATE_NS // 2, 0, LATE_NS // 2):
        recent.look(store, now_ns)
    whole_steps(store, 90)
    same(recent.look(store, LATE_NS), anew(store, 64))
    assert recent.unsettled == 90


def test_an_attempt_without_a_step_has_no_timings_and_an_error_makes_the_next_look_read_everything():
    store = GrowingStore(fleet(ranks=RANKS, steps=30))
    recent = RecentTimings("j", 0, window=64)
    assert recent.look(store, 0) is None
    assert recent.last_step == -1
    whole_steps(store, 0, 1, 2)
    recent.look(store, SECOND)
    with pytest.raises(AttributeError):
        recent.look(None, 2 * SECOND)
    reloads = recent.reloads
    same(recent.look(store, 3 * SECOND), anew(store, 64))
    assert recent.reloads == reloads + 1


def test_a_load_of_the_same_steps_is_the_same():
    store = GrowingStore(fleet(ranks=RANKS, steps=30))
    whole_steps(store, *range(30))
    steps = AttemptSteps(job="j", attempt=0, first=10, last=29)
    same(anew(store, 20), load_timings.load(store, steps, first_step=0, now_ns=0))


def test_a_loss_that_was_not_finite_is_told_though_a_look_failed_meanwhile(monkeypatch):
    columns = fleet(ranks=RANKS, steps=300)
    columns["loss"] = np.where(columns["step"] == 60, np.nan, columns["loss"])
    store, recent = GrowingStore(columns), RecentTimings("j", 0, window=20)
    whole_steps(store, *range(40))
    recent.look(store, 0)
    whole_steps(store, *range(40, 300))
    with monkeypatch.context() as broken:
        broken.setattr(store, "query", lambda sql, params=None: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            recent.look(store, SECOND)
    assert recent.look(store, 2 * SECOND).skipped == tuple((60, rank) for rank in range(RANKS))


def test_the_newest_loss_of_a_rank_that_is_far_behind_is_told_while_it_is_not_finite():
    """A learner beside actors that step by themselves: its tenth step comes with their two hundredth."""
    columns = fleet(ranks=RANKS, steps=400)
    columns["loss"] = np.where((columns["rank"] == 3) & (columns["step"] == 9), np.nan, columns["loss"])
    store, recent = GrowingStore(columns), RecentTimings("j", 0, window=64)
    store.come(*((step, rank) for step in range(200) for rank in range(3)))
    store.come(*((step, 3) for step in range(10)))
    assert recent.look(store, 0).skipped == ((9, 3),)
    store.come((200, 0), (10, 3))
    recent.look(store, SECOND)
    assert recent.look(store, RELOAD_NS).skipped == ()
