"""The pool on paper: closed forms of small cases, its laws, and the guarantees of a small pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsetrain.recovery.pool.demand import JobDemand, Tier
from pulsetrain.simulate.schedule import SimulatedPool, simulate_schedule
from pulsetrain.simulate.schedule_plan import SchedulePlan
from pulsetrain.simulate.schedule_trace import Arrival, NodeFailure, node_name

HOUR_S = 3600.0
SMALL = SchedulePlan(devices=256, days=4.0, jobs=120, largest_devices=64)
ONE_NODE = SchedulePlan(
    devices=2, devices_per_node=2, largest_devices=2, days=1.0, failures_per_node_day=0.0, reserve_ratio=0.0
)
TWO_NODES = replace(ONE_NODE, devices=4)


def arrival(tier, devices, *, at_s, hours, unit=1, least=None, order=0):
    demand = JobDemand(
        name=f"{tier}-{order}", tier=Tier(tier), unit=unit, least=least or devices, most=devices, order=order
    )
    return Arrival(at_s=at_s, demand=demand, ideal_s=hours * HOUR_S)


def run(plan, *jobs, failed=()):
    pool = SimulatedPool(plan, list(jobs), list(failed))
    pool.run()
    return pool.books


def test_a_job_alone_does_its_ideal_work():
    book = run(ONE_NODE, arrival("premium", 2, at_s=0.0, hours=3))[Tier.PREMIUM]
    assert book.hours == [pytest.approx(1.0)] * 3
    assert (book.useful, book.ended, sum(book.actions.values())) == (pytest.approx(6 * HOUR_S), 1, 1)


def test_a_pre_emption_in_closed_form():
    """Premium waits for the release. Basic waits for premium, for a tick, and for its own pause."""
    plan = ONE_NODE
    basic = arrival("basic", 2, at_s=0.0, hours=4)
    premium = arrival("premium", 2, at_s=HOUR_S, hours=1, order=1)
    books = run(plan, basic, premium)
    [share] = books[Tier.PREMIUM].hours
    assert share == pytest.approx(HOUR_S / (HOUR_S + plan.release_s))
    ends_s = HOUR_S + plan.release_s + HOUR_S
    resumes_s = ends_s + 5.0 + plan.pause_s  # the next tick is 5 s later
    lost = books[Tier.BASIC].lost
    assert lost.waited == pytest.approx(2 * (ends_s + 5.0 - HOUR_S))
    assert lost.paused == pytest.approx(2 * plan.pause_s)
    whole_s = resumes_s + 3 * HOUR_S
    assert sum(books[Tier.BASIC].hours[:-1]) == pytest.approx(4 - books[Tier.BASIC].hours[-1] * (
        1 + (whole_s % HOUR_S) / HOUR_S))  # fmt: skip
    assert books[Tier.BASIC].ended == 1


def test_a_failure_in_closed_form():
    """The job stops for the failure. Another node takes over meanwhile."""
    job = arrival("premium", 1, unit=2, at_s=0.0, hours=5)
    failure = NodeFailure(at_s=1.5 * HOUR_S, node=node_name(0), away_s=1e6)
    book = run(TWO_NODES, job, failed=[failure])[Tier.PREMIUM]
    assert min(book.hours) == pytest.approx(1 - TWO_NODES.failure_stop_s / HOUR_S)
    assert (book.failures, book.actions["migrate"], book.ended) == (1, 1, 1)


def test_a_job_waits_for_the_repair_where_nothing_else_is_there():
    job = arrival("premium", 1, unit=2, at_s=0.0, hours=5)
    failure = NodeFailure(at_s=HOUR_S, node=node_name(0), away_s=HOUR_S)
    book = run(ONE_NODE, job, failed=[failure])[Tier.PREMIUM]
    assert book.hours[:3] == [pytest.approx(1.0), 0.0, pytest.approx(1 - ONE_NODE.pause_s / HOUR_S)]


def test_a_standard_job_shrinks_to_its_floor_in_closed_form():
    plan = replace(ONE_NODE, devices=8, devices_per_node=8, largest_devices=8)
    standard = arrival("standard", 8, at_s=0.0, hours=20, least=1)
    premium = arrival("premium", 2, at_s=2 * HOUR_S, hours=20, order=1)
    books = run(plan, standard, premium)
    assert books[Tier.STANDARD].hours[:2] == [pytest.approx(1.0)] * 2
    assert books[Tier.STANDARD].hours[2] == pytest.approx(0.75 * (1 - plan.pause_s / HOUR_S))
    assert books[Tier.STANDARD].hours[3] == pytest.approx(0.75)
    assert books[Tier.PREMIUM].hours[0] == pytest.approx(1 - plan.release_s / HOUR_S)


@pytest.mark.parametrize("seed", range(3))
def test_guarantees_hold_in_every_hour(seed):
    found = {each.tier: each for each in simulate_schedule(SMALL, seed=seed).tiers}
    assert found["premium"].worst_share >= 0.95
    assert found["standard"].worst_share >= 0.70
    assert found["premium"].hours_below == found["standard"].hours_below == 0
    assert found["basic"].preemptions > 0


def test_same_seed_same_result():
    assert simulate_schedule(SMALL, seed=4) == simulate_schedule(SMALL, seed=4)
    assert simulate_schedule(SMALL, seed=4) != simulate_schedule(SMALL, seed=5)


def test_all_device_time_is_accounted_for():
    """What is used and what was lost make up the ideal work of the time in which jobs were there."""
    result = simulate_schedule(replace(SMALL, failures_per_node_day=0.0), seed=1)
    assert 0 < result.utilisation <= 1
    for tier in result.tiers:
        assert tier.used_ratio <= tier.offered_ratio + 1e-9
        assert tier.offered_ratio - tier.used_ratio <= sum(tier.lost_ratio.values()) + 1e-9


def test_guarantees_cannot_hold_where_a_stop_takes_longer_than_an_hour_allows():
    slow = replace(SMALL, failure_stop_s=510.0, failures_per_node_day=0.5)
    found = {each.tier: each for each in simulate_schedule(slow, seed=0).tiers}
    assert found["premium"].hours_below > 0
