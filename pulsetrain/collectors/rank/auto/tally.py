"""What one step has used so far: losses, tokens, backward passes. Nothing here waits for a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from pulsetrain.collectors.rank.numbers import Number

SAME = 1e-5
"""Relative difference up to which two sums of the same losses are equal. float32 keeps 7 digits."""


def objective(losses: Iterable[float]) -> float:
    """Return the sum of the losses of a step's backward passes, in their order. What is repeated counts once.

    Code that computes a large loss in pieces goes backward from each piece as far as the last layer, and then
    from the sum of the pieces through the rest of the model. Losses are taken for such only if each belongs
    to a sum of two or more. A schedule may make the pieces of several sums first.
    """
    parts = list(losses)
    waiting: deque[float] = deque()
    repeated = 0.0
    for part in parts:
        pieces = _pieces(waiting, part)
        if not pieces:
            waiting.append(part)
            continue
        repeated += part
        for _ in range(pieces):
            waiting.popleft()
    return sum(parts) - (0.0 if waiting else repeated)


def _pieces(waiting: Iterable[float], total: float) -> int:
    """Return how many of the first are the pieces of the total, 0: none."""
    for number, so_far in enumerate(accumulate(waiting), 1):
        if number > 1 and so_far and abs(total - so_far) <= SAME * abs(so_far):
            return number
    return 0


class NumberSum:
    """The `objective` of numbers that may be on their way from a device, divided by `divisor`."""

    __slots__ = ("_divisor", "_parts")

    def __init__(self, parts: list[Number], divisor: int = 1) -> None:
        self._parts, self._divisor = parts, divisor

    def ready(self) -> bool:
        """Return whether all have arrived."""
        return all(part.ready() for part in self._parts)

    def value(self) -> float:
        """Return it. Only valid once `ready`."""
        return objective(part.value() for part in self._parts) / self._divisor


@dataclass(slots=True)
class Tally:
    """`losses`: one number for each backward pass from a scalar. `fetched`: batches from a data loader."""

    losses: list[Number] = field(default_factory=list)
    tokens: int = 0
    backwards: int = 0
    fetched: int = 0

    def take_in(self, other: Tally) -> None:
        """Add the other's counts to this one's and empty the other."""
        self.losses += other.losses
        self.tokens += other.tokens
        self.backwards += other.backwards
        self.fetched += other.fetched
        other.losses, other.tokens, other.backwards, other.fetched = [], 0, 0, 0

    def divide_losses(self, divisor: int) -> None:
        """The gradients of all losses so far were divided."""
        if self.losses:
            self.losses = [NumberSum(self.losses, divisor)]

    def loss(self) -> Number | None:
        """Return the objective whose gradient the step applies, over all its backward passes."""
        return NumberSum(self.losses) if self.losses else None
