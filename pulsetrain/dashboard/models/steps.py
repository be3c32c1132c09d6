"""Which steps a view is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsetrain.analytics.selection import parse_steps
from pulsetrain.core.json import JsonObject

_RANK_STEPS = 100_000


@dataclass(frozen=True, kw_only=True)
class Window:
    """Steps `first`..`last`, both included.

    `newest` is the one that was done last, which is not the highest where an attempt went back. -1: the last.
    """

    first: int
    last: int
    newest: int = -1

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first:,} to {self.last:,}"


def sample(jobs: Sequence[JsonObject], job: str) -> int:
    """How many steps a heatmap of this job may look at, so that it stays quick: 100,000 over its ranks."""
    ranks = next((int(row["ranks"]) for row in jobs if row["job"] == job), 1)
    return max(4, _RANK_STEPS // max(1, ranks))


def window(jobs: Sequence[JsonObject], job: str, *, steps: str, last: int) -> Window | None:
    """Return the steps typed as "40:60", else the `last` newest of the job. None if it has none.

    Raises `UsageError` for steps that cannot be read.
    """
    typed = parse_steps(steps)
    if typed is not None:
        return Window(first=typed[0], last=typed[1])
    row = next((r for r in jobs if r["job"] == job), None)
    if row is None:
        return None
    newest = int(row["last_step"])
    return Window(first=max(int(row["first_step"]), newest - last + 1), last=newest)
