"""What a fleet is worth over months, by expectation instead of a trace."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pulsetrain.elastic.strategies import Strategy, replica_ratios
from pulsetrain.simulate.fleet_plan import FleetPlan


def availability(failed_ratio: float, degree: int) -> float:
    """Share of domains of `degree` devices without a failed one, where devices fail independently.

    >>> round(availability(0.001, 64), 3)
    0.938
    """
    return float((1 - failed_ratio) ** degree)


def expected_throughput(plan: FleetPlan, strategy: Strategy, *, moments: int = 100) -> float:
    """Mean capacity that `simulate_fleet` finds for `dp-drop`, `ntp` and `ntp-pw`, by expectation.

    Failures that are not repaired yet are Poisson in number, so the failures of a domain are too. The
    expected domains are then packed as those of a trace. Without spares, and with a batch that may shrink.
    """
    ratios = replica_ratios(strategy, plan.shape)
    blocks = plan.degree // plan.blast_radius
    total = 0.0
    for moment in (np.arange(moments) + 0.5) * plan.days / moments:
        down = 1 - np.exp(-plan.failures_per_device_day * plan.blast_radius * _mean_open_days(plan, moment))
        at_least = plan.domains * _binomial_tail(blocks, down)
        worse = np.array([_replicas(plan, mean) for mean in at_least[1:]])
        total += plan.replicas + float(worse @ np.diff(ratios[:: plan.blast_radius]))
    return total / moments / plan.replicas


def _mean_open_days(plan: FleetPlan, day: float) -> float:
    """Failures of a device that are open on `day`, in units of its rate."""
    return sum(share * min(day, length) for length, share in plan.repairs)


def _replicas(plan: FleetPlan, mean: float) -> float:
    """Expected replicas that a Poisson number of domains with this mean fill or begin to fill."""
    if mean < 1e-6:
        return mean
    most = int(mean + 12 * math.sqrt(mean) + 12)
    log_chance = np.arange(most + 1) * math.log(mean) - mean
    log_chance[1:] -= np.cumsum(np.log(np.arange(1, most + 1)))
    filled = -(-np.arange(most + 1) // plan.domains_per_replica)
    return min(float(plan.replicas), float(np.exp(log_chance) @ filled))


def _binomial_tail(trials: int, chance: float) -> NDArray[np.float64]:
    """Probability of k or more of `trials`, for k from 0."""
    exactly = np.zeros(trials + 1)
    exactly[0] = (1 - chance) ** trials
    for k in range(trials):
        exactly[k + 1] = exactly[k] * (trials - k) / (k + 1) * chance / (1 - chance)
    tail: NDArray[np.float64] = np.cumsum(exactly[::-1])[::-1]
    return tail
