"""How many standbys a fleet needs. Pure.

As many as machines fail in a day in 99 of 100 days, where each fails by itself (ByteRobust, arXiv 2509.16293:
the 99th percentile of a binomial; it keeps 2, 2, 3 and 4 standbys for 128, 256, 512 and 1024 machines).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pulsetrain.core.errors import UsageError

PUBLISHED_DAILY_RATE = 0.0012
"""Failures of a machine in a day with which the published numbers of standbys come out."""
SURE = 0.99


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """How many machines were lost or evicted, and for how many days of machines that was watched."""

    failures: int
    machine_days: float

    @property
    def daily_rate(self) -> float:
        """Failures of a machine in a day. A short record says little, so the published rate counts as one
        failure more.

        >>> FailureRecord(failures=0, machine_days=0.0).daily_rate == PUBLISHED_DAILY_RATE
        True
        >>> round(FailureRecord(failures=99, machine_days=10_000.0).daily_rate, 4)
        0.0092
        """
        return (self.failures + 1) / (self.machine_days + 1 / PUBLISHED_DAILY_RATE)


def standbys_needed(machines: int, daily_rate: float, *, sure: float = SURE) -> int:
    """The fewest standbys that suffice on a share `sure` of all days. Raises `UsageError`.

    >>> [standbys_needed(n, PUBLISHED_DAILY_RATE) for n in (128, 256, 512, 1024)]
    [2, 2, 3, 4]
    """
    if machines < 1 or not 0 < daily_rate < 1 or not 0 < sure < 1:
        raise UsageError(
            f"{machines} machines, rate {daily_rate}, sure {sure}: allowed: from 1, and between 0 and 1"
        )
    fails, lasts = math.log(daily_rate), math.log1p(-daily_rate)
    chance = 0.0
    for count in range(machines):
        ways = math.lgamma(machines + 1) - math.lgamma(count + 1) - math.lgamma(machines - count + 1)
        chance += math.exp(ways + count * fails + (machines - count) * lasts)
        if chance >= sure:
            return count
    return machines
