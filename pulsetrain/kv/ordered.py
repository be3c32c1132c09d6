"""Writes of one leader in their order, although a store may carry out a request long after it was sent.

A member that did not answer may carry out a transaction later, after newer ones. So each transaction also
writes a mark of its own, on condition that the mark is still the one that this writer knows. Whatever comes
late finds another mark and changes nothing. A transaction that was refused although it had been carried out,
because it was sent to two members, is known by its mark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from pulsetrain.core.errors import Unavailable
from pulsetrain.kv.store import MAX_WRITES, Compare, Entries, Of, Write

MARK = "written"
MOST = MAX_WRITES - 1
"""Writes in one transaction, beside the mark."""
TRIES = 3


class OrderedWrites:
    """One writer. `load` reads the mark; call it once `fence` holds. One thread at a time may call it."""

    def __init__(self, store: Entries, fence: Callable[[], Sequence[Compare]]) -> None:
        self._store, self._fence = store, fence
        self._name, self._number, self._known = uuid.uuid4().hex, 0, 0

    def load(self) -> None:
        """Go on from the mark that another writer has left."""
        entry = self._store.get(MARK)
        self._known = entry.modified if entry is not None else 0

    def commit(self, writes: Sequence[Write]) -> bool:
        """Write all, at most `MOST`. False where the fence or the mark shows that another one writes.

        Raises `Unavailable` where it is not known whether they were written. Write them again then, or what
        became of them.
        """
        for _ in range(TRIES):
            self._number += 1
            mark = f"{self._name}-{self._number}"
            conditions = [*self._fence(), Compare(key=MARK, of=Of.MODIFIED, revision=self._known)]
            result = self._store.commit(conditions, [*writes, Write(key=MARK, value=mark)])
            if result.ok:
                self._known = result.revision
                return True
            entry = self._store.get(MARK)
            if entry is None or entry.modified == self._known or not entry.value.startswith(self._name):
                return False
            self._known = entry.modified  # of a transaction that was not answered
            if entry.value == mark:
                return True
        raise Unavailable("the store carries out transactions that it did not answer")
