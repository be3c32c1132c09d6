"""What an optimizer says of itself: how many updates it has made."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pulsetrain.collectors.rank.numbers import Number, number

SEARCH = 256  # parameters that are asked for the count; the first ones may be frozen


def count(optimizer: torch.optim.Optimizer) -> Number | None:
    """Return how many updates it has made, from its own state. None where it does not count.

    A count on a CUDA device is copied behind the work that makes it. One that would have to be waited for is
    not read.
    """
    asked = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if isinstance(state, Mapping) and "step" in state:
                return _number(state["step"])
            asked += 1
            if asked >= SEARCH:
                return None
    return None


def _number(value: object) -> Number | None:
    try:
        return number(value)
    except (TypeError, ValueError):
        return None
