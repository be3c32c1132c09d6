"""What a fleet still produces with failed devices, by each way to go on."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pulsetrain.elastic.unequal_batch import NORMAL_POWER, PowerModel, local_batch

Counts = NDArray[np.int64]
Ratios = NDArray[np.float64]


class Strategy(enum.Enum):
    """What a job does with a replica that has failed devices."""

    WAIT = "wait"
    """The whole job waits until everything is repaired."""
    DP_DROP = "dp-drop"
    """The replica is left out."""
    NTP = "ntp"
    """The replica goes on at a smaller tensor-parallel degree, with a smaller batch."""
    NTP_PW = "ntp-pw"
    """As NTP, with more power for the devices that are left, and so a larger batch."""


@dataclass(frozen=True, kw_only=True)
class ReplicaShape:
    """A data-parallel replica: `domains` scale-up domains of `degree` devices, and its batch in samples."""

    degree: int
    domains: int
    batch: int
    smallest_degree: int
    power: PowerModel = field(default_factory=PowerModel)


def replica_ratios(strategy: Strategy, shape: ReplicaShape) -> Ratios:
    """Share of its batch that a replica computes, by the failures of its worst domain from 0 to all."""
    ratios = np.zeros(shape.degree + 1)
    ratios[0] = 1.0
    if strategy in (Strategy.NTP, Strategy.NTP_PW):
        power = shape.power if strategy is Strategy.NTP_PW else NORMAL_POWER
        for failed in range(1, shape.degree - shape.smallest_degree + 1):
            samples = local_batch(shape.batch, shape.degree - failed, shape.degree, power)
            ratios[failed] = samples / shape.batch
    return ratios


def replicas_at_least(domains: Counts, per_replica: int) -> Counts:
    """Replicas whose worst domain has k failures or more, for each k, with degraded domains packed together.

    `domains[..., k]` counts the domains with k failed devices. Domains that do not fill a replica are idle,
    the most degraded first.
    """
    at_least = np.cumsum(domains[..., ::-1], axis=-1)[..., ::-1]
    idle = at_least[..., :1] % per_replica
    packed: Counts = -(-np.maximum(0, at_least - idle) // per_replica)
    return packed


def fleet_capacity(strategy: Strategy, shape: ReplicaShape, domains: Counts) -> Ratios:
    """Full replicas that the fleet is worth, for each row of `domains` (see `replicas_at_least`).

    >>> shape = ReplicaShape(degree=4, domains=2, batch=4, smallest_degree=2)
    >>> row = np.array([5, 2, 1, 0, 0])
    >>> [float(fleet_capacity(each, shape, row)) for each in (Strategy.DP_DROP, Strategy.NTP)]
    [2.0, 3.25]
    """
    packed = replicas_at_least(domains, shape.domains)
    exactly = packed.astype(float)
    exactly[..., :-1] -= packed[..., 1:]
    capacity: Ratios = exactly @ replica_ratios(strategy, shape)
    if strategy is Strategy.WAIT:
        capacity = np.where(packed[..., 1] > 0, 0.0, capacity)
    return capacity


def spare_domains(strategy: Strategy, shape: ReplicaShape, domains: Counts, replicas: int) -> int:
    """Healthy domains to add to one row of `domains`, so that the fleet is worth `replicas` full replicas.

    This is what a job with a fixed global batch keeps in reserve.
    """
    row = np.array(domains, dtype=np.int64)
    if strategy is Strategy.WAIT:
        strategy = Strategy.DP_DROP  # with spares it replaces what failed
    spares = 0
    while float(fleet_capacity(strategy, shape, row)) < replicas - 1e-9:
        row[0] += 1
        spares += 1
    return spares
