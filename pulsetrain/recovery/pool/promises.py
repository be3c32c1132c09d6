"""Which jobs have the promise of a share. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pulsetrain.recovery.pool.demand import JobDemand, Prices, Tier, rank_of

Machines = frozenset[str] | None
"""The machines that a job can use, None for all."""


def promises(slots: Mapping[str, int], jobs: Iterable[JobDemand], prices: Prices) -> frozenset[str]:
    """The jobs whose guarantee holds: those that have it already, then others in their turn.

    `slots` are devices by machine. A job that does not fit lets no later one of its tier pass that could use
    the same machines, unless they are too few for it in any case. In the sum over the pool its whole share
    counts: more of its agents may come.
    """
    wanting = sorted((j for j in jobs if j.guaranteed), key=lambda j: (not j.promised, *_by_tier(j)))
    given = _Given(slots, (1 - prices.reserve_ratio) * sum(slots.values()))
    closed: list[tuple[Tier, Machines]] = []
    for job in wanting:
        need, machines = job.floor(prices.margin) * job.unit, _machines(job)
        here = need if machines is None else floor_of(job, slots, prices) * job.unit
        if job.promised:
            given.add(job, need, here)
        elif any(tier == job.tier and _overlap(others, machines) for tier, others in closed):
            continue
        elif here and need <= given.limit:
            if not given.fits(need, here, machines):
                closed.append((job.tier, None if given.sum + need > given.limit else machines))
                continue
            given.add(job, need, here)
    return frozenset(given.names)


def floor_of(job: JobDemand, slots: Mapping[str, int], prices: Prices) -> int:
    """The fewest blocks that keep a job's guarantee, or all that its machines have, where they have fewer.

    >>> job = JobDemand(name="j", tier=Tier.PREMIUM, unit=2, least=1, most=9, order=0, nodes={"a": 1, "b": 4})
    >>> floor_of(job, {"a": 8, "b": 5, "c": 8}, Prices())
    3
    """
    floor = job.floor(prices.margin)
    own = own_blocks(job, slots)
    return floor if own is None or own >= floor else job.fit(own)


def own_blocks(job: JobDemand, slots: Mapping[str, int]) -> int | None:
    """How many blocks the machines have that a job can use, None where it can use all."""
    if job.nodes is None:
        return None
    return sum(min(most, slots.get(host, 0) // job.unit) for host, most in job.nodes.items())


@dataclass
class _Given:
    """Promises that are given. `limit` are the devices that may be promised, `sum` those that are."""

    slots: Mapping[str, int]
    limit: float
    sum: int = 0
    names: set[str] = field(default_factory=set)
    _on: list[tuple[frozenset[str], int]] = field(default_factory=list)

    def add(self, job: JobDemand, need: int, here: int) -> None:
        """Give a promise of `need` devices, `here` of them on the machines that the job can use now."""
        self.names.add(job.name)
        self.sum += need
        machines = _machines(job)
        if machines is not None:
            self._on.append((machines, here))

    def fits(self, need: int, here: int, machines: Machines) -> bool:
        """Whether `need` devices more can be promised, and `here` of them on these machines.

        Promises that hold there alone must fit there, and so on any set of machines that they are part of.
        """
        if self.sum + need > self.limit:
            return False
        if machines is None:
            return True
        larger = {machines, *(others for others, _ in self._on if machines <= others)}
        return all(here + self._inside(others) <= self._devices(others) for others in larger)

    def _inside(self, machines: frozenset[str]) -> int:
        return sum(here for others, here in self._on if others <= machines)

    def _devices(self, machines: frozenset[str]) -> int:
        return sum(self.slots.get(host, 0) for host in machines)


def _machines(job: JobDemand) -> Machines:
    return None if job.nodes is None else frozenset(job.nodes)


def _overlap(some: Machines, others: Machines) -> bool:
    return some is None or others is None or bool(some & others)


def _by_tier(job: JobDemand) -> tuple[int, int, str]:
    return rank_of(job.tier), job.order, job.name
