"""Samples of RDMA ports and network interfaces as series, and what was counted between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.machines.metric_series import Series, by_device, duration_s
from pulsetrain.collectors.machine.port_sampling import DIRECTIONS, Direction, PortRow
from pulsetrain.records.counters import every_counter

Floats = NDArray[np.float64]
FAMILIES = ("rdma", "nic")
STATES = ("port_state", "link_rate_bits_per_s", "link_layer")
ACTIVE = 4.0  # of rdma_port_state: "4: ACTIVE"
TRANSMIT, RECEIVE = "rdma_transmit_bytes", "rdma_receive_bytes"


@dataclass(frozen=True, kw_only=True)
class Port:
    """Samples of one port by metric: times (UTC ns, rising) and values."""

    node: str
    device: str
    samples: Mapping[str, Series] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """NODE/DEVICE, or the device alone where the node is not known."""
        return f"{self.node}/{self.device}" if self.node else self.device

    @property
    def family(self) -> str:
        """What its metrics begin with: "rdma" or "nic"."""
        return "rdma" if any(m.startswith("rdma_") for m in self.samples) else "nic"

    @property
    def state(self) -> str:
        """The metric that tells whether the port is up."""
        return f"{self.family}_port_state"

    @property
    def up(self) -> float:
        """The value of `state` while the port is up."""
        return ACTIVE if self.family == "rdma" else 1.0

    def downs(self) -> float:
        """How often the link went down, by the counters that can be read. NaN where none can."""
        counted = [self.total(m) for m in self.samples if _reveals_flap(m)]
        return max([c for c in counted if np.isfinite(c)], default=float("nan"))

    def increases(self, metric: str) -> tuple[NDArray[np.int64], Floats]:
        """Times, and how much was counted since the sample before. NaN where that cannot be known."""
        if metric not in self.samples:
            return np.empty(0, np.int64), np.empty(0)
        times, values = self.samples[metric]
        return times[1:], every_counter()[metric].increases(values)

    def total(self, metric: str) -> float:
        """How much was counted in the range. NaN where nothing is known."""
        _, steps = self.increases(metric)
        known = steps[np.isfinite(steps)]
        return float(known.sum()) if known.size else float("nan")

    def seconds(self, metric: str) -> float:
        """Time between the first and the last sample."""
        return duration_s(self.samples[metric]) if metric in self.samples else 0.0


def _reveals_flap(metric: str) -> bool:
    counter = every_counter().get(metric)
    return counter is not None and counter.reveals == "flap"


def ports(table: pa.Table) -> list[Port]:
    """Ports from rows of `metrics` (node, device, name, ts, value), in any order and repeated or not."""
    wanted = {*every_counter(), *(f"{f}_{m}" for f in FAMILIES for m in STATES)}
    return [
        Port(node=node, device=device, samples=samples)
        for node, device, samples in by_device(table, wanted.__contains__)
    ]


def totals(ports: Sequence[Port], metric: str) -> Floats:
    """How much each port counted, as `Port.total` does for one. NaN where nothing is known."""
    have = [i for i, port in enumerate(ports) if metric in port.samples]
    if not have:
        return np.full(len(ports), np.nan)
    values = [ports[i].samples[metric][1] for i in have]
    owner = np.repeat(have, [len(each) for each in values])
    steps = every_counter()[metric].increases(np.concatenate(values))
    known = np.isfinite(steps) & (owner[1:] == owner[:-1])
    counted = np.bincount(owner[1:][known], steps[known], minlength=len(ports))
    return np.where(np.bincount(owner[1:][known], minlength=len(ports)) > 0, counted, np.nan)


class TrafficRow(TypedDict):
    """Traffic of one port in one direction. Shares are of the line rate. None where that is not known."""

    device: str
    direction: Direction
    mean_bits_per_s: float
    peak_bits_per_s: float
    line_bits_per_s: float | None
    mean_share: float | None
    peak_share: float | None
    samples: int
    covered_share: float


def share_of_line_rate(row: PortRow) -> list[TrafficRow]:
    """The mean and the peak rate of each direction of a sampled port, also as shares of its line rate.

    Tells whether transfers reach the physical limit. Nothing where fewer than two samples were taken.
    """
    if row["samples"] < 2:
        return []
    return [_traffic(row, direction) for direction in DIRECTIONS]


def _traffic(row: PortRow, direction: Direction) -> TrafficRow:
    line, moved = row["limit_bits_per_s"], row[direction]
    mean = moved["mean_bits_per_s"]
    return TrafficRow(
        device=row["device"],
        direction=direction,
        mean_bits_per_s=mean,
        peak_bits_per_s=moved["peak_bits_per_s"],
        line_bits_per_s=line,
        mean_share=round(mean / line, 4) if line else None,
        peak_share=moved["peak_share"],
        samples=row["samples"],
        covered_share=row["covered_share"],
    )
