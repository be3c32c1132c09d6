"""Who gets which devices of a pool now. Pure.

Singularity (arXiv 2202.07848, section 2) promises shares of each hour: 0.95 of a premium job's ideal work,
0.70 of a standard one's, nothing to a basic one. Here a promise is given once the floors of all promised jobs
fit into the pool, less a reserve for failures, and onto the machines that these can use. A promise is only
broken when devices fail, and the newest job of the lowest tier comes first then. What is left goes to whoever
can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pulsetrain.recovery.pool.allocation import Allocation
from pulsetrain.recovery.pool.demand import JobDemand, Prices
from pulsetrain.recovery.pool.making_room import (
    can_reclaim,
    defragment,
    drop,
    reclaim,
    reclaim_and_move,
)
from pulsetrain.recovery.pool.promises import own_blocks, promises

MOST_ROUNDS = 4  # what one job leaves over may be enough for one that was looked at before
LOST = "its devices failed"
What = Literal["start", "preempt", "shrink", "grow", "migrate"]


@dataclass(frozen=True, kw_only=True)
class PoolAction:
    """What changes for one job. `before` and `after` are blocks by node. `reason` says what for.

    `price_device_s` is what its pause costs: devices that it keeps, times seconds. The first start costs
    nothing. `optional`: nobody's promise needs it, so the job may wait for its next checkpoint.
    """

    what: What
    job: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    reason: str
    price_device_s: float
    optional: bool = False

    def row(self) -> dict[str, object]:
        """As an event and as the API show it."""
        return {
            "what": self.what,
            "job": self.job,
            "from": dict(self.before),
            "to": dict(self.after),
            "reason": self.reason,
            "price_device_s": self.price_device_s,
        }


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Everything that changes, jobs that give devices first. `promised` names the jobs with a promise.

    `waiting` says of each job without devices why.
    """

    actions: tuple[PoolAction, ...]
    promised: frozenset[str]
    waiting: Mapping[str, str]


def decide(slots: Mapping[str, int], jobs: Iterable[JobDemand], prices: Prices) -> Decision:
    """The next allocation of the devices `slots` (by node). The order of `jobs` has no influence.

    >>> from pulsetrain.recovery.pool.demand import Tier
    >>> job = JobDemand(name="j", tier=Tier.PREMIUM, unit=2, least=1, most=1, order=0)
    >>> [action.what for action in decide({"a": 2}, [job], Prices()).actions]
    ['start']
    """
    nodes = {node: slots[node] for node in sorted(slots)}
    promised = promises(nodes, jobs, prices)
    known = sorted((_promised(j, j.name in promised) for j in jobs), key=_turn)
    allocation = Allocation(nodes, known, prices)
    _end_overload(allocation)
    failing = {node for job in known for node in job.failing}
    allocation.close(failing)
    free = [job for job in known if not job.busy]
    for _ in range(MOST_ROUNDS):
        mark = allocation.mark()[0]
        for job in free:
            _give_floor(allocation, job)
        for job in free:
            if not allocation.size(job):
                _start(allocation, job)
        if allocation.mark()[0] == mark:
            break
    if not any(allocation.size(job) < allocation.floors[job.name] for job in free):
        for job in free:
            _leave_failing(allocation, job)
        allocation.close(failing)
        for job in free:
            _grow(allocation, job)
    return _decision(allocation, promised)


def _promised(job: JobDemand, promised: bool) -> JobDemand:
    return job if job.promised == promised else replace(job, promised=promised)


def _turn(job: JobDemand) -> tuple[int, int, str]:
    return job.rank, job.order, job.name


def _end_overload(allocation: Allocation) -> None:
    """No node may have more in use than it has. Lower ranks and newer jobs stop first.

    Where a busy job of lower rank holds enough, nothing of higher rank stops: it is waited for.
    """
    for node in list(allocation.free):
        over = -allocation.free[node]
        for job in sorted(allocation.held_on(node), key=_turn, reverse=True) if over > 0 else ():
            if over <= 0:
                break
            over -= allocation.placed[job.name][node] * job.unit
            if not job.busy:
                allocation.release(job, f"{node} has fewer devices than are in use")


def _give_floor(allocation: Allocation, job: JobDemand) -> None:
    """Bring a promised job to its floor. A job that lost devices gets others, or stops."""
    size = allocation.size(job)
    floor = allocation.floors[job.name]
    lost = job.name in allocation.lost
    if not lost and size >= floor:
        return
    before = sum(allocation.before[job.name].values()) if lost else size
    wanted = max(floor, job.fit(before) if before > size else 0)
    if wanted <= size and job.fit(size) == size:
        return
    allocation.optional.discard(job.name)
    why = LOST if lost else "its promised share"
    for blocks in sorted({wanted, floor} - {size}, reverse=True):
        if blocks > size and _make_room(allocation, job, blocks - size):
            allocation.place(job, blocks - size, why)
            return
    if lost:
        _settle(allocation, job, size)


def _settle(allocation: Allocation, job: JobDemand, size: int) -> None:
    """Go on with what is left and what is free, or stop."""
    best = job.fit(min(size + allocation.fits(job), job.most))
    if not best:
        allocation.release(job, "its devices failed, and too few are left")
    elif best >= size:
        allocation.place(job, best - size, LOST)
    else:
        drop(allocation, job, size - best)
        allocation.why[job.name] = "it wants no more" if size > job.most else LOST


def _make_room(allocation: Allocation, job: JobDemand, blocks: int) -> bool:
    """Whether so many more blocks of a job fit now, if need be at the cost of lower ranks."""
    if allocation.fits(job) >= blocks or defragment(allocation, job, blocks):
        return True
    if not can_reclaim(allocation, job, blocks):
        return False
    return reclaim(allocation, job, blocks) or reclaim_and_move(allocation, job, blocks)


def _start(allocation: Allocation, job: JobDemand) -> None:
    """Start a job on what is free. One that waits for its promise may take the place of basic ones."""
    if not job.guaranteed and allocation.total_free < job.least * job.unit:
        return
    if job.promised:
        _start_small(allocation, job)
        return
    room, before = allocation.fits(job), sum(allocation.before[job.name].values())
    fits = job.fit(min(room, before) if before else room)  # whether it may grow is decided later
    if fits:
        allocation.place(job, fits, "devices are free")
        return
    least = job.fit(-(-job.least // job.step) * job.step)
    if not least:
        return
    enough = allocation.total_free >= least * job.unit
    if enough and _together(allocation, job, least):
        allocation.place(job, least, "devices are free")
    elif job.guaranteed and _make_room(allocation, job, least):
        allocation.place(job, least, "it comes before basic jobs")


def _together(allocation: Allocation, job: JobDemand, blocks: int) -> bool:
    """Move small jobs together for one without a promise. Where that failed, no larger job tries it again."""
    devices = blocks * job.unit
    if devices >= allocation.stuck:
        return False
    done = defragment(allocation, job, blocks)
    if not done:
        allocation.stuck = devices
    return done


def _start_small(allocation: Allocation, job: JobDemand) -> None:
    """A promised job that could not get its floor runs on what is there."""
    fits = job.fit(allocation.fits(job))
    if fits:
        allocation.place(job, fits, "less than its promised share is there")


def _grow(allocation: Allocation, job: JobDemand) -> None:
    """Let a job use what is free, where that gains more than its pause costs, or where it pauses anyway."""
    size, prices = allocation.size(job), allocation.prices
    if not size or size >= job.most:
        return
    before = sum(allocation.before[job.name].values())
    larger = job.fit(size + allocation.fits(job))
    if larger <= size or size < before:
        return
    if size == before and allocation.placed[job.name] == allocation.before[job.name]:
        gain = (larger - size) * job.unit * prices.horizon_s
        if job.still_s < prices.grow_after_s or gain <= larger * job.unit * prices.pause_s:
            return
        allocation.why[job.name] = "devices are free"
    allocation.place(job, larger - size, allocation.why[job.name])


def _leave_failing(allocation: Allocation, job: JobDemand) -> None:
    """Move a job off machines that are failing, as far as others have room for it. Else it trains on.

    So does one that a stop may cost all its steps: a failure would cost it no more.
    """
    if job.may_lose_all:
        return
    for node in sorted(job.failing & allocation.placed[job.name].keys()):
        mark, blocks = allocation.mark(), allocation.placed[job.name][node]
        allocation.remove(job, node, blocks)
        for _ in range(blocks):
            to = allocation.tightest(job, job.failing)
            if not to:
                allocation.undo(mark)
                break
            allocation.add(job, to, 1)
        else:
            allocation.change(job, f"{node} is failing", optional=True)


def _decision(allocation: Allocation, promised: frozenset[str]) -> Decision:
    actions, waiting = [], {}
    for name, job in allocation.jobs.items():
        before, after = allocation.before[name], allocation.placed[name]
        if not after:
            waiting[name] = _why_waits(allocation, job)
        if before == after:
            continue
        what = _what(sum(before.values()), sum(after.values()))
        first = what == "start" and job.still_s == float("inf")
        price = 0.0 if first else max(sum(after.values()), 1) * job.unit * allocation.prices.pause_s
        actions.append(
            PoolAction(
                what=what,
                job=name,
                before=before,
                after=dict(after),
                reason=allocation.why.get(name, LOST),
                price_device_s=price,
                optional=name in allocation.optional or _only_adds(before, after),
            )
        )
    actions.sort(key=lambda action: (_GIVES.index(action.what), action.job))
    return Decision(actions=tuple(actions), promised=promised, waiting=waiting)


def _only_adds(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether a job keeps all that it has, so that nobody else gets anything by its change."""
    return bool(before) and all(after.get(node, 0) >= blocks for node, blocks in before.items())


_GIVES: tuple[What, ...] = ("preempt", "shrink", "migrate", "grow", "start")


def _what(before: int, after: int) -> What:
    if not before:
        return "start"
    if not after:
        return "preempt"
    return "shrink" if after < before else "grow" if after > before else "migrate"


def _why_waits(allocation: Allocation, job: JobDemand) -> str:
    if job.name in allocation.why:
        return allocation.why[job.name]
    if job.least * job.unit > allocation.devices:
        return f"it needs {job.least * job.unit} devices, the pool has {allocation.devices}"
    own = own_blocks(job, allocation.slots)
    if own is not None and job.least > own:
        needed, has = job.least * job.unit, own * job.unit
        return f"it needs {needed} devices, the machines that it can use have {has}"
    if job.guaranteed and not job.promised:
        return "the pool's promises to others leave too little for it"
    return f"{job.least * job.unit} free devices are needed, {max(0, allocation.total_free)} are free"
