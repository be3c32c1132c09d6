"""When a job goes on with fewer nodes, and when it grows again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from pulsetrain.protocol.messages import Hello, WorldNode
from pulsetrain.recovery.world_sizes import WorldSizes

CHECK_PATIENCE = 3.0
"""While a node that has just joined, or a standby for a person, is checked, a job waits so many times longer
before it shrinks."""

SOON_S = 60.0
"""A job that shrinks so soon after it grew has grown for nothing."""
LONGEST_GROW_S = 600.0
REFUSALS = 3
"""State that did not fit so many sizes is taken to fit none but the one from which it comes."""


@dataclass(kw_only=True)
class Resizing:
    """How large a job's world is, and what it waits for before the size changes.

    `size` is the number of nodes of the present world, or of the one to come. `why_not` says why it cannot
    run on another number of nodes, "" where it can.

    A person may want fewer nodes than that: `cap`, 0 for no limit. `devices` are those that its ranks take
    turns on, 0: each has one. `under_way`: nodes are being told of another number right now. `told_in` is the
    last attempt whose nodes were, None for none.

    Before it grows, ranks of the attempt `asked_in` were asked to save, at `asked_s`. It then waits for a
    checkpoint of step `newer_than` or later. `acted_in` is the attempt that was stopped to grow. `grown_s` is
    when it grew last, None for never, and `short_lived` how often in a row it soon shrank again.

    `came_from` is the world before the size changed last, until the new one trains. `refused` says for which
    sizes its state could not be put together, or its ranks always `failed`, and why. `goes_back`: the next
    launch is of `came_from` again.
    """

    sizes: WorldSizes
    size: int
    why_not: str = ""
    short_lived: int = 0
    grown_s: float | None = None
    asked_in: int | None = None
    asked_s: float = 0.0
    newer_than: int = -1
    acted_in: int | None = None
    came_from: tuple[WorldNode, ...] = ()
    refused: dict[int, str] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    goes_back: bool = False
    cap: int = 0
    devices: int = 0
    under_way: bool = False
    told_in: int | None = None

    def fit(self, nodes: int) -> int:
        """The largest size that so many nodes can make up and that is wanted. 0 where they are too few.

        A size that was refused is passed over where there is a smaller one: that may divide.
        """
        largest = size = self.sizes.fit(min(nodes, self.cap) if self.cap else nodes)
        while size in self.refused and size != self.size and len(self.refused) < REFUSALS:
            size = self.sizes.fit(size - 1)
        return size or largest

    @property
    def is_untried(self) -> bool:
        """Whether no step was done at this size, and a world of another size trained before."""
        return len(self.came_from) not in (0, self.size)

    @property
    def is_final(self) -> bool:
        """Whether the world has the most nodes that are wanted: no node that comes changes it."""
        return self.size >= self.sizes.largest and not 0 < self.cap < self.size

    def refusal(self, size: int) -> str:
        """Why the state cannot be put together for this size, "" where that is not known.

        One size that was refused says little about others: it may not divide. After `REFUSALS` sizes no other
        is tried.
        """
        if len(self.refused) >= REFUSALS:
            return self.refused.get(size) or next(reversed(self.refused.values()))
        return self.refused.get(size, "")

    def changed(self, size: int, now_s: float) -> None:
        """The world gets another size."""
        if size > self.size:
            self.grown_s = now_s
        elif self.grown_s is not None:
            soon = now_s - self.grown_s < SOON_S
            self.short_lived = self.short_lived + 1 if soon else 0
            self.grown_s = None
        self.size, self.asked_in = size, None

    def grow_after_s(self, usual_s: float) -> float:
        """How long the job must train before it grows. A node that comes and goes is waited for longer.

        >>> resizing = Resizing(sizes=WorldSizes(least=1, most=2), size=1, short_lived=3)
        >>> resizing.grow_after_s(2.0)
        16.0
        """
        return min(usual_s * 2.0**self.short_lived, max(usual_s, LONGEST_GROW_S))

    @classmethod
    def of(cls, sizes: WorldSizes) -> Resizing:
        """Of a job that has no world yet."""
        return cls(sizes=sizes, size=sizes.largest)


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes that a job could run on now, and nodes that it could run on once a check is over."""

    available: int
    checked: int = 0


def size_now(resizing: Resizing, nodes: Nodes, *, waited_s: float, wait_s: float) -> int:
    """The number of nodes with which a job that stands goes on now. 0: it waits.

    It takes all nodes that it can. With fewer than before it goes on once it has waited `wait_s` for others.

    >>> resizing = Resizing.of(WorldSizes(least=1, most=4))
    >>> [size_now(resizing, Nodes(available=3), waited_s=s, wait_s=3) for s in (2, 4)]
    [0, 3]
    """
    size = resizing.fit(nodes.available)
    if size >= resizing.size:
        return size
    patience_s = wait_s * (CHECK_PATIENCE if nodes.checked else 1)
    return size if waited_s >= patience_s else 0


def larger_size(resizing: Resizing, available: int) -> int:
    """The number of nodes to which a running job could grow. 0: it cannot.

    >>> resizing = Resizing(sizes=WorldSizes(least=2, most=8, unit=2), size=4)
    >>> larger_size(resizing, 5), larger_size(resizing, 7)
    (0, 6)
    """
    size = resizing.fit(available)
    return size if size > resizing.size else 0


def other_size(resizing: Resizing, available: int) -> int:
    """The number of nodes to which a running job changes: more that are there, or fewer that are wanted.

    >>> resizing = Resizing(sizes=WorldSizes(least=1, most=4), size=3, cap=2)
    >>> other_size(resizing, 4)
    2
    """
    if resizing.cap and resizing.cap < resizing.size:
        return resizing.fit(resizing.size)
    return larger_size(resizing, available)


def shrinking_cost_s(stop_s: float) -> float:
    """Seconds without new steps that shrinking costs: one stop now, and one when the job grows again.

    A wait that is longer costs more than to shrink, where the nodes that are left are as fast each.
    """
    return 2 * stop_s


def own_devices(member: WorldNode, hello: Hello | None) -> int:
    """On how many devices the ranks of a node compute where nobody has resized the job."""
    started_with = hello.devices if hello is not None else 0
    return min(started_with or member.nproc, member.nproc)
