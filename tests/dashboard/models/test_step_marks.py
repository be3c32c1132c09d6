"""Where steps lie on an axis of time."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pulsetrain.dashboard.models.step_marks import MOST_ROUNDS, marks, narrower, round_steps

S = 10**9


def looked_up(attempts, steps):
    """What the store says: `attempts` are (first step, last step, first time in s, seconds for a step)."""
    return [
        {"attempt": number, "step": step, "ts_ns": (began + (step - first) * took) * S}
        for number, (first, last, began, took) in enumerate(attempts)
        for step in steps
        if first <= step <= last
    ]


def search(attempts, from_s, to_s):
    """The marks, and how many steps were looked up for them."""
    steps = round_steps(min(a[0] for a in attempts), max(a[1] for a in attempts))
    rows, asked = [], 0
    for _ in range(MOST_ROUNDS):
        rows, asked = looked_up(attempts, steps), asked + len(steps)
        steps = narrower(rows, steps, from_s * S, to_s * S)
        if steps is None:
            break
    return marks(rows, from_s * S, to_s * S), asked


def test_an_hour_of_a_month_has_round_steps_at_their_time():
    found, asked = search([(0, 2_592_000, 0, 1)], 1_000_000, 1_003_600)
    assert [mark.step for mark in found] == list(range(1_000_000, 1_003_601, 500))
    assert {mark.ts_ns for mark in found} == {mark.step * S for mark in found}
    assert asked < 120


def test_steps_that_were_done_twice_are_marked_twice():
    found, _ = search([(0, 500, 0, 1), (400, 900, 700, 1)], 350, 850)
    assert [mark.step for mark in found] == [350, 400, 450, 500, 400, 450, 500, 550]


def test_a_job_that_began_anew_is_not_mistaken_for_its_first_attempt():
    found, _ = search([(0, 10_000, 0, 1), (0, 10_000, 20_000, 1)], 20_100, 20_200)
    assert [mark.step for mark in found] == list(range(100, 201, 20))


@pytest.mark.parametrize("during", [(-90, -30), (20_000, 20_060)])
def test_outside_the_job_nothing_is_marked(during):
    assert search([(0, 10_000, 0, 1)], *during)[0] == []


def test_a_short_job_has_each_of_its_steps():
    assert [mark.step for mark in search([(3, 7, 0, 60)], 0, 1000)[0]] == [3, 4, 5, 6, 7]


@given(
    last=some.integers(0, 10**7),
    took=some.integers(1, 100),
    share=some.floats(0.0, 1.0),
    width=some.integers(1, 10**6),
)
def test_marks_lie_in_the_range_and_are_few(last, took, share, width):
    begin = int(share * last * took)
    found, asked = search([(0, last, 0, took)], begin, begin + width)
    assert all(begin * S <= mark.ts_ns <= (begin + width) * S for mark in found)
    assert len(found) <= 10
    assert asked <= 160
