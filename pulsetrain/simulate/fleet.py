"""What a fleet is worth over months, by each way to go on after failures.

(1) A trace says which devices are away when. (2) A strategy makes of each state a capacity in full replicas.
(3) Each failure and each return stops the job for a while. (4) A job of a fixed batch waits while the
capacity is too small. Failures of idle domains stop it as well. More power is not counted as a cost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.elastic.strategies import Ratios, Strategy, fleet_capacity, spare_domains
from pulsetrain.simulate.fleet_plan import FleetPlan
from pulsetrain.simulate.fleet_trace import FleetTimeline, failure_trace, timeline

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class StrategyResult:
    """One strategy over the whole trace. Ratios compare with the job on a fleet that never fails.

    `throughput_ratio` is the mean capacity. `ettr` is the share of time in which the job trains.
    `goodput_ratio` is the work done: capacity while it trains. `cost_ratio` is paid device-hours over
    useful ones, without spares or failures 1, and None if nothing was done. `lost_device_days` were paid
    and did no useful work. `spares_needed` is how many domains in reserve the worst moment of the trace
    takes to keep the whole batch.
    """

    strategy: str
    throughput_ratio: float
    ettr: float
    goodput_ratio: float
    cost_ratio: float | None
    lost_device_days: float
    spares_needed: int

    def as_row(self) -> dict[str, str]:
        """For people."""
        return {
            "strategy": self.strategy,
            "throughput": f"{self.throughput_ratio:.2%}",
            "ettr": f"{self.ettr:.2%}",
            "goodput": f"{self.goodput_ratio:.2%}",
            "cost": "-" if self.cost_ratio is None else f"{self.cost_ratio:.3f}",
            "lost device days": f"{self.lost_device_days:,.0f}",
            "spares needed": str(self.spares_needed),
        }


@dataclass(frozen=True, kw_only=True)
class FleetResult:
    """All strategies on one trace. `failed_ratio` is the share of devices that are away, mean and worst."""

    failures: int
    failed_ratio: float
    worst_failed_ratio: float
    strategies: tuple[StrategyResult, ...]

    def as_json(self) -> dict[str, object]:
        """All fields, with plain JSON types."""
        return {**asdict(self), "strategies": [asdict(each) for each in self.strategies]}


def simulate_fleet(plan: FleetPlan, *, seed: int = 0) -> FleetResult:
    """Every strategy on the same trace, which depends on the plan and the seed alone."""
    states = timeline(plan, failure_trace(plan, seed))
    lengths = np.diff(states.since, append=plan.days)
    away = states.failed_ratio(plan.degree)
    return FleetResult(
        failures=int(states.is_failure.sum()),
        failed_ratio=float(away @ lengths / plan.days),
        worst_failed_ratio=float(away.max()),
        strategies=tuple(_judge(plan, strategy, states, lengths) for strategy in Strategy),
    )


def _judge(
    plan: FleetPlan, strategy: Strategy, states: FleetTimeline, lengths: NDArray[np.float64]
) -> StrategyResult:
    capacity = fleet_capacity(_with_spares(plan, strategy), plan.shape, states.domains)
    share = usable_share(plan, strategy, capacity)
    training = np.where(share > 0, training_days(plan, states), 0.0)
    goodput = float(share @ training / plan.days)
    devices = plan.domains * plan.degree
    return StrategyResult(
        strategy=strategy.value,
        throughput_ratio=float(share @ lengths / plan.days),
        ettr=float(training.sum() / plan.days),
        goodput_ratio=goodput,
        cost_ratio=devices / (goodput * plan.devices) if goodput else None,
        lost_device_days=plan.days * (devices - goodput * plan.devices),
        spares_needed=_spares_needed(plan, strategy, states, capacity),
    )


def _with_spares(plan: FleetPlan, strategy: Strategy) -> Strategy:
    """A job that waits replaces what failed while it has spares, so healthy replicas are its capacity."""
    return Strategy.DP_DROP if strategy is Strategy.WAIT else strategy


def usable_share(plan: FleetPlan, strategy: Strategy, capacity: Ratios) -> Ratios:
    """Share of the job's global batch that the capacity computes. Never above 1.

    It is all or nothing for a fixed batch, and for a job that waits.
    """
    share = np.minimum(1.0, capacity / plan.replicas)
    if plan.fixed_batch or strategy is Strategy.WAIT:
        share = np.where(share > 1 - 1e-9, 1.0, 0.0)
    return share


def training_days(plan: FleetPlan, states: FleetTimeline) -> NDArray[np.float64]:
    """Days of each state in which the job is not stopped by a failure or a return."""
    stops = np.where(states.is_failure, plan.failure_stop_s, plan.return_stop_s) / DAY_S
    stops[0] = 0.0
    until = np.maximum.accumulate(states.since + stops)
    ends = np.append(states.since[1:], plan.days)
    left: NDArray[np.float64] = np.maximum(0.0, ends - until)
    return left


def _spares_needed(plan: FleetPlan, strategy: Strategy, states: FleetTimeline, capacity: Ratios) -> int:
    """Spares at the worst moment, those that the fleet has included."""
    row = states.domains[int(np.argmin(capacity))].copy()
    healthy = min(int(row[0]), plan.spare_domains)
    row[0] -= healthy
    more = spare_domains(_with_spares(plan, strategy), plan.shape, row, plan.replicas)
    return max(0, more - healthy + plan.spare_domains)
