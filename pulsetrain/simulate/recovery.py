"""A training job under failures: a discrete-event simulator, and a closed form that agrees with it.

Machines fail independently at a constant rate, also while the job is down. A failure is detected, the
machine is replaced (a standby while there is one), the state is fetched (from a peer's memory where a
replica is left, else from storage, and then everyone goes back), the processes warm up, and what was not
safe is computed again.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from pulsetrain.checkpoint.peers.placement import (
    STRATEGIES,
    Holders,
    recovery_probability,
    storage_sets,
)
from pulsetrain.core.config import load, read_toml
from pulsetrain.core.errors import ConfigError

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class RecoveryPlan:
    """The job, its failures and its habits. Times in seconds, rates for each machine and day."""

    machines: int = 16
    """Machines of the job."""
    failures_per_machine_day: float = 0.015
    """Failures of one machine in a day."""
    days: float = 30.0
    """Length of the job."""
    step_s: float = 62.0
    """Length of a training step."""
    replicas: int = 2
    """Copies in memory, the own one included; 1: none elsewhere."""
    placement: str = "mixed"
    """Which machines hold whose copies: ring, mixed or group."""
    memory_interval_s: float = 62.0
    """How often the state goes to memory."""
    memory_stall_s: float = 0.0
    """What training waits for each of those."""
    memory_save_s: float = 0.0
    """From the beginning of a save to memory until a peer has it."""
    storage_interval_s: float = 10800.0
    """How often the state goes to storage."""
    storage_stall_s: float = 0.0
    """What training waits for each of those."""
    storage_save_s: float = 0.0
    """From the beginning of a save to storage until it can be restored."""
    detect_s: float = 15.0
    """From a failure until it is known."""
    replace_s: float = 0.0
    """Getting another machine where no standby is left; with one, 0."""
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
        """Failures of the whole job."""
        return self.machines * self.failures_per_machine_day / DAY_S

    @property
    def holders(self) -> Holders:
        return STRATEGIES[self.placement](self.machines, self.replicas)

    @property
    def overhead(self) -> float:
        """Share of running time that saving takes."""
        memory = self.memory_stall_s / self.memory_interval_s if self.memory else 0.0
        return min(1.0, memory + self.storage_stall_s / self.storage_interval_s)


@dataclass(frozen=True, kw_only=True)
class RecoveryResult:
    """`effective_ratio` is useful time over all time (ETTR); `lost_s` says where the rest went."""

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
        return {
            "effective_ratio": self.effective_ratio,
            "failures": self.failures,
            "from_memory": self.from_memory,
            "from_storage": self.from_storage,
            "lost_s": dict(self.lost_s),
        }


def load_plan(file: Path | None, pairs: Iterable[str]) -> RecoveryPlan:
    """From a TOML file's table [recovery] and KEY=VALUE texts. Raises `ConfigError` or `UsageError`."""
    flags = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in RecoveryPlan.__dataclass_fields__:
            allowed = ", ".join(sorted(RecoveryPlan.__dataclass_fields__))
            raise ConfigError(f"--set {pair}: allowed: KEY=VALUE with a key of {allowed}")
        flags[key] = value
    return load(RecoveryPlan, "recovery", file=read_toml(file) if file else None, flags=flags)


class _Job:
    """State of one simulated run. Progress counts useful seconds; what is safe in each tier is a progress."""

    def __init__(self, plan: RecoveryPlan, rng: random.Random) -> None:
        self.plan, self.rng = plan, rng
        self.end = plan.days * DAY_S
        self.now = self.progress = 0.0
        self.in_storage = 0.0
        self.failures = self.memory_restores = self.storage_restores = 0
        self.lost = dict.fromkeys(("saving", "detect", "replace", "fetch", "warm_up", "recompute"), 0.0)
        self.standbys = plan.standbys
        self.repaired: list[float] = []
        self.sets = storage_sets(plan.holders)

    def next_failure(self) -> float:
        rate = self.plan.rate_per_s
        return self.now + self.rng.expovariate(rate) if rate else self.end + 1

    def train_until(self, when: float) -> None:
        """Run, saving on the way; no failure happens in between."""
        span = min(when, self.end) - self.now
        self.lost["saving"] += span * self.plan.overhead
        self.progress += span * (1 - self.plan.overhead)
        self.now = min(when, self.end)
        useful = self.plan.storage_interval_s * (1 - self.plan.overhead)
        delay = self.plan.storage_save_s * (1 - self.plan.overhead)
        saved = max(0.0, (self.progress - delay) // useful * useful)
        self.in_storage = max(self.in_storage, saved)

    def recover(self) -> None:
        """From a failure to the next step; machines that fail meanwhile are lost as well."""
        failed: set[int] = set()
        hard = self._strike(failed)
        self._spend("detect", self.plan.detect_s, failed)
        while True:
            known = len(failed)
            wait = self._replacement_s(len(failed)) if hard else 0.0
            self._spend("replace", wait, failed)
            kept = self.plan.memory and not any(holders <= failed for holders in self.sets)
            fetch = (self.plan.peer_fetch_s if failed else 0.0) if kept else self.plan.storage_fetch_s
            self._spend("fetch", fetch, failed)
            self._spend("warm_up", self.plan.warm_up_s, failed)
            if len(failed) == known or self.now >= self.end:
                break
            hard = True
        self._roll_back(kept)

    def _strike(self, failed: set[int]) -> bool:
        self.failures += 1
        if self.rng.random() < self.plan.software_ratio:
            return False
        failed.add(self.rng.randrange(self.plan.machines))
        return True

    def _spend(self, what: str, span: float, failed: set[int]) -> None:
        until = min(self.end, self.now + span)
        at = self.next_failure()
        while at < until:
            self.now, begun = at, self.now
            self.lost[what] += at - begun
            self._strike(failed)
            at = self.next_failure()
        self.lost[what] += until - self.now
        self.now = until

    def _replacement_s(self, count: int) -> float:
        """With a standby at once; else when one is ready. A used standby is replenished after `replace_s`."""
        while self.repaired and self.repaired[0] <= self.now:
            heapq.heappop(self.repaired)
            self.standbys += 1
        short = max(0, count - self.standbys)
        self.standbys -= count - short
        for _ in range(count - short):
            heapq.heappush(self.repaired, self.now + self.plan.replace_s)
        return self.plan.replace_s if short else 0.0

    def _roll_back(self, kept: bool) -> None:
        keep = 1 - self.plan.overhead
        useful, delay = self.plan.memory_interval_s * keep, self.plan.memory_save_s * keep
        in_memory = max(0.0, (self.progress - delay) // useful * useful)
        safe = max(self.in_storage, in_memory) if kept else self.in_storage
        self.lost["recompute"] += self.progress - safe
        self.progress = safe
        self.memory_restores += kept
        self.storage_restores += not kept


def simulate(plan: RecoveryPlan, *, seed: int = 0, runs: int = 20) -> RecoveryResult:
    """Mean over `runs` seeded runs."""
    jobs = []
    for run in range(runs):
        job = _Job(plan, random.Random(f"{seed}-{run}"))
        while job.now < job.end:
            job.train_until(job.next_failure())
            if job.now < job.end:
                job.recover()
        jobs.append(job)
    total = plan.days * DAY_S * runs
    return RecoveryResult(
        effective_ratio=sum(j.progress for j in jobs) / total,
        failures=sum(j.failures for j in jobs) / runs,
        from_memory=sum(j.memory_restores for j in jobs) / runs,
        from_storage=sum(j.storage_restores for j in jobs) / runs,
        lost_s={name: sum(j.lost[name] for j in jobs) / runs for name in jobs[0].lost},
    )


def closed_form(plan: RecoveryPlan) -> RecoveryResult:
    """The same by expectation: cycles of training, failure and recovery.

    Chance that a recovery is caught by another failure is first order in rate times its length; standbys
    are taken to be enough, or none. Agrees with `simulate` within 5 % where recovery is short against the
    time between failures.
    """
    rate, horizon = plan.rate_per_s, plan.days * DAY_S
    keep = 1 - plan.overhead
    replace = 0.0 if plan.standbys > 0 else plan.replace_s * (1 - plan.software_ratio)
    hard = 1 - plan.software_ratio
    memory_fetch = plan.peer_fetch_s * hard
    quick = plan.detect_s + replace + memory_fetch + plan.warm_up_s
    twice = rate * quick * hard * hard
    whole = float(recovery_probability(plan.holders, 1)) if plan.replicas > 1 else 1 - hard
    pair = recovery_probability(plan.holders, 2) if plan.machines > 1 else Fraction(0)
    reach = (1 - min(1.0, twice)) * whole + min(1.0, twice) * float(pair) if plan.memory else 0.0
    fetch = reach * memory_fetch + (1 - reach) * plan.storage_fetch_s
    progress_rate = rate / keep if keep else 0.0
    memory_lost = _mean_lost_s(progress_rate, plan.memory_interval_s * keep, plan.memory_save_s * keep)
    storage_lost = _mean_lost_s(
        progress_rate * (1 - reach), plan.storage_interval_s * keep, plan.storage_save_s * keep
    )
    recompute = reach * memory_lost + (1 - reach) * storage_lost
    down = plan.detect_s + replace + fetch + plan.warm_up_s
    cycle = (1 / rate if rate else horizon) + (down if rate else 0.0)
    cycles = horizon / cycle if rate else 0.0
    trained = horizon - cycles * down
    useful = max(0.0, trained * keep - cycles * recompute)
    return RecoveryResult(
        effective_ratio=useful / horizon,
        failures=rate * horizon,
        from_memory=cycles * reach,
        from_storage=cycles * (1 - reach),
        lost_s={
            "saving": trained * plan.overhead,
            "detect": cycles * plan.detect_s,
            "replace": cycles * replace,
            "fetch": cycles * fetch,
            "warm_up": cycles * plan.warm_up_s,
            "recompute": cycles * recompute,
        },
    )


def _mean_lost_s(rate: float, interval_s: float, delay_s: float) -> float:
    """Expected progress since the last safe save when failures come at `rate` and the first save is at 0.

    For an exponential time x it is E[x] - interval * E[floor((x - delay) / interval)], the floor counted
    from 0; half an interval and the delay where failures are rare.
    """
    if rate * (interval_s + delay_s) < 1e-6:
        return interval_s / 2 + delay_s
    return 1 / rate - interval_s * math.exp(-rate * delay_s) / math.expm1(min(700.0, rate * interval_s))
