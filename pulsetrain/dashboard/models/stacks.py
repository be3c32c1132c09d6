"""The merged stacks of a job as lines. Who is at fault is marked, and not those who wait for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pulsetrain.analytics.selection import parse_ranks
from pulsetrain.core.json import JsonObject


@dataclass(frozen=True, kw_only=True)
class StackLine:
    """One frame. `at_fault`: only ranks at fault stand in it."""

    ranks: str
    frame: str
    depth: int
    at_fault: bool


def suspects(reading: JsonObject, culprits: Collection[int] = ()) -> frozenset[int]:
    """The ranks whose frames are marked: the culprits of findings, else those whose stack differs from most.

    Victims of a hang differ from each other, too. They are not marked.

    >>> sorted(suspects({"outliers": "5,7"})), sorted(suspects({"outliers": "5,7"}, {5}))
    ([5, 7], [5])
    """
    return frozenset(culprits) or frozenset(parse_ranks(str(reading["outliers"])))


def stack_lines(tree: Sequence[JsonObject], marked: Collection[int]) -> list[StackLine]:
    """One line for each frame, indented where ranks part."""
    return [line for branch in tree for line in _lines(branch, 0, marked)]


def _lines(branch: JsonObject, depth: int, marked: Collection[int]) -> Iterator[StackLine]:
    here = set(parse_ranks(str(branch["ranks"])))
    yield StackLine(
        ranks=str(branch["ranks"]),
        frame=str(branch["frame"]),
        depth=depth,
        at_fault=bool(here) and here <= set(marked),
    )
    parts = len(branch["children"]) > 1
    for child in branch["children"]:
        yield from _lines(child, depth + parts, marked)
