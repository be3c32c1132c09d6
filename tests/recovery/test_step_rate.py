"""How fast a job steps."""

import pytest

from pulsetrain.recovery.step_rate import SPAN_S, StepRate


def rate_of(*seen):
    rate = StepRate()
    for now_s, step in seen:
        rate.note(step, now_s)
    return rate.per_s


def test_without_two_looks_nothing_is_known():
    assert rate_of() == rate_of((0.0, 5)) == 0.0


def test_only_the_last_seconds_count():
    old = [(float(s), 100 * s) for s in range(5)]
    new = [(20.0 + s, 400 + 2 * s) for s in range(int(SPAN_S))]
    assert rate_of(*old, *new) == pytest.approx(2.0)


@pytest.mark.parametrize("between", [[], [(2.0, -1)]])
def test_a_new_attempt_that_goes_on_from_a_checkpoint_is_no_leap(between):
    assert rate_of((0.0, 200), (1.0, 240), *between, (3.0, 150), (4.0, 154)) == pytest.approx(4.0)


def test_the_first_step_that_is_heard_of_is_no_leap():
    assert rate_of((0.0, -1), (0.25, 9000), (1.25, 9003)) == pytest.approx(3.0)
