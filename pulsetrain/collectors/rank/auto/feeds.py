"""Which iterators of data loaders feed the training, so that a batch for it is known during an evaluation."""

from __future__ import annotations

import weakref


class Feeds:
    """Keeps no iterator alive."""

    def __init__(self) -> None:
        self._last: weakref.ref[object] | None = None
        self._training: weakref.WeakSet[object] = weakref.WeakSet()
        self._has_evaluated = False

    def begin_evaluation(self) -> None:
        """An evaluation begins."""
        self._has_evaluated = False

    def is_evaluation(self, iterator: object) -> bool:
        """Return whether a batch that is fetched during an evaluation is a part of it.

        Once batches of another iterator were evaluated, a batch of one that has fed the training is the next
        to train on: some trainers fetch it before they put the model back into training mode. A script may
        also evaluate on what it trains on, and on nothing else.
        """
        is_training = iterator in self._training
        self._has_evaluated = self._has_evaluated or not is_training
        return not (is_training and self._has_evaluated)

    def fetched(self, iterator: object) -> None:
        """A batch that is no part of an evaluation is fetched."""
        self._last = weakref.ref(iterator)

    def trained(self) -> None:
        """A backward pass begins: the batch before it was to train on."""
        if self._last is not None:
            iterator, self._last = self._last(), None
            if iterator is not None:
                self._training.add(iterator)
