"""A training job under failures, as a discrete-event simulation.

Machines fail independently at a constant rate, also while the job is down. (1) A failure is detected. (2) The
machine is replaced, by a standby while there is one. (3) The state is fetched: from a peer's memory where a
replica is left, else from storage, and then all machines go back. (4) The processes warm up. (5) What was not
safe is computed again. `recovery_estimate` computes the same by expectation.
"""

from __future__ import annotations

import heapq
import random

from pulsetrain.checkpoint.peers.placement import storage_sets
from pulsetrain.simulate.recovery_plan import DAY_S, RecoveryPlan, RecoveryResult


class _SimulatedJob:
    """One simulated run. `progress` is useful seconds. `in_storage` is the progress that storage has."""

    def __init__(self, plan: RecoveryPlan, rng: random.Random) -> None:
        self.plan = plan
        self.end = plan.days * DAY_S
        self._rng = rng
        self.now = self.progress = 0.0
        self.in_storage = 0.0
        self.failures = self.memory_restores = self.storage_restores = 0
        self.lost = dict.fromkeys(("saving", "detect", "replace", "fetch", "warm_up", "recompute"), 0.0)
        self._standbys = plan.standbys
        self._repaired: list[float] = []
        self._replica_sets = storage_sets(plan.holders)

    def next_failure(self) -> float:
        """When the next failure comes. After the end where there are none."""
        rate = self.plan.rate_per_s
        return self.now + self._rng.expovariate(rate) if rate else self.end + 1

    def train_until(self, when: float) -> None:
        """Train and save until `when`, without a failure."""
        span = min(when, self.end) - self.now
        self.lost["saving"] += span * self.plan.overhead
        self.progress += span * (1 - self.plan.overhead)
        self.now = min(when, self.end)
        useful = self.plan.storage_interval_s * (1 - self.plan.overhead)
        delay = self.plan.storage_save_s * (1 - self.plan.overhead)
        saved = max(0.0, (self.progress - delay) // useful * useful)
        self.in_storage = max(self.in_storage, saved)

    def recover(self) -> None:
        """From a failure to the next step. Machines that fail meanwhile are lost as well."""
        failed: set[int] = set()
        hard = self._fail(failed)
        self._spend("detect", self.plan.detect_s, failed)
        replaced = 0
        while True:
            known = len(failed)
            wait = self._replacement_s(known - replaced) if hard else 0.0
            self._spend("replace", wait, failed)
            replaced = known
            kept = self.plan.memory and not any(holders <= failed for holders in self._replica_sets)
            fetch = (self.plan.peer_fetch_s if failed else 0.0) if kept else self.plan.storage_fetch_s
            self._spend("fetch", fetch, failed)
            self._spend("warm_up", self.plan.warm_up_s, failed)
            if len(failed) == known or self.now >= self.end:
                break
            hard = True
        self._roll_back(kept)

    def _fail(self, failed: set[int]) -> bool:
        """One failure. Returns whether a machine is lost, which joins `failed`."""
        self.failures += 1
        if self._rng.random() < self.plan.software_ratio:
            return False
        failed.add(self._rng.randrange(self.plan.machines))
        return True

    def _spend(self, what: str, span: float, failed: set[int]) -> None:
        """Let `span` seconds pass for `what`, with the failures that come in them."""
        until = min(self.end, self.now + span)
        at = self.next_failure()
        while at < until:
            self.now, begun = at, self.now
            self.lost[what] += at - begun
            self._fail(failed)
            at = self.next_failure()
        self.lost[what] += until - self.now
        self.now = until

    def _replacement_s(self, count: int) -> float:
        """Seconds until `count` machines are replaced: 0 with standbys. A used standby comes back later."""
        while self._repaired and self._repaired[0] <= self.now:
            heapq.heappop(self._repaired)
            self._standbys += 1
        short = max(0, count - self._standbys)
        self._standbys -= count - short
        for _ in range(count - short):
            heapq.heappush(self._repaired, self.now + self.plan.replace_s)
        return self.plan.replace_s if short else 0.0

    def _roll_back(self, kept: bool) -> None:
        """Go back to the newest safe progress: in memory where that is `kept`, else in storage."""
        keep = 1 - self.plan.overhead
        useful, delay = self.plan.memory_interval_s * keep, self.plan.memory_save_s * keep
        in_memory = max(0.0, (self.progress - delay) // useful * useful)
        safe = max(self.in_storage, in_memory) if kept else self.in_storage
        self.lost["recompute"] += self.progress - safe
        self.progress = safe
        self.memory_restores += kept
        self.storage_restores += not kept


def simulate(plan: RecoveryPlan, *, seed: int = 0, runs: int = 20) -> RecoveryResult:
    """The mean of `runs` runs, which depend on the seed alone."""
    jobs = []
    for run in range(runs):
        job = _SimulatedJob(plan, random.Random(f"{seed}-{run}"))
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
