"""Which steps of which optimizers make one step of the training loop.

A loop may use one optimizer, several in turn (a GAN, Muon beside AdamW), or hundreds inside the backward
pass. A cycle ends with the last of its optimizers. Which one that is, the first repetition shows.
"""

from __future__ import annotations


class OptimizerCycle:
    """The repeating sequence of optimizers. Keys are hashable and tell optimizers apart.

    >>> cycle = OptimizerCycle()
    >>> [(cycle.begin(key), cycle.end(key)) for key in "GDGDGD"]
    [(False, False), (False, False), (True, False), (False, True), (False, False), (False, True)]
    """

    def __init__(self) -> None:
        self._known: frozenset[object] = frozenset()
        self._current: set[object] = set()

    @property
    def is_known(self) -> bool:
        """Whether a repetition has shown what a cycle is."""
        return bool(self._known)

    def begin(self, key: object) -> bool:
        """An optimizer begins to step. Returns whether that shows that the cycle before it is over."""
        if key not in self._current:
            return False
        self._known = frozenset(self._current)
        self._current.clear()
        return True

    def end(self, key: object) -> bool:
        """An optimizer has stepped. Returns whether that completes a known cycle."""
        self._current.add(key)
        if not self._known or not self._known <= self._current:
            return False
        self._current.clear()
        return True
