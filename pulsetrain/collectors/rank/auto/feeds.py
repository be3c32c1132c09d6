"""Which iterators of data loaders feed the training, so that a batch for it is known during an evaluation."""

from __future__ import annotations

import weakref

FEW = 1
"""Batches in a row of a loader that has not fed the training, which may be trained on with another one's."""


class Feeds:
    """Keeps neither an iterator nor a loader alive.

    A loader has a new iterator for each epoch. What the iterators of one have in common is its sampler.
    """

    def __init__(self) -> None:
        self._last: weakref.ref[object] | None = None  # the iterator of the batch that is to be trained on
        self._feeding: weakref.ref[object] | None = None  # the iterator of the last one, until it ends
        self._evaluated: weakref.ref[object] | None = None  # the last one in the evaluation that is on
        self._training: weakref.WeakSet[object] = weakref.WeakSet()  # samplers
        self._source: weakref.ref[object] | None = None  # of the batch that was fetched last
        self._in_a_row = 0  # since the last backward pass

    def begin_evaluation(self) -> None:
        """The model is put into evaluation mode, again perhaps."""
        self._evaluated = None

    def is_evaluation(self, iterator: object) -> bool:
        """Return whether a batch that is fetched during an evaluation is a part of it.

        Once batches of another iterator were evaluated, one that feeds the training has the next batch to
        train on: some trainers fetch it before they put the model back into training mode. So has the first
        iterator of its loader after it has ended, in a new epoch. A script may also evaluate on what it
        trains on, and on nothing else.
        """
        before, feeding = self._evaluated, self._feeding and self._feeding()
        is_next = feeding is None or feeding is iterator
        if is_next and before is not None and before() is not iterator and source(iterator) in self._training:
            return False
        self._evaluated = weakref.ref(iterator)
        return True

    def fetched(self, iterator: object) -> bool:
        """A batch that is no part of a known evaluation is fetched.

        Return whether those before it were an evaluation nevertheless: a script may begin with one, before it
        is known what is trained, or evaluate an average of the weights.
        """
        now, last = source(iterator), self._source and self._source()
        changes = self._source is not None and last is not now
        was_evaluation = changes and self._in_a_row > FEW and last not in self._training
        self._in_a_row = 1 if changes else self._in_a_row + 1
        self._last, self._source = weakref.ref(iterator), weakref.ref(now)
        return was_evaluation

    def trained(self) -> None:
        """A backward pass begins: the batch before it was to train on."""
        self._in_a_row = 0
        if self._last is not None:
            iterator, self._last = self._last(), None
            if iterator is not None:
                self._feeding = weakref.ref(iterator)
                self._training.add(source(iterator))

    def ended(self, iterator: object) -> None:
        """It has no further batch."""
        if self._feeding is not None and self._feeding() is iterator:
            self._feeding = None


def source(iterator: object) -> object:
    """Return what all iterators of one data loader have in common, the iterator itself where that is unknown.

    A list of batches cannot be remembered without being kept alive.
    """
    sampler = getattr(iterator, "_index_sampler", None)
    try:
        weakref.ref(sampler), hash(sampler)
    except TypeError:
        return iterator
    return sampler
