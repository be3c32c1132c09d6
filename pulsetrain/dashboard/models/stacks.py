"""The merged stacks of a job as lines. Who is at fault is marked, and not those who wait for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

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
    runs = _runs(str(reading["outliers"]))
    return frozenset(culprits) or frozenset(rank for low, high in runs for rank in range(low, high + 1))


def of_ranks(tree: Sequence[JsonObject], ranks: Collection[int]) -> list[JsonObject]:
    """The branches of a tree in which some of these ranks stand."""
    return [
        {**branch, "children": of_ranks(branch["children"], ranks)}
        for branch in tree
        if any(low <= rank <= high for low, high in _runs(str(branch["ranks"])) for rank in ranks)
    ]


def stack_lines(tree: Sequence[JsonObject], marked: Collection[int]) -> list[StackLine]:
    """One line for each frame, indented where ranks part."""
    return [line for branch in tree for line in _lines(branch, 0, marked)]


def _lines(branch: JsonObject, depth: int, marked: Collection[int]) -> Iterator[StackLine]:
    yield StackLine(
        ranks=str(branch["ranks"]),
        frame=str(branch["frame"]),
        depth=depth,
        at_fault=_all_marked(_runs(str(branch["ranks"])), marked),
    )
    parts = len(branch["children"]) > 1
    for child in branch["children"]:
        yield from _lines(child, depth + parts, marked)


def _all_marked(runs: Sequence[tuple[int, int]], marked: Collection[int]) -> bool:
    """Whether there are ranks in these runs, and all of them are marked."""
    count = sum(high - low + 1 for low, high in runs)
    return 0 < count <= len(marked) and all(
        rank in marked for low, high in runs for rank in range(low, high + 1)
    )


def _runs(ranks: str) -> list[tuple[int, int]]:
    """The first and last rank of each run in a text such as "0-3,7". A job may have 100,000 ranks."""
    parts = [part.partition("-") for part in ranks.split(",") if part]
    return [(int(low), int(high or low)) for low, _, high in parts]
