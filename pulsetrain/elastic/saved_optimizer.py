"""What ranks of another world have saved of one optimizer, with names in place of its tensors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Nested = Any
"""Mappings, lists and tuples, with names of tensors and plain values as leaves."""


class TensorName(str):
    """The global name of a saved tensor, in its place."""

    __slots__ = ()

    def numpy(self) -> ArrayName:
        """The same in the place of an array."""
        return ArrayName(self)


class ArrayName(TensorName):
    """The global name of a saved numpy array, in its place."""

    __slots__ = ()


@dataclass(kw_only=True)
class SavedOptimizer:
    """State by the parameters' names, over all ranks that have saved some of it.

    `others` is state that belongs to no parameter. `groups` are those of one rank.
    """

    state: dict[str, Nested] = field(default_factory=dict)
    others: dict[str, Nested] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Nested]] = ()


def names_in(node: Nested) -> list[TensorName]:
    """The names of all tensors in a state, in order."""
    if isinstance(node, TensorName):
        return [node]
    if isinstance(node, Mapping):
        return [name for child in node.values() for name in names_in(child)]
    if isinstance(node, list | tuple):
        return [name for child in node for name in names_in(child)]
    return []
