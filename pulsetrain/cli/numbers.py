"""Numbers that options take: never NaN, never infinite."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.types.FloatParamType):
    """Any number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType`."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


class NumberRange(click.FloatRange):
    """A number in a range, see `click.FloatRange`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType`."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


def _finite(
    kind: Number | NumberRange, number: float, param: click.Parameter | None, ctx: click.Context | None
) -> float:
    if not math.isfinite(number):
        kind.fail(f"'{number}': allowed are numbers, but not nan and inf.", param, ctx)
    return number
