"""Keys with revisions in memory: what a commit, a lease and time do to them. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pulsetrain.kv.store import Change, Committed, Compacted, Compare, Entry, Of, Write

HISTORY = 1000  # changes that a watch may ask for


@dataclass
class Lease:
    """How long a lease lasts, and when it ends unless it is kept alive (monotonic)."""

    ttl_s: float
    ends_s: float


class Table:
    """The state of one store. `revision` is that of the last change."""

    def __init__(self, entries: Iterable[Entry] = (), revision: int = 0) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self.revision = revision
        self.leases: dict[int, Lease] = {}
        self._forgotten = revision  # changes up to here are not in the history
        self._history: deque[Change] = deque()
        self._last_lease = 0

    def copy(self) -> Table:
        """A table of its own with the same entries, leases and history."""
        other = Table(self.entries.values(), self.revision)
        other.leases = dict(self.leases)
        other._forgotten, other._last_lease = self._forgotten, self._last_lease
        other._history = deque(self._history)
        return other

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Committed:
        """See `Entries.commit`. Deleting a key that does not exist changes nothing."""
        if not all(self._holds(compare) for compare in compares):
            return Committed(ok=False, revision=self.revision)
        writes = [w for w in writes if w.value is not None or w.key in self.entries]
        if writes:
            self.revision += 1
        for write in writes:
            self._apply(write)
        return Committed(ok=True, revision=self.revision)

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        if entry is None:
            return compare.revision == 0
        return compare.revision == (entry.created if compare.of is Of.CREATED else entry.modified)

    def _apply(self, write: Write) -> None:
        before = self.entries.pop(write.key, None)
        if write.value is not None:
            created = before.created if before is not None else self.revision
            self.entries[write.key] = Entry(
                key=write.key, value=write.value, created=created, modified=self.revision, lease=write.lease
            )
        self._history.append(Change(key=write.key, value=write.value, revision=self.revision))
        while len(self._history) > HISTORY:
            self._forgotten = self._history.popleft().revision

    def changes(self, prefix: str, after: int) -> tuple[Change, ...]:
        """Changes later than revision `after`. Raises `Compacted` where they are no longer known."""
        if after < self._forgotten:
            raise Compacted(f"changes after revision {after} are not known, only after {self._forgotten}")
        return tuple(c for c in self._history if c.revision > after and c.key.startswith(prefix))

    def grant(self, ttl_s: float, now_s: float) -> int:
        """A new lease."""
        self._last_lease += 1
        self.leases[self._last_lease] = Lease(ttl_s, now_s + ttl_s)
        return self._last_lease

    def keep_alive(self, lease: int, now_s: float) -> float:
        """Seconds until it ends, 0 where it has ended."""
        held = self.leases.get(lease)
        if held is None or held.ends_s <= now_s:
            return 0.0
        self.leases[lease] = Lease(held.ttl_s, now_s + held.ttl_s)
        return held.ttl_s

    def end(self, leases: Iterable[int]) -> bool:
        """End leases and delete their keys. Returns whether a key was deleted."""
        ended = set(leases)
        for lease in ended:
            self.leases.pop(lease, None)
        gone = [Write(key=e.key, value=None) for e in self.entries.values() if e.lease in ended]
        self.commit((), gone)
        return bool(gone)

    def overdue(self, now_s: float) -> list[int]:
        """Leases whose time is over."""
        return [lease for lease, held in self.leases.items() if held.ends_s <= now_s]
