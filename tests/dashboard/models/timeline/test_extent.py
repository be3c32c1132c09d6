"""Which steps are shown, and from when to when."""

from __future__ import annotations

from pulsetrain.dashboard.models.timeline.extent import extent_of, steps_of
from tests.dashboard.models.timeline.rows import MS, row, spans

HOUR_NS = 3_600_000 * MS


def extent(*rows):
    found = spans(*rows)
    return extent_of(found, steps_of(found))


def step(number, start, length=100 * MS, **values):
    return row(start, length, step=number, **values)


def test_steps_reach_from_their_first_start_to_their_last_end():
    rows = (step(1, 0), step(1, 20 * MS, rank=1), step(2, 130 * MS), step(1, 500 * MS, attempt=2))
    found = steps_of(spans(*rows))
    assert [(s.attempt, s.step, s.start_ns, s.end_ns) for s in found] == [
        (1, 1, 0, 120 * MS), (1, 2, 130 * MS, 230 * MS), (2, 1, 500 * MS, 600 * MS),
    ]  # fmt: skip


def test_a_timeline_shows_all_its_steps():
    found = extent(step(1, 0), step(2, 100 * MS))
    assert found.view == found.full
    assert found.view[0] == 0
    assert 200 * MS <= found.view[1] < 205 * MS
    assert not found.hung


def test_a_hang_of_hours_leaves_the_room_to_the_last_real_step():
    found = extent(step(7, 0), step(8, 100 * MS), step(9, 210 * MS, 5 * HOUR_NS, open=True))
    assert found.hung
    assert found.view[0] == 100 * MS
    assert found.view[1] < 250 * MS
    assert found.full[1] < 300 * MS


def test_an_operation_that_has_just_begun_is_no_hang():
    found = extent(step(7, 0), step(8, 100 * MS), step(9, 200 * MS, 50 * MS, open=True))
    assert not found.hung
    assert found.view[0] == 0
    assert found.view[1] > 200 * MS


def test_a_hang_in_the_first_step_shows_that_step():
    found = extent(step(0, 40, HOUR_NS, open=True), step(0, 60, HOUR_NS, rank=1, open=True))
    assert found.hung
    assert found.view[0] == 40
    assert found.view[1] > 60


def test_the_view_is_that_of_the_newest_attempt():
    found = extent(step(8, 0), step(8, 60_000 * MS, attempt=2), step(9, 60_100 * MS, attempt=2))
    assert found.full[0] == 0
    assert found.view[0] == 60_000 * MS


def test_what_an_older_attempt_left_open_is_no_hang_of_the_newest():
    found = extent(step(8, 0, HOUR_NS, open=True), step(8, 60_000 * MS, attempt=2))
    assert not found.hung
