"""Jobs and failures of a simulated pool."""

from __future__ import annotations

import pytest

from pulsetrain.recovery.pool.demand import Tier
from pulsetrain.simulate.schedule_plan import SchedulePlan
from pulsetrain.simulate.schedule_trace import DAY_S, arrivals, failures

PLAN = SchedulePlan(devices=800, jobs=2000, largest_devices=64, shortest_hours=1e-6)


def test_each_tier_offers_its_load():
    jobs = arrivals(PLAN, 0)
    for tier, load in PLAN.loads.items():
        work = sum(job.devices * job.ideal_s for job in jobs if job.demand.tier is tier)
        assert work == pytest.approx(load * PLAN.devices * PLAN.days * DAY_S)
    assert {job.demand.tier for job in jobs} == set(Tier)


def test_jobs_fit_nodes_and_come_in_order():
    jobs = arrivals(PLAN, 3)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    for job in jobs:
        assert job.demand.unit <= PLAN.devices_per_node
        assert job.devices <= PLAN.largest_devices
        assert job.demand.fit(job.demand.least) == job.demand.least


def test_a_node_fails_again_only_after_it_is_back():
    plan = SchedulePlan(devices=80, largest_devices=8, failures_per_node_day=1.0, repair_days=2.0)
    back_s = {}
    found = failures(plan, 0)
    for failure in found:
        assert failure.at_s >= back_s.get(failure.node, 0.0)
        back_s[failure.node] = failure.at_s + failure.away_s
    assert 50 <= len(found) <= 150  # ten nodes, thirty days: once in three days at most
