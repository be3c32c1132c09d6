"""Makes room for a job: takes devices from lower ranks, or moves small jobs together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pulsetrain.recovery.pool.allocation import Allocation
from pulsetrain.recovery.pool.demand import JobDemand

STANDARD = 1  # the rank of promised standard jobs: what they hold above their floor can be taken


@dataclass(frozen=True, kw_only=True)
class Taking:
    """Blocks to take from one job on one node. `stops`: the whole job is pre-empted."""

    job: JobDemand
    node: str
    blocks: int
    stops: bool
    price: float


def reclaim(allocation: Allocation, job: JobDemand, blocks: int) -> bool:
    """Free so many more blocks for `job`, from lower ranks. Returns whether that was possible.

    Node by node, the cheapest first. A pre-empted job frees its other nodes as well, so prices are looked at
    anew after each.
    """
    mark = allocation.mark()
    while allocation.fits(job) < blocks:
        need = (blocks - allocation.fits(job)) * job.unit
        offers = [_offer(allocation, job, node, need) for node in _candidates(allocation, job)]
        possible = [offer for offer in offers if offer]
        if not possible:
            allocation.undo(mark)
            return False
        for taking in min(possible, key=_cost):
            _take(allocation, taking, job)
    return True


def reclaim_and_move(allocation: Allocation, job: JobDemand, blocks: int) -> bool:
    """Where no node can be freed by taking alone: take devices anywhere, and move what is left together.

    It takes twice as much each time that it was not enough.
    """
    mark, count = allocation.mark(), 1
    while True:
        offers = [_taking_from(allocation, job, other) for other in allocation.jobs.values()]
        takings = sorted((o for o in offers if o is not None), key=lambda taking: _cost([taking]))
        if not takings:
            allocation.undo(mark)
            return False
        for number, taking in enumerate(takings):
            if number >= count and allocation.total_free >= blocks * job.unit:
                break
            _take(allocation, taking, job)
        if allocation.fits(job) >= blocks or defragment(allocation, job, blocks):
            return True
        count *= 2


def _taking_from(allocation: Allocation, job: JobDemand, other: JobDemand) -> Taking | None:
    """All that can be taken from one job."""
    blocks = _blocks_to_take(allocation, job, other) if allocation.placed[other.name] else 0
    if not blocks:
        return None
    node = min(allocation.placed[other.name])
    return _taking(allocation, other, node, blocks, blocks * other.unit)


def can_reclaim(allocation: Allocation, job: JobDemand, blocks: int) -> bool:
    """Whether lower ranks hold enough, if nobody had to stay together."""
    lower = [other for other in allocation.jobs.values() if allocation.placed[other.name]]
    devices = sum(_blocks_to_take(allocation, job, other) * other.unit for other in lower)
    return allocation.total_free + devices >= blocks * job.unit


def _candidates(allocation: Allocation, job: JobDemand) -> Iterator[str]:
    nodes = allocation.slots if job.nodes is None else sorted(job.nodes.keys() & allocation.slots.keys())
    for node in nodes:
        full = job.nodes is not None and allocation.placed[job.name].get(node, 0) >= job.nodes[node]
        if allocation.slots[node] >= job.unit and allocation.on[node] and not full:
            yield node


def _cost(offer: list[Taking]) -> tuple[int, float, int, str]:
    """The lowest ranks are taken from first, then the cheapest, then the newest."""
    ranks = min(taking.job.rank for taking in offer)
    stopped = {taking.job.name: taking.price for taking in offer}
    return -ranks, sum(stopped.values()), -max(taking.job.order for taking in offer), offer[0].node


def _offer(allocation: Allocation, job: JobDemand, node: str, need: int) -> list[Taking] | None:
    """What to take on a node so that one more block of `job` is free there, None where that cannot be."""
    missing = job.unit - allocation.free[node] % job.unit
    offer = []
    for other in sorted(allocation.held_on(node), key=lambda o: (-o.rank, -o.order, o.name)):
        blocks = _blocks_to_take(allocation, job, other)
        here = allocation.placed[other.name].get(node, 0)
        if not blocks:
            continue
        taking = _taking(allocation, other, node, min(here, -(-missing // other.unit)), need)
        offer.append(taking)
        missing -= taking.blocks * other.unit
        if missing <= 0:
            return offer
    return None


def _blocks_to_take(allocation: Allocation, job: JobDemand, other: JobDemand) -> int:
    """How many blocks `job` may take from `other`: all of a lower rank, of standard those above its floor."""
    if other.busy or other.name == job.name:
        return 0
    size = allocation.size(other)
    if other.rank > STANDARD:
        return size if other.rank > job.rank else 0
    spare = size - allocation.floors[other.name]
    if other.rank == STANDARD and job.rank <= STANDARD and other.may_lose_s >= allocation.prices.pause_s:
        return max(0, spare)
    return 0


def _taking(allocation: Allocation, other: JobDemand, node: str, blocks: int, need: int) -> Taking:
    """Taking at least so many blocks. A job shrinks to an allowed size, or is pre-empted."""
    prices, size = allocation.prices, allocation.size(other)
    least = allocation.floors[other.name]
    left = max(other.fit(size - blocks), least)
    devices = size * other.unit
    waste = max(0, devices - need) * prices.horizon_s if not left else 0.0
    paused = allocation.size(other) != sum(allocation.before[other.name].values())
    price = (0.0 if paused else devices * prices.pause_s) + waste
    return Taking(job=other, node=node, blocks=min(blocks, size - left), stops=not left, price=price)


def _take(allocation: Allocation, taking: Taking, job: JobDemand) -> None:
    other, size = taking.job, allocation.size(taking.job)
    if not size:
        return
    why = f"{job.tier} job {job.name} needs devices"
    if taking.stops:
        allocation.release(other, why)
        return
    least = allocation.floors[other.name]
    left = max(other.fit(size - taking.blocks), least)
    here = allocation.placed[other.name].get(taking.node, 0)
    allocation.remove(other, taking.node, min(here, size - left))
    drop(allocation, other, allocation.size(other) - left)
    allocation.change(other, why, optional=False)


def drop(allocation: Allocation, job: JobDemand, blocks: int) -> None:
    """Take more blocks, where a job shrinks in steps. Those on the emptiest nodes go first."""
    held = allocation.placed[job.name]
    for node in sorted(held, key=lambda n: (held[n], n)):
        take = min(blocks, held[node])
        if take > 0:
            allocation.remove(job, node, take)
            blocks -= take


@dataclass(frozen=True, kw_only=True)
class Clearing:
    """Blocks (job, number) that leave a node so that a block of another job fits there."""

    node: str
    moves: tuple[tuple[JobDemand, int], ...]

    @property
    def key(self) -> tuple[int, int, str]:
        """The fewest moves first, then the fewest devices."""
        moved = sum(blocks for _, blocks in self.moves)
        return moved, sum(blocks * job.unit for job, blocks in self.moves), self.node


def defragment(allocation: Allocation, job: JobDemand, blocks: int) -> bool:
    """Move small jobs together so that so many blocks of `job` fit. Returns whether that was done.

    Nodes that take the fewest moves are cleared first. Where all moved blocks are alike that is the fewest
    moves at all. Nothing is moved if not all blocks fit in the end, or if the pauses cost more than they
    bring.
    """
    if allocation.total_free < blocks * job.unit:
        return False
    mark, missing = allocation.mark(), blocks - allocation.fits(job)
    kept = set(allocation.room(job))
    clearings = sorted(filter(None, (_clearing(allocation, job, n) for n in _candidates(allocation, job))),
                       key=lambda clearing: clearing.key)  # fmt: skip
    done: list[tuple[JobDemand, str, str]] = []
    for clearing in clearings:
        if missing <= 0:
            break
        if clearing.node in {to for _, _, to in done}:
            continue
        moved = _clear(allocation, clearing, kept)
        if moved:
            done += moved
            kept.add(clearing.node)
            missing -= 1
    if missing > 0 or not _worth(allocation, job, blocks, {other.name for other, _, _ in done}):
        allocation.undo(mark)
        return False
    why = f"makes room for {job.tier} job {job.name}"
    for other in {other.name: other for other, _, _ in done}.values():
        allocation.change(other, why, optional=not job.promised)
    return True


def _clearing(allocation: Allocation, job: JobDemand, node: str) -> Clearing | None:
    missing = job.unit - allocation.free[node]
    if missing <= 0:
        return None
    moves = []
    for other in sorted(allocation.held_on(node), key=lambda o: (-o.unit, o.name)):
        if not _movable(allocation, other, job):
            continue
        blocks = min(allocation.placed[other.name][node], -(-missing // other.unit))
        moves.append((other, blocks))
        missing -= blocks * other.unit
        if missing <= 0:
            return Clearing(node=node, moves=tuple(moves))
    return None


def _movable(allocation: Allocation, other: JobDemand, job: JobDemand) -> bool:
    prices = allocation.prices
    calm = other.still_s >= prices.grow_after_s and not other.may_lose_all
    calm = calm or job.promised
    return not other.busy and calm and other.name != job.name and other.may_lose_s >= prices.pause_s


def _clear(allocation: Allocation, clearing: Clearing, kept: set[str]) -> list[tuple[JobDemand, str, str]]:
    """Move blocks off a node to others than `kept`. Returns one (job, from, to) for each, none if stuck."""
    done: list[tuple[JobDemand, str, str]] = []
    mark = allocation.mark()
    for other, blocks in clearing.moves:
        for _ in range(blocks):
            to = allocation.tightest(other, kept | {clearing.node})
            if not to:
                allocation.undo(mark)
                return []
            allocation.remove(other, clearing.node, 1)
            allocation.add(other, to, 1)
            done.append((other, clearing.node, to))
    return done


def _worth(allocation: Allocation, job: JobDemand, blocks: int, moved: set[str]) -> bool:
    prices = allocation.prices
    paused = [allocation.jobs[name] for name in moved]
    cost = sum(allocation.size(other) * other.unit for other in paused) * prices.pause_s
    return cost < blocks * job.unit * prices.horizon_s
