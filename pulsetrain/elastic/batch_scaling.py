"""A global batch that shrinks and grows with the number of ranks, and the learning rate that goes with it.

The other way is to keep the batch: `ElasticSampler` then does more microbatches on each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pulsetrain.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ScaledBatch:
    """`batch` of all ranks together, and the factor of the learning rate that was set for the full batch."""

    batch: int
    learning_rate_factor: float


def scaled_batch(
    full_batch: int, *, full_world: int, world: int, rule: Literal["linear", "sqrt"] = "linear"
) -> ScaledBatch:
    """The batch of `world` ranks where each has as many samples as in `full_batch` of `full_world` ranks.

    The factor is the ratio of the batches for `linear` (Goyal et al., arXiv 1706.02677, for SGD), its square
    root for `sqrt` (Krizhevsky, arXiv 1404.5997, often used with Adam). Raises `UsageError`.

    >>> scaled_batch(512, full_world=8, world=6)
    ScaledBatch(batch=384, learning_rate_factor=0.75)
    """
    if min(full_batch, full_world, world) < 1 or full_batch % full_world:
        raise UsageError(
            f"batch {full_batch} of {full_world} ranks, {world} ranks: allowed: from 1, "
            "and a batch that the full number of ranks divides"
        )
    if rule not in ("linear", "sqrt"):
        raise UsageError(f"rule {rule!r}: allowed: linear, sqrt")
    batch = full_batch // full_world * world
    ratio = batch / full_batch
    return ScaledBatch(batch=batch, learning_rate_factor=ratio if rule == "linear" else ratio**0.5)
