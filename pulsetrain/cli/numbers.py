"""Numbers that options take: never NaN, never infinite."""

from __future__ import annotations

import math

import click


class _Finite(click.ParamType):
    """What is converted must be finite. Comes before one of click's types of numbers."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType`."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r}: allowed are numbers, but not nan and inf.", param, ctx)
        return number


class Number(_Finite, click.types.FloatParamType):
    """Any number."""


class NumberRange(_Finite, click.FloatRange):
    """A number in a range, see `click.FloatRange`."""
