"""Notices that a script changed a tensor while it was copied beside training. Later it is copied at once.

Parameters and optimizer state are copied beside forward and backward, because only the optimizer's step
changes them. Some code changes them elsewhere: a codebook or a router's bias in forward, averaged weights
after the save.
"""

from __future__ import annotations

from itertools import compress

import torch

from pulsetrain.checkpoint.copying import Tensors
from pulsetrain.checkpoint.memory.layout import Layout
from pulsetrain.checkpoint.statetree import Leaves
from pulsetrain.core.errors import CheckpointError


class EarlyChanges:
    """Knows the tensors that were changed too early once. No two saves may use it at the same time."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def copy_at_once(self, leaves: Leaves, layout: Layout) -> None:
        """Let what was changed too early before be copied with what forward and backward may change."""
        if self._names:
            owned = zip(leaves.optimizer_owned, layout.entries, strict=True)
            leaves.optimizer_owned[:] = [is_owned and e.name not in self._names for is_owned, e in owned]

    def watch(self, leaves: Leaves, layout: Layout) -> Watch:
        """Watch the other ones from now on. PyTorch counts the changes of each tensor.

        It does not count those through `.data`, nor those of a CUDA graph.
        """
        names = [entry.name for entry in compress(layout.entries, leaves.optimizer_owned)]
        return Watch(list(compress(leaves.locals, leaves.optimizer_owned)), names, self._names)


class Watch:
    """The tensors of one save, as they are when it begins."""

    def __init__(self, tensors: Tensors, names: list[str], early: set[str]) -> None:
        """`early` gets the names of those that were changed."""
        self._tensors, self._names, self._early = tensors, names, early
        self._versions = _versions(tensors)

    def check(self) -> None:
        """Raises `CheckpointError` with the name of a tensor that was changed since."""
        each = zip(self._names, self._versions, _versions(self._tensors), strict=True)
        changed = [name for name, before, now in each if before != now]
        if changed:
            self._early.update(changed)
            raise CheckpointError(
                f"{changed[0]} was changed while it was copied (call wait() of the Checkpointer before); "
                "from the next save on it is copied at once"
            )


def _versions(tensors: Tensors) -> list[int]:
    """How often each was changed, -1 where PyTorch does not count that."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # one was made in inference mode
        return [-1 if torch.is_inference(tensor) else tensor._version for tensor in tensors]
