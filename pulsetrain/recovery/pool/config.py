"""How the hub shares a pool of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pulsetrain.recovery.pool.demand import Prices


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """Configuration of the pool: table ``[pool]``, environment ``PULSETRAIN_POOL_*``."""

    devices_per_machine: int = 0
    """Devices of each machine that jobs share. 0: there is no pool, and every job starts at once.

    A machine is known by its host name. Each rank holds one device while it runs."""
    machines: str = ""
    """Machines with another number of devices, ``host=devices,...``. 0 keeps a machine out of the pool."""
    tick_s: float = 5.0
    """How often the hub looks at the pool."""
    pause_s: float = 30.0
    """How long a job is expected to stand when it is resumed, migrated or resized. Prices come from it."""
    horizon_s: float = 1800.0
    """How long a change is expected to last. It must gain more device-seconds in this time than it costs."""
    grow_after_s: float = 600.0
    """How long a job must have been left alone before it grows or is moved to make room."""
    reserve_ratio: float = 0.02
    """Share of the pool that is promised to nobody, for devices that fail."""
    wait_s: float = 60.0
    """How long a job that is to stop may take to save a step."""
    plan_s: float = 180.0
    """How long the actions of one decision may take before the hub decides anew."""

    def __post_init__(self) -> None:
        if self.devices_per_machine < 0:
            raise ValueError(f"devices_per_machine = {self.devices_per_machine}: allowed 0 or more")
        for name in ("tick_s", "plan_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be above 0")
        for name in ("pause_s", "horizon_s", "grow_after_s", "wait_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: allowed 0 or more")
        if not 0 <= self.reserve_ratio < 1:
            raise ValueError(f"reserve_ratio = {self.reserve_ratio}: allowed 0 to below 1")
        _ = self.exceptions

    @property
    def enabled(self) -> bool:
        """Whether there is a pool."""
        return self.devices_per_machine > 0 or any(self.exceptions.values())

    @property
    def exceptions(self) -> Mapping[str, int]:
        """Machines with another number of devices."""
        found = {}
        for pair in filter(None, (pair.strip() for pair in self.machines.split(","))):
            host, _, devices = pair.partition("=")
            if not host or not devices.isdecimal():
                raise ValueError(f"machines = {self.machines!r}: allowed: host=devices,...; not {pair!r}")
            found[host] = int(devices)
        return found

    def devices(self, host: str) -> int:
        """Devices of a machine that belong to the pool."""
        return self.exceptions.get(host, self.devices_per_machine)

    @property
    def prices(self) -> Prices:
        """What the policy takes into account."""
        return Prices(
            pause_s=self.pause_s,
            horizon_s=self.horizon_s,
            grow_after_s=self.grow_after_s,
            reserve_ratio=self.reserve_ratio,
        )
