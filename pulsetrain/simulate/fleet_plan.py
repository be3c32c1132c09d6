"""A fleet of scale-up domains over months: its size, its failures, and what a stop costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.core.config import load, read_toml
from pulsetrain.core.errors import ConfigError
from pulsetrain.elastic.strategies import ReplicaShape
from pulsetrain.elastic.unequal_batch import PowerModel

LLAMA3_FAILURES_PER_DEVICE_DAY = 419 / (54 * 16384)
"""Llama 3 405B: 419 unplanned interruptions in 54 days on 16,384 devices (arXiv 2407.21783)."""


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """The fleet, its failures and its job. The defaults are those of arXiv 2504.06095 where it has them."""

    devices: int = 32768
    """Devices of the job, without spares."""
    degree: int = 32
    """Devices of a scale-up domain, and the tensor-parallel degree."""
    domains_per_replica: int = 8
    """Domains of a data-parallel replica: its pipeline stages."""
    local_batch: int = 8
    """Samples of a replica in a step."""
    smallest_degree: int = 16
    """Smallest tensor-parallel degree at which the model fits."""
    spare_domains: int = 0
    """Domains in reserve, besides those of the job."""
    fixed_batch: bool = False
    """True: the job waits while the fleet cannot compute the whole global batch."""
    days: float = 90.0
    """Length of the trace. It begins with every device healthy."""
    failures_per_device_day: float = LLAMA3_FAILURES_PER_DEVICE_DAY
    """Failures of one device in a day. The default is the rate of Llama 3 405B."""
    hardware_ratio: float = 0.78
    """Share of failures that need a repair. Llama 3 405B."""
    short_repair_days: float = 3.0
    """Repair of one half of the hardware failures."""
    long_repair_days: float = 5.0
    """Repair of the other half."""
    software_repair_s: float = 10800.0
    """How long a device is away after a failure of software."""
    blast_radius: int = 1
    """Devices that one failure takes down, neighbours in a domain."""
    failure_stop_s: float = 510.0
    """How long a failure stops the job, recomputation included. Gemini: 15 + 162 + 240 + 93 s."""
    return_stop_s: float = 240.0
    """How long the job stops to take repaired devices in. Gemini: warm-up."""
    power_limit: float = 1.3
    """Most power of a device under ntp-pw, in units of its normal power."""
    power_exponent: float = 0.5
    """Speed is power to this exponent. An assumption: measure your own."""

    def __post_init__(self) -> None:
        replica = self.degree * self.domains_per_replica
        if min(self.degree, self.domains_per_replica, self.local_batch, self.devices) < 1:
            raise ConfigError("devices, degree, domains_per_replica, local_batch: allowed: from 1")
        if self.devices % replica:
            raise ConfigError(f"devices = {self.devices}: allowed: a multiple of {replica} (one replica)")
        if not 1 <= self.smallest_degree <= self.degree or self.spare_domains < 0:
            raise ConfigError("allowed: smallest_degree from 1 to degree, spare_domains from 0")
        if self.blast_radius < 1 or self.degree % self.blast_radius:
            raise ConfigError(f"blast_radius = {self.blast_radius}: allowed: a divisor of {self.degree}")
        if self.days <= 0 or self.failures_per_device_day < 0 or not 0 <= self.hardware_ratio <= 1:
            raise ConfigError("allowed: days above 0, failures_per_device_day from 0, hardware_ratio 0 to 1")
        times = (self.short_repair_days, self.long_repair_days, self.software_repair_s)
        if min(*times, self.failure_stop_s, self.return_stop_s) < 0:
            raise ConfigError("repair times and stops: allowed: from 0")
        _ = self.shape

    @property
    def replicas(self) -> int:
        """Data-parallel replicas of the job."""
        return self.devices // (self.degree * self.domains_per_replica)

    @property
    def domains(self) -> int:
        """Domains of the fleet, spares included."""
        return self.devices // self.degree + self.spare_domains

    @property
    def shape(self) -> ReplicaShape:
        """One replica."""
        return ReplicaShape(
            degree=self.degree,
            domains=self.domains_per_replica,
            batch=self.local_batch,
            smallest_degree=self.smallest_degree,
            power=PowerModel(limit=self.power_limit, exponent=self.power_exponent),
        )

    @property
    def repairs(self) -> tuple[tuple[float, float], ...]:
        """How long a device is away in days, each with its share of the failures."""
        half = self.hardware_ratio / 2
        software = (self.software_repair_s / 86400, 1 - self.hardware_ratio)
        return (self.short_repair_days, half), (self.long_repair_days, half), software


def load_fleet_plan(file: Path | None, pairs: Iterable[str]) -> FleetPlan:
    """The plan in the table [fleet] of a TOML file, changed by KEY=VALUE texts.

    Raises `ConfigError` or `UsageError`.
    """
    flags = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in FleetPlan.__dataclass_fields__:
            allowed = ", ".join(sorted(FleetPlan.__dataclass_fields__))
            raise ConfigError(f"--set {pair}: allowed: KEY=VALUE with a key of {allowed}")
        flags[key] = value
    return load(FleetPlan, "fleet", file=read_toml(file) if file else None, flags=flags)
