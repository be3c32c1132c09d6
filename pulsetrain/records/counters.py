"""What a cumulative hardware counter means: unit, width, and what it does at its end.

Shared by the collector that reads the files and the analyzers that take differences. Table: counters.csv.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec")
_NUMBERED = re.compile(r"(\d+):\s*(\S.*)?")


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One file of a port. A sample is the raw value times `scale`, in `unit`."""

    folder: str
    file: str
    metric: str
    unit: str
    scale: int
    bits: int
    at_max: Literal["wraps", "saturates"]
    also_bits: int
    reveals: str
    source: str
    by_link: str = ""
    """how one NVLink is asked, "" for counters of other things"""

    def saturated(self, value: float) -> bool:
        """Whether a sample (scaled) stands where the counter can count no further: it is blind from there on.

        >>> counters()["rdma_link_downed_total"].saturated(255)
        True
        """
        raw = round(value / self.scale)
        if self.at_max == "saturates" and raw == 2**self.bits - 1:
            return True
        return self.also_bits > 0 and raw == 2**self.also_bits - 1

    def increase(self, before: float | None, after: float | None, *, rebooted: bool = False) -> float | None:
        """How much was counted between two samples, in `unit`; None where that cannot be known.

        A missing sample or a saturated one gives None, never 0. A smaller value after a reboot or a reset
        counts from 0, so that the answer is what came since, not a huge number; a counter of 32 bits or less
        that wraps and stood in its last quarter went over its end.

        >>> c = counters()["rdma_transmit_bytes"]
        >>> c.increase(400.0, 1000.0), c.increase(1000.0, 400.0), c.increase(None, 400.0)
        (600.0, 400.0, None)
        """
        if before is None or after is None or before != before or after != after:
            return None
        if self.saturated(after):
            return None
        if rebooted:
            return after
        if after < before:
            return after + self._wrapped(before)
        return after - before

    def increases(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """`increase` between each sample and the next one. NaN where that cannot be known.

        >>> counters()["rdma_transmit_bytes"].increases(np.array([400.0, 1000.0, 400.0]))
        array([600., 400.])
        """
        before, after = values[:-1], values[1:]
        lower = after < before
        steps = after - before
        if lower.any():
            fallen = zip(before[lower].tolist(), after[lower].tolist(), strict=True)
            steps[lower] = [a + self._wrapped(b) for b, a in fallen]
        blind = np.zeros(len(after), np.bool_)
        raw = np.round(after / self.scale)
        if self.at_max == "saturates":
            blind |= raw == 2.0**self.bits - 1
        if self.also_bits:
            blind |= raw == 2.0**self.also_bits - 1
        steps[blind | ~np.isfinite(after) | ~np.isfinite(before)] = np.nan
        return steps

    def _wrapped(self, before: float) -> float:
        """What a narrow counter in its last quarter counted up to its end; 0 where it was reset."""
        end = 2.0**self.bits * self.scale
        narrow = self.at_max == "wraps" and self.bits <= 32
        return end - before if narrow and 0.75 * end <= before <= end else 0.0


Family = Literal["rdma", "nic", "nvlink"]
_TABLES: Mapping[str, str] = MappingProxyType(
    {"rdma": "counters.csv", "nic": "counters_nic.csv", "nvlink": "counters_nvlink.csv"}
)


@cache
def every_counter() -> Mapping[str, Counter]:
    """The counters of all families by the name of the metric."""
    families: tuple[Family, ...] = ("rdma", "nic", "nvlink")
    return MappingProxyType({name: c for family in families for name, c in counters(family).items()})


@cache
def counters(family: Family = "rdma") -> Mapping[str, Counter]:
    """Every counter of RDMA ports, network interfaces or NVLinks by the name of its metric.

    Of a metric that several files may hold it is the first one.
    """
    return MappingProxyType({c.metric: c for c in reversed(counter_files(family))})


@cache
def counter_files(family: Family = "rdma") -> tuple[Counter, ...]:
    """Every file of the table, in its order. Some cards have a metric in another file than most."""
    text = files("pulsetrain.records").joinpath(_TABLES[family]).read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Counter(
            folder=r["folder"],
            file=r["file"],
            metric=r["metric"],
            unit=r["unit"],
            scale=int(r["scale"]),
            bits=int(r["bits"]),
            at_max="saturates" if r["at_max"] == "saturates" else "wraps",
            also_bits=int(r["also_bits"] or 0),
            reveals=r["reveals"],
            source=r["source"],
            by_link=r.get("by_link") or "",
        )
        for r in rows
    )


def rate_bits_per_s(text: str) -> float | None:
    """The line rate from a port's `rate` file; None where it is no rate.

    >>> rate_bits_per_s("400 Gb/sec (4X NDR)")
    400000000000.0
    """
    match = _RATE.match(text.strip())
    return float(match[1]) * 1e9 if match else None


def numbered(text: str) -> tuple[int, str] | None:
    """Number and name of a state file; None where it has another form.

    >>> numbered("4: ACTIVE")
    (4, 'ACTIVE')
    """
    match = _NUMBERED.fullmatch(text.strip())
    return (int(match[1]), match[2] or "") if match else None
