"""A pool shared by thousands of jobs over weeks, decided by the policy that the hub uses.

Work is counted exactly between events: a job with all its devices does its ideal work, one with fewer does in
proportion, one that stands does none. Decisions come at ticks, and only after something has changed.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import partial

from pulsetrain.core.progress import Report, unseen
from pulsetrain.recovery.pool.account import ShareAccount
from pulsetrain.recovery.pool.decide import PoolAction, decide
from pulsetrain.recovery.pool.demand import Tier
from pulsetrain.simulate.schedule_job import ScheduledJob
from pulsetrain.simulate.schedule_plan import SchedulePlan
from pulsetrain.simulate.schedule_result import ScheduleResult, TierBook, result
from pulsetrain.simulate.schedule_trace import (
    DAY_S,
    Arrival,
    NodeFailure,
    arrivals,
    failures,
    node_name,
)


def simulate_schedule(plan: SchedulePlan, *, seed: int = 0, report: Report = unseen) -> ScheduleResult:
    """The jobs and failures of a seed on the pool of a plan."""
    jobs, failed = arrivals(plan, seed), failures(plan, seed)
    pool = SimulatedPool(plan, jobs, failed)
    pool.run(report)
    return result(plan, jobs, len(failed), pool.books, decisions=pool.decisions)


class SimulatedPool:
    """Events in order of time. `books` collect what jobs of each tier got."""

    def __init__(self, plan: SchedulePlan, jobs: list[Arrival], failed: list[NodeFailure]) -> None:
        self.plan = plan
        self.books = {tier: TierBook(tier=tier) for tier in Tier}
        self.decisions = 0
        self._slots = {node_name(index): plan.devices_per_node for index in range(plan.nodes)}
        self._jobs: dict[str, ScheduledJob] = {}
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._tick_s = math.inf
        self._wake_s = math.inf
        for job in jobs:
            self._at(job.at_s, partial(self._arrives, job))
        for failure in failed:
            self._at(failure.at_s, partial(self._fails, failure))

    def run(self, report: Report = unseen) -> None:
        """Until the last day ends."""
        end_s = self.plan.days * DAY_S
        while self._events and self._events[0][0] < end_s:
            time_s, _, happens = heapq.heappop(self._events)
            happens(time_s)
            report(time_s / DAY_S)
        for job in self._jobs.values():
            job.advance(end_s)
            self.books[job.arrival.demand.tier].close(job)

    def _at(self, time_s: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), happens))

    def _changed(self, now_s: float) -> None:
        """Decide at the next tick."""
        tick_s = math.ceil(now_s / self.plan.tick_s) * self.plan.tick_s
        if tick_s < self._tick_s:
            self._tick_s = tick_s
            self._at(tick_s, self._tick)

    def _arrives(self, arrival: Arrival, now_s: float) -> None:
        self._jobs[arrival.demand.name] = ScheduledJob.of(arrival)
        self._changed(now_s)

    def _fails(self, failure: NodeFailure, now_s: float) -> None:
        if self._slots.pop(failure.node, None) is None:
            return
        for job in self._jobs.values():
            if failure.node in job.placed:
                job.advance(now_s)
                job.pause(now_s + max(self.plan.failure_stop_s, self.plan.tick_s))
                self.books[job.arrival.demand.tier].failures += 1
        self._at(now_s + failure.away_s, partial(self._returns, failure.node))
        self._changed(now_s)

    def _returns(self, node: str, now_s: float) -> None:
        self._slots[node] = self.plan.devices_per_node
        self._changed(now_s)

    def _ends(self, job: ScheduledJob, version: int, now_s: float) -> None:
        if job.version != version:
            return
        job.advance(now_s)
        del self._jobs[job.arrival.demand.name]
        self.books[job.arrival.demand.tier].close(job, ended=True)
        self._changed(now_s)

    # -- decisions ----------------------------------------------------------------------------------------

    def _tick(self, now_s: float) -> None:
        self._tick_s = math.inf
        self.decisions += 1
        prices = self.plan.prices
        for job in self._jobs.values():
            if job.promised:
                job.advance(now_s)
        demands = [job.demand(now_s, prices.margin) for job in self._jobs.values()]
        decision = decide(self._slots, demands, prices)
        for name in decision.promised:
            self._promise(self._jobs[name], now_s)
        released = _released(decision.actions)
        for action in decision.actions:
            self._carry_out(action, released, now_s)
        if decision.waiting or any(job.rate < job.arrival.devices for job in self._jobs.values()):
            self._wake(now_s + prices.grow_after_s)

    def _wake(self, at_s: float) -> None:
        """Look again once jobs were left alone for long enough, also if nothing happens before."""
        if self._wake_s < at_s:
            return
        self._wake_s = at_s
        self._at(at_s, self._awake)

    def _awake(self, now_s: float) -> None:
        self._wake_s = math.inf
        self._changed(now_s)

    def _promise(self, job: ScheduledJob, now_s: float) -> None:
        if job.promised:
            return
        job.promised = True
        waited_s = now_s - job.arrival.at_s
        at_once = waited_s <= self.plan.tick_s
        job.account = ShareAccount(job.arrival.at_s if at_once else now_s)
        job.account.add(now_s, 0.0)
        self.books[job.arrival.demand.tier].promise_waits_s.append(0.0 if at_once else waited_s)

    def _carry_out(self, action: PoolAction, released: set[str], now_s: float) -> None:
        job, plan = self._jobs[action.job], self.plan
        job.advance(now_s)
        first = job.changed_s is None
        job.placed, job.changed_s = action.after, now_s
        self.books[job.arrival.demand.tier].actions[action.what if not first else "launch"] += 1
        if action.after:
            waits = any(
                node in released and blocks > action.before.get(node, 0)
                for node, blocks in action.after.items()
            )
            begins_s = now_s + (plan.release_s if waits else 0.0)
            job.pause(begins_s + (0.0 if first else plan.pause_s))
        job.version += 1
        ends_s = job.ends_s()
        if ends_s < math.inf:
            self._at(ends_s, partial(self._ends, job, job.version))


def _released(actions: tuple[PoolAction, ...]) -> set[str]:
    """Nodes on which a job gives devices up."""
    less: Counter[str] = Counter()
    for action in actions:
        for node, blocks in action.before.items():
            if action.after.get(node, 0) < blocks:
                less[node] += 1
    return set(less)
