"""Asks the policy of the pool, and carries out what it decides by what jobs can do: stop, go on, change over.

Machines are known by host name. A job's agents are on the machines that it could use, and its ranks hold
devices there only while they run. A job gets devices only once no other job is on them any more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypedDict

from pulsetrain.core.clock import Clock
from pulsetrain.core.errors import UsageError
from pulsetrain.recovery.pool.account import ShareAccount
from pulsetrain.recovery.pool.config import PoolConfig
from pulsetrain.recovery.pool.decide import Decision, PoolAction, decide
from pulsetrain.recovery.pool.demand import GUARANTEE, JobDemand, rank_of
from pulsetrain.recovery.pool.order import Change, fits, full, tied
from pulsetrain.recovery.sharing import JobShare

KEPT_ACTIONS = 20
JUST_STARTED = "the hub has just started: agents of other jobs may still report"


class PooledJob(Protocol):
    """A job, as far as the pool has to do with it."""

    @property
    def over(self) -> bool: ...
    @property
    def sharing(self) -> JobShare: ...


class PoolJobRow(TypedDict):
    """A job of the pool. `devices` it holds now, `most_devices` it could use. `hour_share` is its last whole
    hour, None before. `why_waits` is "" where it runs."""

    job: str
    tier: str
    promised: bool
    devices: int
    most_devices: int
    hour_share: float | None
    why_waits: str


class PoolRow(TypedDict):
    """The pool. `machines` has devices and those in use by host, `actions` the newest with time, reason and
    price."""

    machines: dict[str, dict[str, int]]
    jobs: list[PoolJobRow]
    actions: list[dict[str, object]]


@dataclass(kw_only=True)
class _Known:
    """What the pool remembers of a job. `changed_s` is None before its first change.

    A `wish` of `wished_s` is a change that waits for a newer step. It counts as a change once the job acts.
    """

    order: int
    promised: bool = False
    changed_s: float | None = None
    wish: PoolAction | None = None
    wished_s: float = 0.0
    account: ShareAccount | None = None
    why_waits: str = ""

    def begins(self, action: PoolAction, share: JobShare, now_s: float) -> None:
        """The job has been given a change."""
        if share.waits_for_step:
            self.wish, self.wished_s = action, now_s
        else:
            self.wish, self.changed_s = None, now_s

    def look(self, share: JobShare, now_s: float) -> None:
        """See whether a wish still waits. One that the job has given up by itself is as old as it is."""
        if self.wish is None or share.waits_for_step:
            return
        acts = not share.settled or share.holds() != self.wish.before
        self.wish, self.changed_s = None, now_s if acts else self.wished_s


def _devices(blocks: Mapping[str, int], unit: int) -> dict[str, int]:
    return {host: number * unit for host, number in blocks.items()}


def _is_awaited(action: PoolAction, present: Mapping[str, PooledJob]) -> bool:
    """Whether the job is to do just that already, once a step is saved."""
    return action.optional and present[action.job].sharing.awaits(action.after)


class PoolDriver:
    """One pool of one hub. `turn` belongs to the supervisor of loops.

    A new hub decides nothing for `adopt_s` seconds: agents of jobs that run may not have reported yet.
    """

    def __init__(
        self,
        jobs: Mapping[str, PooledJob],
        config: PoolConfig,
        clock: Clock,
        *,
        observe_only: bool,
        adopt_s: float,
    ) -> None:
        self._jobs, self._config, self._clock, self._observe_only = jobs, config, clock, observe_only
        self._adopt_s = adopt_s
        self._began_s: float | None = None
        self._known: dict[str, _Known] = {}
        self._arrived = 0
        self._plan: list[PoolAction] = []
        self._issued: list[PoolAction] = []
        self._planned_s = 0.0
        self._said: tuple[PoolAction, ...] = ()
        self._done: deque[dict[str, object]] = deque(maxlen=KEPT_ACTIONS)

    async def turn(self) -> float:
        """One look at the pool."""
        self.look()
        return self._config.tick_s if not self._plan else min(1.0, self._config.tick_s)

    def look(self) -> None:
        """Go on with what was decided, or decide anew."""
        present = {name: job for name, job in self._jobs.items() if not job.over and job.sharing.wanted}
        self._count(present)
        if self._adopts():
            for name in present:
                self._known[name].why_waits = JUST_STARTED
            return
        if self._observe_only:
            self._say(self._decide(present), present)
            return
        if not self._plan and not self._issued:
            self._plan = [a for a in self._decide(present).actions if not _is_awaited(a, present)]
            self._planned_s = self._clock.monotonic_s()
        self._go_on(present)

    def _adopts(self) -> bool:
        """Whether agents of jobs that run may not have reported to this new hub yet."""
        now_s = self._clock.monotonic_s()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s < self._adopt_s

    # -- deciding -----------------------------------------------------------------------------------------

    def _count(self, present: Mapping[str, PooledJob]) -> None:
        """Count the hours of jobs, and forget those that are over.

        A job that a person stopped has no promise. Its hours begin anew with the next one.
        """
        now_s = self._clock.monotonic_s()
        for name in sorted(present.keys() - self._known.keys()):
            self._known[name] = _Known(order=self._arrived)
            self._arrived += 1
        for name in [name for name in self._known if name not in self._jobs or self._jobs[name].over]:
            del self._known[name]
        for name, known in self._known.items():
            if self._jobs[name].sharing.kept_stopped:
                known.promised, known.account = False, None
        for name, job in present.items():
            known = self._known[name]
            known.look(job.sharing, now_s)
            if known.account is not None:
                known.account.add(now_s, job.sharing.speed())

    def _decide(self, present: Mapping[str, PooledJob]) -> Decision:
        demands = [self._demand(name, job) for name, job in present.items()]
        ending = self._ending()
        free = {host: max(0, devices - ending[host]) for host, devices in self._slots(present).items()}
        decision = decide(free, demands, self._config.prices)
        for name in present:
            known = self._known[name]
            known.why_waits = decision.waiting.get(name, "")
            known.promised = name in decision.promised
            if known.promised and known.account is None:
                known.account = ShareAccount(self._clock.monotonic_s())
        return decision

    def _slots(self, present: Mapping[str, PooledJob]) -> dict[str, int]:
        hosts = {host for job in present.values() for host in job.sharing.reachable()}
        return {host: self._config.devices(host) for host in hosts}

    def _ending(self) -> Counter[str]:
        """Devices by host whose ranks have not ended, also those of jobs that want none any more."""
        return sum((job.sharing.ending() for job in self._jobs.values()), Counter())

    def _demand(self, name: str, job: PooledJob) -> JobDemand:
        demand, known = job.sharing.demand(self._known[name].order), self._known[name]
        now_s, margin = self._clock.monotonic_s(), self._config.prices.margin
        if known.changed_s is not None:
            demand = replace(demand, still_s=now_s - known.changed_s)
        if known.account is not None and demand.guaranteed:
            floor_share = demand.floor(margin) / demand.most
            may_lose_s = known.account.may_lose_s(GUARANTEE[demand.tier], floor_share)
            demand = replace(demand, may_lose_s=may_lose_s)
        return replace(demand, promised=known.promised)

    def _say(self, decision: Decision, present: Mapping[str, PooledJob]) -> None:
        """Write down what would be done, once."""
        for action in decision.actions:
            if action not in self._said:
                present[action.job].sharing.write("would", {"event": "pool", **action.row()})
        self._said = decision.actions

    # -- carrying out -------------------------------------------------------------------------------------

    def _go_on(self, present: Mapping[str, PooledJob]) -> None:
        self._issued = [action for action in self._issued if not self._is_done(action, present)]
        if self._clock.monotonic_s() - self._planned_s > self._config.plan_s:
            self._plan, self._issued = [], []
        for action in [action for action in self._plan if action.job in present]:
            busy = any(action.job == other.job for other in self._issued)
            if busy or not self._fits(action, present):
                continue
            self._plan.remove(action)
            if not self._carry_out(action, present[action.job].sharing):
                self._plan, self._issued = [], []
                return
        self._plan = [action for action in self._plan if action.job in present]
        if self._plan and not self._issued:
            self._untie(present)

    def _fits(self, action: PoolAction, present: Mapping[str, PooledJob]) -> bool:
        """Whether a job may change now. Changes that only wait for a newer step give way to it."""
        change, devices = self._change(action, present), self._config.devices
        hosts = full(change, self._used(present), devices)
        others = [name for name in present if name != action.job] if hosts else []
        given_up = [name for name in others if present[name].sharing.give_way(hosts)]
        for name in given_up:
            self._known[name].wish = None  # it has not been changed
            detail = {"for": action.job, "what": action.what, "reason": action.reason}
            present[name].sharing.write("pool_given_way", detail)
        return not hosts or (bool(given_up) and fits(change, self._used(present), devices))

    def _used(self, present: Mapping[str, PooledJob]) -> Counter[str]:
        """Devices in use by host, also those that a job is about to leave."""
        used = self._ending()
        for job in present.values():
            used.update(_devices(job.sharing.holds(), job.sharing.unit))
        return used

    def _change(self, action: PoolAction, present: Mapping[str, PooledJob]) -> Change:
        share = present[action.job].sharing
        held, after = (_devices(blocks, share.unit) for blocks in (share.holds(), action.after))
        return Change(job=action.job, held=held, after=after)

    def _untie(self, present: Mapping[str, PooledJob]) -> None:
        """Where jobs wait for each other, the newest of the lowest tier stops. It goes on once it can."""
        changes = [self._change(action, present) for action in self._plan]
        names = {change.job for change in tied(changes, self._used(present), self._config.devices)}
        if not names:
            return
        name = max(names, key=lambda n: (rank_of(present[n].sharing.tier), self._known[n].order))
        action = next(action for action in self._plan if action.job == name)
        held = dict(present[name].sharing.holds())
        stop = replace(action, what="preempt", before=held, after={})
        if not self._carry_out(stop, present[name].sharing):
            self._plan, self._issued = [], []

    def _carry_out(self, action: PoolAction, share: JobShare) -> bool:
        """Begin an action. Returns False where that could not be done now: the rest is decided anew."""
        try:
            if action.what == "preempt":
                share.stop(action.reason, self._config.wait_s)
            else:
                share.give(action.after, action.reason, self._config.wait_s, optional=action.optional)
        except UsageError as error:
            share.write("pool_refused", {**action.row(), "why_not": str(error)})
            return False
        self._known[action.job].begins(action, share, self._clock.monotonic_s())
        self._issued.append(action)
        share.write("pool_action", action.row())
        self._done.append({"ts_ns": self._clock.wall_ns(), **action.row()})
        return True

    def _is_done(self, action: PoolAction, present: Mapping[str, PooledJob]) -> bool:
        job = present.get(action.job)
        if job is None or action.what == "start":
            return True
        if action.what == "preempt":
            return job.sharing.resting and not job.sharing.ending()
        return job.sharing.settled

    # -- status -------------------------------------------------------------------------------------------

    def row(self) -> PoolRow | None:
        """The pool as the API shows it, None where there is none."""
        if not self._config.enabled:
            return None
        present = {name: job for name, job in self._jobs.items() if name in self._known and not job.over}
        used = self._ending()
        jobs: list[PoolJobRow] = []
        for name, job in present.items():
            demand, known = job.sharing.demand(0), self._known[name]
            used.update(_devices(demand.placed, demand.unit))
            hours = known.account.hours if known.account is not None else []
            jobs.append(
                {
                    "job": name,
                    "tier": demand.tier.value,
                    "promised": known.promised,
                    "devices": demand.size * demand.unit,
                    "most_devices": demand.most * demand.unit,
                    "hour_share": round(hours[-1], 4) if hours else None,
                    "why_waits": known.why_waits if not demand.size else "",
                }
            )
        slots = self._slots(present)
        machines = {host: {"devices": slots[host], "used": used[host]} for host in sorted(slots)}
        return {"machines": machines, "jobs": jobs, "actions": list(self._done)}
