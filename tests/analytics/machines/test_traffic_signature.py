"""A job's traffic is learned, and a drop, a fluctuation and a stop are told apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.machines.traffic_signature import judge


def steps(seconds=200, period=8, seed=0, rate=1e9, noise=0.02):
    """Bytes of each second of a job whose steps last `period` seconds and talk in half of them."""
    rng = np.random.default_rng(seed)
    phase = np.arange(seconds) % period < period / 2
    return rate * phase * (1 + noise * rng.standard_normal(seconds))


def now(moved):
    seconds = np.arange(len(moved) + 1.0)
    return judge(seconds, np.concatenate(([0.0], np.cumsum(moved))))


def changed(kind, moved, last=60):
    """The same traffic with one change in its last seconds."""
    moved = moved.copy()
    late = np.arange(last)
    moved[-last:] *= {
        "steady": np.ones(last),
        "drop": np.full(last, 0.3),
        "fluctuation": np.where(late // 12 % 2, 0.2, 1.8),
        "stop": np.zeros(last),
    }[kind]
    return moved


KINDS = ("steady", "drop", "fluctuation", "stop")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("period", [1, 4, 8, 13])
def test_changes_are_told_apart_whatever_the_length_of_a_step(kind, period):
    assert now(changed(kind, steps(period=period))).state == kind


def test_the_period_of_the_steps_is_learned():
    signature = now(steps(period=8)).signature
    assert signature.period_s == 8
    assert signature.bytes_per_s == pytest.approx(0.5e9, rel=0.05)
    assert 3 <= signature.longest_quiet_s <= 5
    assert now(steps(period=1)).signature.period_s is None


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(KINDS), st.floats(1e-3, 1e3), st.integers(0, 10**6), st.integers(0, 5))
def test_neither_the_speed_of_the_link_nor_the_time_of_day_matters(kind, factor, later, seed):
    moved = changed(kind, steps(seed=seed))
    seconds = np.arange(len(moved) + 1.0)
    total = np.concatenate(([0.0], np.cumsum(moved)))
    assert judge(seconds + later, factor * total + 5e9).state == judge(seconds, total).state


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 14), st.floats(0.0, 0.08))
def test_a_steady_job_is_never_suspected(seed, period, noise):
    assert now(steps(seed=seed, period=period, noise=noise)).state == "steady"


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 0.5), st.floats(0.0, 1.0))
def test_less_traffic_is_never_the_milder_state(share, more):
    order = {"steady": 0, "fluctuation": 1, "drop": 2, "stop": 3}
    moved = steps(period=1)
    less, much = moved.copy(), moved.copy()
    less[-40:] *= share
    much[-40:] *= share + more * (1 - share)
    assert order[now(less).state] >= order[now(much).state]


def test_a_pause_as_long_as_earlier_ones_is_no_stop():
    moved = np.concatenate([steps(100, 1), np.zeros(20), steps(100, 1), np.zeros(25)])
    assert now(moved).state != "stop"
    assert now(np.concatenate([moved, np.zeros(50)])).state == "stop"


def test_too_little_is_known_at_first():
    for count in (0, 1, 2, 30):
        assert now(np.ones(count)).state == "learning"
    assert now(np.zeros(300)).state == "learning"


def test_a_card_that_was_reset_did_not_stop():
    total = np.cumsum(steps(200, 1))
    total[100:] -= total[99]
    assert judge(np.arange(200.0), total).state == "steady"


def test_what_was_before_the_first_traffic_is_no_pause():
    quiet_first = np.concatenate((np.full(40, 1e3), np.full(80, 1e9), np.full(12, 1e3)))
    assert now(quiet_first).state == "stop"
    paused = np.concatenate((np.full(40, 1e9), np.full(20, 1e3), np.full(80, 1e9), np.full(12, 1e3)))
    assert now(paused).state != "stop"
