"""A global batch that shrinks and grows with the number of ranks, and the learning rate that goes with it.

The other way is to keep the batch: `ElasticSampler` then does more microbatches on each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pulsetrain.core.errors import UsageError

_FACTOR = "pulsetrain_rate_factor"  # in each parameter group: the factor that its rates have
_OF_GROUP = ("lr", "initial_lr", "max_lr", "min_lr")
_OF_SCHEDULE = ("base_lrs", "max_lrs", "_last_lr")


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


class HasGroups(Protocol):
    """A torch optimizer."""

    param_groups: list[dict[str, Any]]


def scale_learning_rates(optimizer: HasGroups, factor: float, *schedules: object) -> None:
    """Give an optimizer, and schedules of its learning rate, `factor` times the rates of the full batch.

    Call it once after `restore()`, at every start. The optimizer keeps the factor in its parameter groups. So
    one that was saved under another factor, or in the middle of its schedule, is scaled by the ratio of the
    two. `schedules` are torch's, and are saved with the optimizer. Rates that they keep elsewhere, such as
    `eta_min`, stay. Raises `UsageError`.
    """
    if not factor > 0:
        raise UsageError(f"learning rate factor {factor}: allowed: above 0")
    ratios = [factor / group.get(_FACTOR, 1.0) for group in optimizer.param_groups]
    done: set[int] = set()
    for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
        group[_FACTOR] = factor
        for name in _OF_GROUP:
            if name in group:
                group[name] = _scaled(group[name], ratio, done)
    for schedule in schedules:
        _scale_schedule(schedule, ratios, done)


def _scale_schedule(schedule: object, ratios: list[float], done: set[int]) -> None:
    """Scale what it keeps for each parameter group, and those of the schedules that it is made of."""
    for name in _OF_SCHEDULE:
        rates = getattr(schedule, name, None)
        if isinstance(rates, list):
            both = zip(rates, ratios, strict=True)
            setattr(schedule, name, [rate if id(rate) in done else rate * ratio for rate, ratio in both])
    for inner in getattr(schedule, "_schedulers", ()):
        _scale_schedule(inner, ratios, done)


def _scaled(rate: Any, ratio: float, done: set[int]) -> Any:
    """A rate that is a tensor stays the same one: a captured graph reads it.

    Parameter groups and schedules may share it. `done` are those that were scaled, by `id`.
    """
    if not hasattr(rate, "mul_"):
        return rate * ratio
    if id(rate) not in done:
        done.add(id(rate))
        rate.mul_(ratio)
    return rate
