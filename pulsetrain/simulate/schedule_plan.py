"""A pool of devices over weeks, and the jobs that are offered to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.core.config import load, read_toml
from pulsetrain.core.errors import ConfigError
from pulsetrain.recovery.pool.demand import Prices, Tier

META_FAILURES_PER_NODE_DAY = 6.5e-3
"""Meta's RSC-1: 6.5 failures in 1000 days of a node (arXiv 2410.21680)."""


@dataclass(frozen=True, kw_only=True)
class SchedulePlan:
    """The pool, its failures, and what is offered to it. Times in seconds where the name says so."""

    devices: int = 10000
    """Devices of the pool."""
    devices_per_node: int = 8
    """Devices of a node."""
    days: float = 30.0
    """Length. It begins with an empty pool."""
    jobs: int = 6000
    """Jobs that arrive, at random times."""
    premium_load: float = 0.25
    """Work of premium jobs, as a share of all device time. Jobs that outlast the days are counted whole."""
    standard_load: float = 0.45
    """The same for standard jobs."""
    basic_load: float = 0.45
    """The same for basic jobs. All three may add up to more than 1."""
    largest_devices: int = 512
    """Devices of the largest job."""
    elastic_ratio: float = 0.6
    """Share of the jobs of several nodes that can shrink, to a quarter of their nodes."""
    shortest_hours: float = 1.0
    """Length of the shortest job on all its devices."""
    tick_s: float = 10.0
    """Time between two decisions. Without a change there is none."""
    pause_s: float = 30.0
    """How long a job stands when it is resumed, migrated or resized. Singularity: tens of seconds."""
    release_s: float = 15.0
    """From the decision until devices of another job are free."""
    failure_stop_s: float = 60.0
    """How long a failure stops a job that has devices left, or gets others. Recomputation included."""
    failures_per_node_day: float = META_FAILURES_PER_NODE_DAY
    """Failures of one node in a day. The default is the rate of Meta's RSC-1."""
    repair_days: float = 3.0
    """How long a failed node is away."""
    reserve_ratio: float = 0.02
    """Share of the pool that is promised to nobody."""

    def __post_init__(self) -> None:
        if self.devices_per_node < 1 or self.devices < self.devices_per_node:
            raise ConfigError(f"devices = {self.devices}: allowed: from {self.devices_per_node} (one node)")
        if self.devices % self.devices_per_node:
            raise ConfigError(f"devices = {self.devices}: allowed: a multiple of {self.devices_per_node}")
        if not self.devices_per_node <= self.largest_devices <= self.devices:
            allowed = f"{self.devices_per_node} to {self.devices}"
            raise ConfigError(f"largest_devices = {self.largest_devices}: allowed: {allowed}")
        if self.days <= 0 or self.jobs < 1 or self.tick_s <= 0 or self.shortest_hours <= 0:
            raise ConfigError("days, tick_s, shortest_hours: allowed: above 0; jobs: from 1")
        loads = (self.premium_load, self.standard_load, self.basic_load)
        times = (self.pause_s, self.release_s, self.failure_stop_s, self.repair_days)
        if min(*loads, *times, self.failures_per_node_day) < 0:
            raise ConfigError("loads, times and rates of failures: allowed: from 0")
        if not 0 <= self.elastic_ratio <= 1 or not 0 <= self.reserve_ratio < 1:
            raise ConfigError("elastic_ratio, reserve_ratio: allowed: 0 to 1")

    @property
    def nodes(self) -> int:
        """Nodes of the pool."""
        return self.devices // self.devices_per_node

    @property
    def loads(self) -> dict[Tier, float]:
        """Offered work by tier, as a share of all device time."""
        return {
            Tier.PREMIUM: self.premium_load,
            Tier.STANDARD: self.standard_load,
            Tier.BASIC: self.basic_load,
        }

    @property
    def prices(self) -> Prices:
        """What the policy takes into account."""
        return Prices(pause_s=self.pause_s, reserve_ratio=self.reserve_ratio)


def load_schedule_plan(file: Path | None, pairs: Iterable[str]) -> SchedulePlan:
    """The plan in the table [schedule] of a TOML file, changed by KEY=VALUE texts.

    Raises `ConfigError` or `UsageError`.
    """
    flags = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in SchedulePlan.__dataclass_fields__:
            allowed = ", ".join(sorted(SchedulePlan.__dataclass_fields__))
            raise ConfigError(f"--set {pair}: allowed: KEY=VALUE with a key of {allowed}")
        flags[key] = value
    return load(SchedulePlan, "schedule", file=read_toml(file) if file else None, flags=flags)
