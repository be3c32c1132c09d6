"""The fleet simulator against published bands, a closed form, and its own laws."""

from __future__ import annotations

import doctest
import time
from dataclasses import replace

import numpy as np
import pytest

from pulsetrain.elastic import strategies
from pulsetrain.elastic.strategies import Strategy, fleet_capacity, spare_domains
from pulsetrain.simulate import fleet_estimate
from pulsetrain.simulate.fleet import simulate_fleet
from pulsetrain.simulate.fleet_estimate import availability, expected_throughput
from pulsetrain.simulate.fleet_plan import FleetPlan
from pulsetrain.simulate.fleet_trace import failure_trace, timeline

PAPER = FleetPlan()  # 32,768 devices, TP32, 8 domains to a replica
ELASTIC = (Strategy.DP_DROP, Strategy.NTP, Strategy.NTP_PW)


def states_with(plan, failed_ratio, draws=40):
    """States of the fleet with so many of the devices failed, at random places."""
    random = np.random.default_rng(1)
    devices = plan.domains * plan.degree
    rows = np.zeros((draws, plan.degree + 1), dtype=np.int64)
    for row in rows:
        struck = random.choice(devices, round(failed_ratio * devices), replace=False)
        counts = np.bincount(struck // plan.degree, minlength=plan.domains)
        row += np.bincount(counts, minlength=plan.degree + 1)
    return rows


def by_name(result):
    return {each.strategy: each for each in result.strategies}


def test_published_losses_at_four_failed_devices_in_a_thousand():
    """Published: DP-DROP 12 %, NTP at most 3 %, NTP-PW less than 1 %."""
    states = states_with(PAPER, 4e-3)
    lost = {s: 1 - fleet_capacity(s, PAPER.shape, states).mean() / PAPER.replicas for s in ELASTIC}
    assert lost[Strategy.DP_DROP] == pytest.approx(0.12, abs=0.01)
    assert 0 < lost[Strategy.NTP] <= 0.03
    assert 0 <= lost[Strategy.NTP_PW] < 0.01


def test_published_spares_for_a_fixed_batch():
    """Published: 90, 16 and 0 spare domains. The 90 degraded domains of the first give the other two."""
    row = np.zeros(PAPER.degree + 1, dtype=np.int64)
    row[:3] = PAPER.domains - 90, 86, 4
    needed = [spare_domains(s, PAPER.shape, row, PAPER.replicas) for s in ELASTIC]
    assert needed == [90, 16, 0]


def test_published_availability_of_large_domains():
    assert availability(0.001, 64) == pytest.approx(0.94, abs=0.005)


def test_published_trace_of_fifteen_days():
    """Published: 81 % of the time above 0.1 % of devices down, ~80 % availability at three times the rate."""
    plan = replace(PAPER, days=15.0)
    above = []
    for seed in range(5):
        states = timeline(plan, failure_trace(plan, seed))
        lengths = np.diff(states.since, append=plan.days)
        above.append(lengths[states.failed_ratio(plan.degree) > 0.001].sum() / plan.days)
    assert np.mean(above) == pytest.approx(0.81, abs=0.05)
    often = replace(plan, degree=64, failures_per_device_day=3 * plan.failures_per_device_day)
    dropped = by_name(simulate_fleet(often))["dp-drop"]
    assert dropped.throughput_ratio == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("changes", [{}, {"blast_radius": 4, "local_batch": 16}], ids=["one", "four at once"])
def test_simulation_agrees_with_the_closed_form_within_five_percent(changes):
    plan = replace(PAPER, **changes)
    simulated = by_name(simulate_fleet(plan))
    for strategy in ELASTIC:
        expected = expected_throughput(plan, strategy)
        assert simulated[strategy.value].throughput_ratio == pytest.approx(expected, rel=0.05)
        lost = 1 - simulated[strategy.value].throughput_ratio
        assert lost == pytest.approx(1 - expected, rel=0.25, abs=0.003)  # the loss as well, not only the rest


def test_more_failures_and_larger_blasts_are_never_better_and_each_strategy_beats_the_one_before():
    calm, rough = (
        simulate_fleet(replace(PAPER, days=30.0, **changes))
        for changes in ({}, {"failures_per_device_day": 2e-3, "blast_radius": 4})
    )
    for result in (calm, rough):
        goodput = [each.goodput_ratio for each in result.strategies]
        assert goodput == sorted(goodput)
    for before, after in zip(calm.strategies, rough.strategies, strict=True):
        assert after.goodput_ratio <= before.goodput_ratio
        assert after.ettr <= before.ettr


def test_spares_keep_a_fixed_batch_going_and_are_paid_for():
    plan = replace(PAPER, days=30.0, fixed_batch=True)
    needed = by_name(simulate_fleet(plan))["ntp"].spares_needed
    enough = by_name(simulate_fleet(replace(plan, spare_domains=needed + 16)))["ntp"]
    none = by_name(simulate_fleet(plan))["ntp"]
    assert enough.throughput_ratio == pytest.approx(1.0)
    assert none.throughput_ratio < 0.5
    assert enough.ettr > none.ettr
    assert enough.cost_ratio > 1 + (needed + 16) / 1024


def test_a_fleet_that_never_fails_loses_nothing():
    result = simulate_fleet(replace(PAPER, failures_per_device_day=0.0))
    for each in result.strategies:
        assert (each.throughput_ratio, each.ettr, each.goodput_ratio) == (1.0, 1.0, 1.0)
        assert (each.cost_ratio, each.lost_device_days, each.spares_needed) == (1.0, 0.0, 0)


def test_one_seed_is_one_trace():
    plan = replace(PAPER, days=5.0)
    assert simulate_fleet(plan, seed=3) == simulate_fleet(plan, seed=3)
    assert simulate_fleet(plan, seed=3) != simulate_fleet(plan, seed=4)


def test_devices_are_away_as_often_as_the_trace_says():
    rough = {"failures_per_device_day": 0.02, "blast_radius": 4}
    plan = FleetPlan(devices=512, domains_per_replica=2, days=40.0, **rough)
    trace = failure_trace(plan, 0)
    states = timeline(plan, trace)
    assert (states.domains.sum(axis=1) == plan.domains).all()
    ratios = states.failed_ratio(plan.degree)
    for row in range(0, len(ratios), 37):
        moment = states.since[row]
        struck = trace.device[(trace.failed <= moment) & (trace.returned > moment)]
        away = {device + i for device in struck for i in range(4)}
        assert ratios[row] == pytest.approx(len(away) / 512)


def test_a_hundred_thousand_devices_over_ninety_days_take_less_than_a_minute():
    plan = FleetPlan(devices=100_352)  # 392 replicas of 256
    began = time.perf_counter()
    assert simulate_fleet(plan).failures > 3000
    assert time.perf_counter() - began < 60


def test_examples_in_docstrings_hold():
    assert doctest.testmod(strategies).failed == doctest.testmod(fleet_estimate).failed == 0
