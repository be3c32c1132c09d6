"""What the jobs of each tier got of a simulated pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from pulsetrain.recovery.pool.demand import GUARANTEE, Tier
from pulsetrain.simulate.schedule_job import Losses, ScheduledJob
from pulsetrain.simulate.schedule_plan import SchedulePlan
from pulsetrain.simulate.schedule_trace import DAY_S, Arrival


@dataclass(kw_only=True)
class TierBook:
    """Sums over the jobs of a tier. `actions` counts what was done, `failures` how often one lost a node."""

    tier: Tier
    jobs: int = 0
    ended: int = 0
    useful: float = 0.0
    failures: int = 0
    hours: list[float] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)
    promise_waits_s: list[float] = field(default_factory=list)
    lost: Losses = field(default_factory=Losses)

    def close(self, job: ScheduledJob, *, ended: bool = False) -> None:
        """A job has ended, or the simulation."""
        self.jobs += 1
        self.ended += ended
        self.useful += job.useful
        for name, device_s in asdict(job.lost).items():
            setattr(self.lost, name, getattr(self.lost, name) + device_s)
        if job.account is not None:
            job.account.close()
            self.hours += job.account.hours


@dataclass(frozen=True, kw_only=True)
class TierResult:
    """One tier. Shares are hours of jobs: work done over ideal work, None without an hour.

    `offered_ratio` is the ideal work that fell into the simulated time.
    `hours_below` of `hours` were below the guarantee. `promise_wait_s` is the longest wait for a promise.
    `lost_ratio` is ideal work that was not done while paused, waiting or shrunk. Ratios are shares of all
    device time.
    """

    tier: str
    guarantee: float
    jobs: int
    ended: int
    offered_ratio: float
    used_ratio: float
    hours: int
    hours_below: int
    worst_share: float | None
    median_share: float | None
    mean_share: float | None
    promised: int
    waited_for_promise: int
    promise_wait_s: float
    preemptions: int
    migrations: int
    resizes: int
    failures: int
    pauses: int
    lost_ratio: Mapping[str, float]

    def as_row(self) -> dict[str, str]:
        """For people."""
        return {
            "tier": self.tier,
            "jobs": f"{self.jobs:,}",
            "offered": f"{self.offered_ratio:.1%}",
            "used": f"{self.used_ratio:.1%}",
            "worst hour": "-" if self.worst_share is None else f"{self.worst_share:.2%}",
            "median hour": "-" if self.median_share is None else f"{self.median_share:.2%}",
            "hours": f"{self.hours:,}",
            "below": f"{self.hours_below:,}",
            "pre-empted": f"{self.preemptions:,}",
            "migrated": f"{self.migrations:,}",
            "resized": f"{self.resizes:,}",
            "failed": f"{self.failures:,}",
            "paused": f"{self.lost_ratio['paused']:.2%}",
        }


@dataclass(frozen=True, kw_only=True)
class ScheduleResult:
    """The whole pool. `utilisation` is useful device time over all device time, failed nodes included."""

    devices: int
    days: float
    jobs: int
    failures: int
    offered_ratio: float
    utilisation: float
    decisions: int
    tiers: tuple[TierResult, ...]

    def as_json(self) -> dict[str, object]:
        """All fields, with plain JSON types."""
        return {**asdict(self), "tiers": [asdict(each) for each in self.tiers]}


def result(
    plan: SchedulePlan,
    jobs: Sequence[Arrival],
    failures: int,
    books: Mapping[Tier, TierBook],
    *,
    decisions: int,
) -> ScheduleResult:
    """The books of all tiers as ratios of all device time."""
    all_s = plan.devices * plan.days * DAY_S
    tiers = tuple(_tier(plan, book, _offered(plan, jobs, tier), all_s) for tier, book in books.items())
    return ScheduleResult(
        devices=plan.devices,
        days=plan.days,
        jobs=len(jobs),
        failures=failures,
        offered_ratio=sum(tier.offered_ratio for tier in tiers),
        utilisation=sum(tier.used_ratio for tier in tiers),
        decisions=decisions,
        tiers=tiers,
    )


def _offered(plan: SchedulePlan, jobs: Sequence[Arrival], tier: Tier) -> float:
    """Device-seconds of ideal work that would fall into the simulated time."""
    end_s = plan.days * DAY_S
    mine = (job for job in jobs if job.demand.tier is tier)
    return sum(job.devices * min(job.ideal_s, end_s - job.at_s) for job in mine)


def _tier(plan: SchedulePlan, book: TierBook, offered: float, all_s: float) -> TierResult:
    hours = np.array(book.hours)
    guarantee, done = GUARANTEE[book.tier], book.actions
    resizes = done["shrink"] + done["grow"]
    waits = [wait_s for wait_s in book.promise_waits_s if wait_s]
    return TierResult(
        tier=book.tier.value,
        guarantee=guarantee,
        jobs=book.jobs,
        ended=book.ended,
        offered_ratio=offered / all_s,
        used_ratio=book.useful / all_s,
        hours=len(hours),
        hours_below=int((hours < guarantee - 1e-9).sum()),
        worst_share=float(hours.min()) if len(hours) else None,
        median_share=float(np.median(hours)) if len(hours) else None,
        mean_share=float(hours.mean()) if len(hours) else None,
        promised=len(book.promise_waits_s),
        waited_for_promise=len(waits),
        promise_wait_s=max(waits, default=0.0),
        preemptions=done["preempt"],
        migrations=done["migrate"],
        resizes=resizes,
        failures=book.failures,
        pauses=done["start"] + done["migrate"] + resizes + book.failures,
        lost_ratio={name: device_s / all_s for name, device_s in asdict(book.lost).items()},
    )
