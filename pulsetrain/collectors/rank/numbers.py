"""Numbers that a script logs: known at once, or on their way from a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, SupportsFloat, cast

from pulsetrain.collectors.rank.timers import DeviceNumber

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor


class Number(Protocol):
    """A number that may not have arrived yet. `value` is valid once it is `ready`."""

    def ready(self) -> bool: ...
    def value(self) -> float: ...


class KnownNumber:
    """A number that is known at once."""

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        self._value = value

    def ready(self) -> bool:
        return True

    def value(self) -> float:
        return self._value


class ShiftedNumber:
    """A number plus `shift`."""

    __slots__ = ("_number", "_shift")

    def __init__(self, number: Number, shift: int) -> None:
        self._number, self._shift = number, shift

    def ready(self) -> bool:
        return self._number.ready()

    def value(self) -> float:
        return self._number.value() + self._shift


def number(value: object) -> Number:
    """Wrap a float or a one-element tensor. A tensor on a CUDA device is copied without waiting for it.

    Raises `TypeError` or `ValueError` if it is no single number. A DTensor must be replicated, because
    anything else would need a collective. A tensor on another device must not be read, because that would
    wait for all work before it.
    """
    if hasattr(value, "to_local"):
        value = _local(cast("DTensor", value))
    if hasattr(value, "detach"):
        value = cast("torch.Tensor", value).detach()
    if getattr(value, "is_cuda", False):
        return DeviceNumber(cast("torch.Tensor", value))
    device = getattr(getattr(value, "device", None), "type", "cpu")
    if device != "cpu":
        raise ValueError(f"a number on a device of type {device} cannot be read without waiting for it")
    return KnownNumber(float(cast("SupportsFloat", value)))


def _local(value: DTensor) -> torch.Tensor:
    if not all(placement.is_replicate() for placement in value.placements):
        raise ValueError("a DTensor that is not replicated has no value on this rank")
    return value.to_local()


class PendingStep:
    """A finished step whose numbers may still be on their way from the device."""

    __slots__ = ("duration", "flops", "numbers", "start", "step", "tokens")

    def __init__(
        self, step: int, start: int, duration: int, tokens: int, flops: float, numbers: dict[str, Number]
    ) -> None:
        self.step, self.start, self.duration = step, start, duration
        self.tokens, self.flops, self.numbers = tokens, flops, numbers

    def ready(self) -> bool:
        """Return whether every number has arrived."""
        return all(value.ready() for value in self.numbers.values())

    def known(self) -> dict[str, float]:
        """Return the numbers that have arrived."""
        return {name: value.value() for name, value in self.numbers.items() if value.ready()}
