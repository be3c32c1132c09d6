"""Where steps lie on an axis of time. A few round steps are looked up, so that no step is read in vain.

The store finds single steps by its key, and not by their time. So the time range is narrowed down: steps far
apart are asked for first, then steps between the two that enclose the range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pulsetrain.core.json import JsonObject

MOST_ROUNDS = 6
_ASKED = 24
_ENOUGH = 5
_MARKS = 10


@dataclass(frozen=True, kw_only=True)
class StepMark:
    """A step that began at `ts_ns`."""

    ts_ns: int
    step: int


def round_stride(width: int, most: int) -> int:
    """The smallest of 1, 2, 5, 10, 20 and so on by which `width` steps have at most `most` multiples.

    >>> [round_stride(width, 10) for width in (7, 11, 35, 999)]
    [1, 2, 5, 100]
    """
    power = 1
    while True:
        for factor in (1, 2, 5):
            if width <= factor * power * most:
                return factor * power
        power *= 10


def round_steps(first: int, last: int, most: int = _ASKED) -> tuple[int, ...]:
    """At most about `most` round steps of `first`..`last`, and the two ends' neighbours outside.

    >>> round_steps(3, 17, 4)
    (0, 5, 10, 15, 20)
    """
    stride = round_stride(last - first + 1, most)
    return tuple(range(first // stride * stride, last + stride, stride))


def narrower(
    rows: Sequence[JsonObject], steps: Sequence[int], from_ns: int, to_ns: int
) -> tuple[int, ...] | None:
    """The steps to ask for next. None where the range holds marks enough, or where nothing lies in it.

    `rows` say when `steps` began (attempt, step, ts_ns), in order of attempt and step. A step that is missing
    was not done in that attempt.
    """
    stride = steps[1] - steps[0] if len(steps) > 1 else 1
    inside = [row for row in rows if from_ns <= row["ts_ns"] <= to_ns]
    if stride <= 1 or len(inside) >= _ENOUGH:
        return None
    around = [_around(rows, attempt, stride, from_ns, to_ns) for attempt in {row["attempt"] for row in rows}]
    ends = [step for steps_of_attempt in around for step in steps_of_attempt]
    found = round_steps(max(0, min(ends)), max(ends)) if ends else ()
    return found if found and found != tuple(steps) else None


def _around(
    rows: Sequence[JsonObject], attempt: int, stride: int, from_ns: int, to_ns: int
) -> tuple[int, ...]:
    """The first and last step of an attempt that may have begun in the range. () where it was not then."""
    over = any(row["attempt"] > attempt and row["ts_ns"] <= from_ns for row in rows)
    to_come = any(row["attempt"] < attempt and row["ts_ns"] >= to_ns for row in rows)
    if over or to_come:
        return ()
    mine = [row for row in rows if row["attempt"] == attempt]
    before = [row["step"] for row in mine if row["ts_ns"] < from_ns]
    after = [row["step"] for row in mine if row["ts_ns"] > to_ns]
    return (
        before[-1] if before else mine[0]["step"] - stride,
        after[0] if after else mine[-1]["step"] + stride,
    )


def marks(rows: Sequence[JsonObject], from_ns: int, to_ns: int) -> list[StepMark]:
    """The roundest of the steps that began in the range, oldest first, ten at most."""
    inside = [row for row in rows if from_ns <= row["ts_ns"] <= to_ns]
    if not inside:
        return []
    known = math.gcd(*(row["step"] for row in inside)) or 1
    by_factor = (
        [row for row in inside if row["step"] % (known * factor) == 0] for factor in (1, 2, 5, 10, 20, 50)
    )
    chosen = next((found for found in by_factor if 0 < len(found) <= _MARKS), inside[:1])
    return sorted((StepMark(ts_ns=row["ts_ns"], step=row["step"]) for row in chosen), key=lambda m: m.ts_ns)
