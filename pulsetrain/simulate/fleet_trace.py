"""When which devices of a fleet fail and come back, as a Poisson process of each device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.elastic.strategies import Counts
from pulsetrain.simulate.fleet_plan import FleetPlan


@dataclass(frozen=True, kw_only=True)
class FailureTrace:
    """One row for each failure: when it comes, when its devices are back (both in days), and the first of
    them.

    Rows are in the order of time. A failure takes `blast_radius` devices from `device` on.
    """

    failed: NDArray[np.float64]
    returned: NDArray[np.float64]
    device: NDArray[np.int64]


def failure_trace(plan: FleetPlan, seed: int) -> FailureTrace:
    """A trace that depends on the plan and the seed alone."""
    random = np.random.default_rng(seed)
    devices = plan.domains * plan.degree
    count = int(random.poisson(plan.failures_per_device_day * devices * plan.days))
    failed = np.sort(random.uniform(0, plan.days, count))
    lengths, shares = zip(*plan.repairs, strict=True)
    returned = failed + random.choice(np.array(lengths), size=count, p=np.array(shares))
    struck = random.integers(devices, size=count)
    first = struck // plan.blast_radius * plan.blast_radius
    return FailureTrace(failed=failed, returned=returned, device=first)


@dataclass(frozen=True, kw_only=True)
class FleetTimeline:
    """The state of the fleet from `since[i]` (days) until the next row.

    `domains[i, k]` counts domains with k failed devices. `is_failure[i]` says whether a failure made the
    row. If not, devices came back, or it is the first row.
    """

    since: NDArray[np.float64]
    is_failure: NDArray[np.bool_]
    domains: Counts

    def failed_ratio(self, degree: int) -> NDArray[np.float64]:
        """Share of the devices that are away."""
        total = self.domains[0].sum() * degree
        ratio: NDArray[np.float64] = self.domains @ np.arange(degree + 1) / total
        return ratio


def timeline(plan: FleetPlan, trace: FailureTrace) -> FleetTimeline:
    """Follow a trace. A device that fails while it is away comes back with the later of both repairs."""
    count = len(trace.failed)
    times = np.concatenate((trace.failed, trace.returned))
    order = np.argsort(times, kind="stable")
    order = order[times[order] < plan.days]
    away = np.zeros(plan.domains * plan.degree, dtype=np.int64)
    domains = np.zeros((len(order) + 1, plan.degree + 1), dtype=np.int64)
    domains[0, 0] = plan.domains
    for row, event in enumerate(order, start=1):
        device = int(trace.device[event % count])
        first = device // plan.degree * plan.degree
        domain = away[first : first + plan.degree]
        before = int(np.count_nonzero(domain))
        away[device : device + plan.blast_radius] += 1 if event < count else -1
        domains[row] = domains[row - 1]
        domains[row, before] -= 1
        domains[row, int(np.count_nonzero(domain))] += 1
    return FleetTimeline(
        since=np.concatenate(([0.0], times[order])),
        is_failure=np.concatenate(([False], order < count)),
        domains=domains,
    )
