"""One job of a simulated pool: what it holds, what it has done, and what it lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsetrain.recovery.pool.account import ShareAccount
from pulsetrain.recovery.pool.demand import GUARANTEE, JobDemand
from pulsetrain.simulate.schedule_trace import Arrival


@dataclass(kw_only=True)
class Losses:
    """Device-seconds that a job's devices did not work: it stood still, had none, or had fewer than all."""

    paused: float = 0.0
    waited: float = 0.0
    shrunk: float = 0.0


@dataclass(kw_only=True)
class ScheduledJob:
    """A job between its arrival and its end. `until_s` is the time up to which its work is counted.

    `version` tells a predicted end from one that has changed since.
    """

    arrival: Arrival
    placed: Mapping[str, int] = field(default_factory=dict)
    account: ShareAccount | None = None
    promised: bool = False
    paused_until_s: float = 0.0
    changed_s: float | None = None
    until_s: float = 0.0
    left: float = 0.0
    useful: float = 0.0
    version: int = 0
    lost: Losses = field(default_factory=Losses)

    @classmethod
    def of(cls, arrival: Arrival) -> ScheduledJob:
        """A job that has just arrived."""
        work = arrival.devices * arrival.ideal_s
        account = None if arrival.demand.guaranteed else ShareAccount(arrival.at_s)
        return cls(arrival=arrival, left=work, until_s=arrival.at_s, account=account)

    @property
    def rate(self) -> int:
        """Devices that work while it does not stand still."""
        demand, size = self.arrival.demand, sum(self.placed.values())
        return size * demand.unit if size and demand.fit(size) == size else 0

    def advance(self, now_s: float) -> None:
        """Count what was done until now."""
        rate, devices = self.rate, self.arrival.devices
        begins_s = min(now_s, max(self.until_s, self.paused_until_s))
        stood_s, ran_s = begins_s - self.until_s, now_s - begins_s
        if rate:
            self.lost.paused += stood_s * devices
            self.lost.shrunk += ran_s * (devices - rate)
        else:
            self.lost.waited += (stood_s + ran_s) * devices
        self.left -= rate * ran_s
        self.useful += rate * ran_s
        if self.account is not None:
            self.account.add(begins_s, 0.0)
            self.account.add(now_s, rate / devices)
        self.until_s = now_s

    def ends_s(self) -> float:
        """When it will be done, if nothing changes."""
        rate = self.rate
        return max(self.until_s, self.paused_until_s) + max(0.0, self.left) / rate if rate else math.inf

    def pause(self, until_s: float) -> None:
        """It stands still until then."""
        self.paused_until_s = max(self.paused_until_s, until_s)

    def demand(self, now_s: float, margin: float) -> JobDemand:
        """What the policy is told. Of a promised job everything until now must be counted."""
        wants = self.arrival.demand
        if not self.placed and not wants.guaranteed and self.changed_s is None:
            return wants
        may_lose_s = math.inf
        if self.account is not None and wants.guaranteed:
            floor_share = wants.floor(margin) / wants.most
            may_lose_s = self.account.may_lose_s(GUARANTEE[wants.tier], floor_share)
        return JobDemand(
            name=wants.name,
            tier=wants.tier,
            unit=wants.unit,
            least=wants.least,
            most=wants.most,
            order=wants.order,
            placed=self.placed,
            promised=self.promised,
            may_lose_s=may_lose_s,
            still_s=math.inf if self.changed_s is None else now_s - self.changed_s,
        )
