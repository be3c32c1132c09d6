"""What ranks of another world have saved of one optimizer, with names in place of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from pulsetrain.core.errors import CheckpointError

log = structlog.get_logger(__name__)

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

    `without` are parameters that had no state, and `unnamed` is the number of those whose names were not
    saved. `others` is state that belongs to no parameter. `groups` are those of one rank.
    """

    state: dict[str, Nested] = field(default_factory=dict)
    without: set[str] = field(default_factory=set)
    unnamed: int = 0
    others: dict[str, Nested] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Nested]] = ()

    def name_among(self, possible: Sequence[str]) -> str:
        """The name under which a parameter was saved, with state or without. "" where it was not."""
        return next((name for name in possible if name in self.state or name in self.without), "")

    def check_missing(self, missing: Sequence[str]) -> None:
        """Raise `CheckpointError` where parameters that take gradients had state under another name, or none
        of the saved ranks had them.

        They may be those whose names were not saved, which had no state. Nothing tells that, so a warning
        names them.
        """
        if not self.state or not missing:
            return
        if len(missing) > self.unnamed:
            raise CheckpointError(f"{missing[0]}: no state of an optimizer was saved for it")
        log.warning("optimizer_state_not_found", parameters=list(missing), saved_without_name=self.unnamed)


def names_in(node: Nested) -> list[TensorName]:
    """The names of all tensors in a state, in order."""
    if isinstance(node, TensorName):
        return [node]
    if isinstance(node, Mapping):
        return [name for child in node.values() for name in names_in(child)]
    if isinstance(node, list | tuple):
        return [name for child in node for name in names_in(child)]
    return []
