"""What happens to a simulated pool: jobs arrive and nodes fail, by plan and seed alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pulsetrain.recovery.pool.demand import HOUR_S, JobDemand, Tier
from pulsetrain.simulate.schedule_plan import SchedulePlan

DAY_S = 86400.0
JOBS_BY_TIER = {Tier.PREMIUM: 0.25, Tier.STANDARD: 0.35, Tier.BASIC: 0.40}
SMALL_RATIO = 0.4  # of the jobs fit on a part of a node
SPREAD = 1.0  # of the logarithm of the length of jobs


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A job, when it comes, and how long it takes on all its devices."""

    at_s: float
    demand: JobDemand
    ideal_s: float

    @property
    def devices(self) -> int:
        """All that it can use."""
        return self.demand.most * self.demand.unit


@dataclass(frozen=True, kw_only=True)
class NodeFailure:
    """A node is away from then for so long."""

    at_s: float
    node: str
    away_s: float


def node_name(index: int) -> str:
    """Names sort by number."""
    return f"node-{index:05d}"


def arrivals(plan: SchedulePlan, seed: int) -> list[Arrival]:
    """Jobs in order of arrival. Lengths are scaled so that each tier offers its load."""
    random = np.random.default_rng((seed, 1))
    found: list[Arrival] = []
    at_s = np.sort(random.random(plan.jobs)) * plan.days * DAY_S
    tiers = random.choice(len(JOBS_BY_TIER), plan.jobs, p=list(JOBS_BY_TIER.values()))
    demands = [_demand(plan, random, list(JOBS_BY_TIER)[tier], order) for order, tier in enumerate(tiers)]
    lengths = random.lognormal(0.0, SPREAD, plan.jobs)
    devices = np.array([demand.most * demand.unit for demand in demands])
    for index, load in enumerate(plan.loads.values()):
        mine = tiers == index
        wanted = load * plan.devices * plan.days * DAY_S
        if not mine.any() or not wanted:
            continue
        scale = wanted / float(devices[mine] @ lengths[mine])
        found += [
            Arrival(
                at_s=float(at_s[order]),
                demand=demands[order],
                ideal_s=max(plan.shortest_hours * HOUR_S, float(lengths[order] * scale)),
            )
            for order in np.flatnonzero(mine)
        ]
    return sorted(found, key=lambda arrival: arrival.demand.order)


def _demand(plan: SchedulePlan, random: np.random.Generator, tier: Tier, order: int) -> JobDemand:
    """A part of a node, or 1, 2, 4, ... nodes: small jobs are more frequent."""
    of_node, name = plan.devices_per_node, f"{tier}-{order}"
    if of_node > 1 and random.random() < SMALL_RATIO:
        unit = 2 ** int(random.integers(0, (of_node - 1).bit_length()))
        return JobDemand(name=name, tier=tier, unit=unit, least=1, most=1, order=order)
    powers = (plan.largest_devices // of_node).bit_length()
    weights = 0.7 ** np.arange(powers)
    most = 2 ** int(random.choice(powers, p=weights / weights.sum()))
    elastic = bool(random.random() < plan.elastic_ratio)
    least = max(1, most // 4) if elastic else most
    return JobDemand(name=name, tier=tier, unit=of_node, least=least, most=most, order=order)


def failures(plan: SchedulePlan, seed: int) -> list[NodeFailure]:
    """Failures of nodes at a constant rate, in order. One that is away cannot fail."""
    random = np.random.default_rng((seed, 2))
    count = int(random.poisson(plan.nodes * plan.failures_per_node_day * plan.days))
    at_s = np.sort(random.random(count)) * plan.days * DAY_S
    nodes = random.integers(0, plan.nodes, count)
    away_s, back_s, found = plan.repair_days * DAY_S, dict[int, float](), []
    for time_s, node in zip(at_s.tolist(), nodes.tolist(), strict=True):
        if back_s.get(node, 0.0) <= time_s:
            back_s[node] = time_s + away_s
            found.append(NodeFailure(at_s=time_s, node=node_name(node), away_s=away_s))
    return found
