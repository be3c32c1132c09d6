"""What jobs want of a pool and what they have: tiers, sizes, and the present allocation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from pulsetrain.core.errors import UsageError

HOUR_S = 3600.0


class Tier(StrEnum):
    """What a job is promised. The first one comes first."""

    PREMIUM = "premium"
    STANDARD = "standard"
    BASIC = "basic"


TIERS: tuple[str, ...] = tuple(tier.value for tier in Tier)
GUARANTEE: Mapping[Tier, float] = MappingProxyType({Tier.PREMIUM: 0.95, Tier.STANDARD: 0.70, Tier.BASIC: 0.0})
"""The share of its ideal work that a job gets in each hour (Singularity, arXiv 2202.07848)."""
_RANK: Mapping[Tier, int] = MappingProxyType({tier: rank for rank, tier in enumerate(Tier)})


def tier_of(text: str) -> Tier:
    """The tier of this name. Raises `UsageError`."""
    try:
        return Tier(text)
    except ValueError:
        raise UsageError(f"tier = {text!r}: allowed: {', '.join(TIERS)}") from None


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What actions cost, and what they must bring in return. Times in seconds."""

    pause_s: float = 30.0
    """How long a job stands still when it is pre-empted, resumed, migrated or resized."""
    horizon_s: float = 1800.0
    """How long a change is expected to last. An action must gain more device-seconds in it than it costs."""
    grow_after_s: float = 600.0
    """How long a job must have been left alone before it grows or is moved to make room."""
    reserve_ratio: float = 0.02
    """Share of the pool that is promised to nobody, for devices that fail. Basic jobs use it meanwhile."""
    margin: float = 0.05
    """A standard job is never made smaller than its guarantee and this, so that pauses do not break it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDemand:
    """One job. It runs on `least` to `most` blocks, in multiples of `step`. A block is `unit` devices of one
    node.

    `order` is the order of arrival. `placed` has the blocks that it holds now, by node. `promised`: its
    guarantee was given. `nodes` are those that it can run on, with the most blocks there, None for any.
    `may_lose_s` is how long it may stand still in its present hour without falling below its guarantee.
    `still_s` is the time since it was changed. A job that is `busy` is left alone. It is to leave `failing`
    nodes where others are free. One that `may_lose_all` by a stop is stopped for a promise alone.
    """

    name: str
    tier: Tier
    unit: int
    least: int
    most: int
    order: int
    step: int = 1
    placed: Mapping[str, int] = field(default_factory=dict)
    promised: bool = False
    nodes: Mapping[str, int] | None = None
    may_lose_s: float = math.inf
    still_s: float = math.inf
    busy: bool = False
    failing: frozenset[str] = frozenset()
    may_lose_all: bool = False

    @property
    def size(self) -> int:
        """Blocks that it holds."""
        return sum(self.placed.values())

    @property
    def guaranteed(self) -> bool:
        """Whether its tier promises anything."""
        return self.tier is not Tier.BASIC

    @property
    def rank(self) -> int:
        """0 for promised premium jobs, 1 for promised standard, 2 for those not promised yet, 3 for basic."""
        if not self.guaranteed:
            return 3
        return _RANK[self.tier] if self.promised else 2

    def fit(self, blocks: int) -> int:
        """The largest allowed size of at most so many blocks, 0 where there is none.

        >>> job = JobDemand(name="j", tier=Tier.BASIC, unit=8, least=2, most=6, step=2, order=0)
        >>> [job.fit(n) for n in (1, 2, 5, 9)]
        [0, 2, 4, 6]
        """
        size = min(blocks, self.most) // self.step * self.step
        return size if size >= self.least else 0

    def floor(self, margin: float) -> int:
        """The fewest blocks that keep the guarantee: all of a premium job, none of a basic one.

        >>> job = JobDemand(name="j", tier=Tier.STANDARD, unit=1, least=1, most=16, order=0)
        >>> job.floor(0.05)
        12
        """
        if self.tier is Tier.PREMIUM:
            return self.fit(self.most)
        if not self.guaranteed:
            return 0
        wanted = (GUARANTEE[self.tier] + margin) * self.most
        blocks = max(self.least, math.ceil(wanted - 1e-9))
        return min(-(-blocks // self.step) * self.step, self.fit(self.most))


def rank_of(tier: Tier) -> int:
    """0 for the tier that comes first."""
    return _RANK[tier]
