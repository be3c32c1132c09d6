"""How long a step takes."""

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.hub.step_times import MOVES, StepTimes


def test_nothing_is_known_before_the_second_move():
    times = StepTimes()
    times.note(-1, 0.0)
    times.note(0, 1.0)
    assert times.median_ns == 0
    times.note(2, 5.0)
    assert times.median_ns == 2_000_000_000


def test_a_counter_that_goes_back_is_no_move():
    times = StepTimes()
    for step, now_s in ((5, 0.0), (6, 1.0), (5, 7.0), (7, 2.0)):
        times.note(step, now_s)
    assert times.median_ns == 1_000_000_000


def test_a_slow_phase_long_ago_is_forgotten():
    times = StepTimes()
    for step in range(3 * MOVES):
        times.note(step, step * 9.0 if step < MOVES else 9.0 * MOVES + (step - MOVES) * 0.5)
    assert times.median_ns == 500_000_000


@given(st.floats(0.01, 100), st.integers(2, 60), st.integers(1, 5))
def test_a_steady_pace_is_found_however_many_steps_pass_between_two_looks(step_s, looks, stride):
    times = StepTimes()
    for look in range(looks):
        times.note(look * stride, look * stride * step_s)
    assert abs(times.median_ns - step_s * 1e9) < step_s * 1e4 + 2
