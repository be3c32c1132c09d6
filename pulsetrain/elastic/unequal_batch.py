"""How much each replica computes, so that replicas of unequal degree end their step together."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pulsetrain.core.errors import ConfigError, UsageError


@dataclass(frozen=True, kw_only=True)
class PowerModel:
    """How much faster a device computes with more power: power to the exponent.

    The limit is that of Nonuniform Tensor Parallelism (arXiv 2504.06095), in units of the device's normal
    power. The exponent is an assumption, between 1/3 (frequency and voltage rise together) and 1. Measure
    your own.
    """

    limit: float = 1.3
    """Most power that the rack may give a device, in units of its normal power."""
    exponent: float = 0.5
    """Speed is power to this exponent."""

    def __post_init__(self) -> None:
        if self.limit < 1 or not 0 < self.exponent <= 1:
            raise ConfigError("power: allowed: a limit of 1 or more, an exponent above 0 and up to 1")

    def needed(self, degree: int, full_degree: int) -> float:
        """Power with which `degree` devices are as fast as `full_degree` of normal power.

        It may be above the limit.
        """
        return float((full_degree / degree) ** (1 / self.exponent))

    def speed(self, degree: int, full_degree: int) -> float:
        """Speed of each device within the limit: as much as makes up for the missing ones, and no more."""
        return min(float(self.limit**self.exponent), full_degree / degree)


NORMAL_POWER = PowerModel(limit=1.0)


def local_batch(full_batch: int, degree: int, full_degree: int, power: PowerModel = NORMAL_POWER) -> int:
    """Samples of a replica of `degree`, so that its step takes no longer than `full_batch` on `full_degree`.

    Time is samples over devices, divided by their speed. The answer is 0 where even one sample takes too
    long.

    >>> local_batch(8, 30, 32), local_batch(8, 30, 32, PowerModel())
    (7, 8)
    """
    if full_batch < 1 or not 1 <= degree <= full_degree:
        raise UsageError(f"batch {full_batch}, degree {degree}: allowed: from 1, 1 to {full_degree}")
    speed = power.speed(degree, full_degree)
    return min(full_batch, math.floor(full_batch * degree * speed / full_degree + 1e-9))


def deal_batch(samples: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Deal a fixed global batch over replicas, so that the slowest ends as early as can be.

    Each sample goes to the replica that would end it first. Replicas of equal speed differ by one at most.
    Raises `UsageError`.

    >>> deal_batch(14, [4, 3])
    (8, 6)
    """
    if samples < 0 or not speeds or min(speeds) <= 0:
        raise UsageError("batch: allowed: samples from 0, one or more replicas of a speed above 0")
    dealt = [0] * len(speeds)
    queue = [(1 / speed, replica) for replica, speed in enumerate(speeds)]
    heapq.heapify(queue)
    for _ in range(samples):
        _, replica = queue[0]
        dealt[replica] += 1
        heapq.heapreplace(queue, ((dealt[replica] + 1) / speeds[replica], replica))
    return tuple(dealt)
