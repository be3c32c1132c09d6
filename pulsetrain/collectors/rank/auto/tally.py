"""What one step has used so far: losses, tokens, backward passes. Nothing here waits for a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from pulsetrain.collectors.rank.numbers import Number


class NumberSum:
    """The sum of numbers that may be on their way from a device, divided by `divisor`."""

    __slots__ = ("_divisor", "_parts")

    def __init__(self, parts: list[Number], divisor: int = 1) -> None:
        self._parts, self._divisor = parts, divisor

    def ready(self) -> bool:
        """Return whether all have arrived."""
        return all(part.ready() for part in self._parts)

    def value(self) -> float:
        """Return it. Only valid once `ready`."""
        return sum(part.value() for part in self._parts) / self._divisor


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
        """Return the objective whose gradient the step applies: the sum over its backward passes."""
        return NumberSum(self.losses) if self.losses else None
