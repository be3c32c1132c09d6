"""Who holds which devices of a pool while a decision is made. Only `decide` changes it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

from pulsetrain.recovery.pool.demand import JobDemand, Prices
from pulsetrain.recovery.pool.promises import floor_of

Placement = dict[str, int]


class Allocation:
    """Free devices of each node and blocks of each job. `why` says of each changed job what for.

    Blocks on nodes that the pool does not have are left out: their jobs are `lost`. `floors` has the blocks
    that are promised. Moving jobs together for one without a promise failed for `stuck` devices. `optional`
    names jobs that change, and whose change nobody's promise needs.
    """

    def __init__(self, slots: Mapping[str, int], jobs: Iterable[JobDemand], prices: Prices) -> None:
        self.slots, self.prices = slots, prices
        self.jobs = {job.name: job for job in jobs}
        self.free = dict(slots)
        self.placed: dict[str, Placement] = {}
        self.lost: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._log: list[tuple[JobDemand, str, int]] = []
        self.on: dict[str, set[str]] = defaultdict(set)
        self.why: dict[str, str] = {}
        self.optional: set[str] = set()
        self.before = {job.name: job.placed for job in self.jobs.values()}
        for job in self.jobs.values():
            held = {node: blocks for node, blocks in job.placed.items() if node in self.free and blocks > 0}
            self.placed[job.name] = held
            size = self._sizes[job.name] = sum(held.values())
            if held.keys() != job.placed.keys() or job.fit(size) != size:
                self.lost.add(job.name)
            for node, blocks in held.items():
                self.free[node] -= blocks * job.unit
                self.on[node].add(job.name)
        self.devices = sum(slots.values())
        self.total_free = sum(self.free.values())
        self._by_free: dict[int, set[str]] = defaultdict(set)
        for node, devices in self.free.items():
            self._by_free[devices].add(node)
        self.floors = {
            job.name: floor_of(job, slots, prices) if job.promised else 0 for job in self.jobs.values()
        }
        self.stuck = math.inf

    def size(self, job: JobDemand) -> int:
        """Blocks of a job now."""
        return self._sizes[job.name]

    def fits(self, job: JobDemand) -> int:
        """How many more blocks of this job fit into what is free."""
        if job.nodes is not None:
            return sum(self.fits_on(job, node) for node in job.nodes)
        unit = job.unit
        return sum(
            devices // unit * len(nodes) for devices, nodes in self._by_free.items() if devices >= unit
        )

    def fits_on(self, job: JobDemand, node: str) -> int:
        """How many more blocks of this job fit into what is free on one node."""
        blocks = max(0, self.free.get(node, 0)) // job.unit
        if job.nodes is None:
            return blocks
        return max(0, min(blocks, job.nodes.get(node, 0) - self.placed[job.name].get(node, 0)))

    def add(self, job: JobDemand, node: str, blocks: int) -> None:
        """Give a job blocks of a node."""
        self._log.append((job, node, blocks))
        self._add(job, node, blocks)

    def remove(self, job: JobDemand, node: str, blocks: int) -> None:
        """Take blocks of a node from a job."""
        self.add(job, node, -blocks)

    def _add(self, job: JobDemand, node: str, blocks: int) -> None:
        held = self.placed[job.name]
        held[node] = held.get(node, 0) + blocks
        self._sizes[job.name] += blocks
        if held[node]:
            self.on[node].add(job.name)
        else:
            del held[node]
            self.on[node].discard(job.name)
        self._change(node, -blocks * job.unit)

    def mark(self) -> tuple[int, dict[str, str]]:
        """The present state, for `undo`."""
        return len(self._log), dict(self.why)

    def undo(self, mark: tuple[int, dict[str, str]]) -> None:
        """Go back to a state."""
        length, self.why = mark
        while len(self._log) > length:
            job, node, blocks = self._log.pop()
            self._add(job, node, -blocks)

    def change(self, job: JobDemand, why: str, *, optional: bool) -> None:
        """Note what a job changes for. Where something else needs that too, it is not optional."""
        if not optional:
            self.optional.discard(job.name)
        elif job.name not in self.why:
            self.optional.add(job.name)
        self.why[job.name] = why

    def _change(self, node: str, devices: int) -> None:
        self._by_free[self.free[node]].discard(node)
        self.free[node] += devices
        self.total_free += devices
        self._by_free[self.free[node]].add(node)

    def close(self, nodes: Iterable[str]) -> None:
        """Give nobody what is free on these nodes now."""
        for node in nodes:
            if self.free.get(node, 0) > 0:
                self._change(node, -self.free[node])

    def release(self, job: JobDemand, why: str) -> None:
        """Take everything from a job."""
        for node, blocks in list(self.placed[job.name].items()):
            self.remove(job, node, blocks)
        self.why[job.name] = why

    def place(self, job: JobDemand, blocks: int, why: str) -> None:
        """Give a job so many more blocks. They must fit. The fullest nodes are filled first."""
        room = self.room(job)
        for _, node in sorted((self.free[node], node) for node in room):
            take = min(blocks, self.fits_on(job, node))
            self.add(job, node, take)
            blocks -= take
            if not blocks:
                break
        self.why[job.name] = why

    def room(self, job: JobDemand) -> list[str]:
        """Nodes that have a free block for this job."""
        if job.nodes is not None:
            return [n for n in job.nodes if self.fits_on(job, n)]
        return [n for devices, nodes in self._by_free.items() if devices >= job.unit for n in nodes]

    def tightest(self, job: JobDemand, without: Container[str]) -> str:
        """The node with the fewest free devices that has a block for this job, "" for none."""
        for devices in sorted(amount for amount in self._by_free if amount >= job.unit):
            nodes = [n for n in self._by_free[devices] if n not in without]
            allowed = nodes if job.nodes is None else [n for n in nodes if self.fits_on(job, n)]
            if allowed:
                return min(allowed)
        return ""

    def held_on(self, node: str) -> list[JobDemand]:
        """The jobs that hold blocks of a node, by name."""
        return [self.jobs[name] for name in sorted(self.on[node])]
