"""What a simulated recovery is about: the job, its failures, its checkpoints, and the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pulsetrain.checkpoint.peers.placement import STRATEGIES, Holders
from pulsetrain.core.config import load, read_toml
from pulsetrain.core.errors import ConfigError

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class RecoveryPlan:
    """The job, its failures and its checkpoints. Times in seconds, rates for each machine and day."""

    machines: int = 16
    """Machines of the job."""
    failures_per_machine_day: float = 0.015
    """Failures of one machine in a day."""
    days: float = 30.0
    """Length of the job."""
    step_s: float = 62.0
    """Length of a training step."""
    replicas: int = 2
    """Copies in memory, the own one included. 1: none elsewhere."""
    placement: str = "mixed"
    """Which machines hold whose copies: ring, mixed or group."""
    memory_interval_s: float = 62.0
    """How often the state goes to memory."""
    memory_stall_s: float = 0.0
    """How long training waits for each save to memory."""
    memory_save_s: float = 0.0
    """From the start of a save to memory until a peer has it."""
    storage_interval_s: float = 10800.0
    """How often the state goes to storage."""
    storage_stall_s: float = 0.0
    """How long training waits for each save to storage."""
    storage_save_s: float = 0.0
    """From the start of a save to storage until it can be restored."""
    detect_s: float = 15.0
    """From a failure until it is known."""
    replace_s: float = 0.0
    """Time to get another machine where no standby is left. With a standby it is 0."""
    standbys: int = 1000000
    """Spare machines that wait for a failure."""
    peer_fetch_s: float = 0.0
    """Reading a checkpoint from a peer's memory."""
    storage_fetch_s: float = 600.0
    """Reading a checkpoint from storage."""
    warm_up_s: float = 240.0
    """From the restored state to the first step."""
    memory: bool = True
    """False: only storage, as without peers."""
    software_ratio: float = 0.0
    """Share of failures that leave the machine's memory as it is."""

    def __post_init__(self) -> None:
        if self.machines < 1 or not 1 <= self.replicas <= self.machines:
            raise ConfigError(f"replicas = {self.replicas}: allowed: 1 to machines ({self.machines})")
        if self.placement not in STRATEGIES:
            raise ConfigError(f"placement = {self.placement!r}: allowed: {', '.join(sorted(STRATEGIES))}")
        if self.days <= 0 or self.failures_per_machine_day < 0 or not 0 <= self.software_ratio <= 1:
            raise ConfigError("allowed: days above 0, failures_per_machine_day from 0, software_ratio 0 to 1")
        if min(self.memory_interval_s, self.storage_interval_s, self.step_s) <= 0:
            raise ConfigError("memory_interval_s, storage_interval_s, step_s: allowed: above 0")

    @property
    def rate_per_s(self) -> float:
        """Failures of the whole job for each second."""
        return self.machines * self.failures_per_machine_day / DAY_S

    @property
    def holders(self) -> Holders:
        """The machines that hold the copies of each machine's state."""
        return STRATEGIES[self.placement](self.machines, self.replicas)

    @property
    def overhead(self) -> float:
        """Share of the running time that saving takes."""
        memory = self.memory_stall_s / self.memory_interval_s if self.memory else 0.0
        return min(1.0, memory + self.storage_stall_s / self.storage_interval_s)


@dataclass(frozen=True, kw_only=True)
class RecoveryResult:
    """Means over the simulated time. `effective_ratio` is useful time over all time (ETTR).

    `lost_s` is the rest, by cause.
    """

    effective_ratio: float
    failures: float
    from_memory: float
    from_storage: float
    lost_s: Mapping[str, float] = field(default_factory=dict)

    def as_row(self) -> dict[str, str]:
        """For people: percent of time, counts, hours lost."""
        return {
            "effective": f"{self.effective_ratio:.2%}",
            "failures": f"{self.failures:.1f}",
            "from memory": f"{self.from_memory:.1f}",
            "from storage": f"{self.from_storage:.1f}",
            **{f"{name} h": f"{seconds / 3600:.1f}" for name, seconds in self.lost_s.items()},
        }

    def as_json(self) -> dict[str, object]:
        """All fields, with plain JSON types."""
        return {
            "effective_ratio": self.effective_ratio,
            "failures": self.failures,
            "from_memory": self.from_memory,
            "from_storage": self.from_storage,
            "lost_s": dict(self.lost_s),
        }


def load_plan(file: Path | None, pairs: Iterable[str]) -> RecoveryPlan:
    """The plan in the table [recovery] of a TOML file, changed by KEY=VALUE texts.

    Raises `ConfigError` or `UsageError`.
    """
    flags = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in RecoveryPlan.__dataclass_fields__:
            allowed = ", ".join(sorted(RecoveryPlan.__dataclass_fields__))
            raise ConfigError(f"--set {pair}: allowed: KEY=VALUE with a key of {allowed}")
        flags[key] = value
    return load(RecoveryPlan, "recovery", file=read_toml(file) if file else None, flags=flags)
