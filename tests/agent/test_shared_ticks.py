"""Nodes of a job send at the same moments, however their loops began."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.agent.shared_ticks import SharedTicks

NOW_S = 1_800_000_000.0


def next_tick_s(now_s: float, period_s: float, wanted_s: float, offset_s: float = 0.0) -> float:
    ticks = SharedTicks(period_s=period_s, offset_s=offset_s, now_s=lambda: now_s)
    return now_s + ticks.wait_s(wanted_s)


@settings(max_examples=40)
@given(st.floats(0, 100), st.floats(0.2, 1.5))
def test_a_tick_is_about_as_far_away_as_it_is_wanted(after_s, wanted_s):
    wait_s = SharedTicks(period_s=1.5, now_s=lambda: NOW_S + after_s).wait_s(wanted_s)
    assert wanted_s / 2 - 1e-6 <= wait_s <= 3 * wanted_s + 1e-6


@pytest.mark.parametrize("wanted_s", [1.5, 1.3, 0.8])
def test_nodes_that_wake_apart_meet_at_the_same_tick(wanted_s):
    ticks = {next_tick_s(NOW_S + late_s, 1.5, wanted_s) for late_s in (0.01, 0.2, 0.7)}
    assert len({round(tick, 3) for tick in ticks}) == 1


def test_nodes_that_send_twice_as_often_also_send_with_the_others():
    assert next_tick_s(NOW_S + 0.76, 1.5, 0.75) == pytest.approx(next_tick_s(NOW_S + 0.01, 1.5, 1.5))


def test_what_must_be_soon_is_not_put_off():
    assert next_tick_s(NOW_S, 1.5, 0.05) == pytest.approx(NOW_S + 0.05)


def test_few_nodes_send_together_and_many_are_spread_over_the_period():
    few = [SharedTicks.of_node(f"n{i}", 8, 1.5).offset_s for i in range(8)]
    many = [SharedTicks.of_node(f"n{i}", 4096, 1.5).offset_s for i in range(4096)]
    assert max(few) - min(few) < 0.02
    assert max(many) - min(many) > 1.4
    assert SharedTicks.of_node("n1", 8, 1.5).offset_s == few[1]
