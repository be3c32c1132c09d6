"""The interface of a key-value store. Its terms are etcd's: revisions, transactions, leases.

Every commit that changes a key takes the next revision of the whole store. All methods block and may be
called from any thread. They raise `Unavailable` where the store cannot be reached or written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pulsetrain.core.errors import Unavailable


class Compacted(Unavailable):
    """The store no longer knows what changed since a revision. Read the keys anew."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One key. `created` is the revision at which it began to exist, `modified` that of its last write.
    `lease` is the lease that it ends with, 0 for none."""

    key: str
    value: str
    created: int
    modified: int
    lease: int = 0


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Entries by key, and the store's revision at which they were read."""

    entries: tuple[Entry, ...]
    revision: int


class Of(StrEnum):
    """Which revision of a key is compared."""

    CREATED = "created"
    MODIFIED = "modified"


@dataclass(frozen=True, kw_only=True)
class Compare:
    """A condition of a transaction: the key has this revision. 0: the key does not exist."""

    key: str
    of: Of
    revision: int


@dataclass(frozen=True, kw_only=True)
class Write:
    """One key gets a value, or with None it is deleted. With `lease` it ends when that lease does."""

    key: str
    value: str | None
    lease: int = 0


@dataclass(frozen=True, kw_only=True)
class Committed:
    """What became of a transaction. If one condition did not hold, nothing was written and `ok` is false."""

    ok: bool
    revision: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """A key got a value, or with None it was deleted, at `revision`."""

    key: str
    value: str | None
    revision: int


class Entries(Protocol):
    """Keys and values."""

    def get(self, key: str) -> Entry | None:
        """One key, None where it does not exist."""
        ...

    def entries(self, prefix: str) -> Listing:
        """Every key that begins with `prefix`."""
        ...

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Committed:
        """Write all, or nothing where a condition does not hold. At most 100 writes, each of another key.

        After `Unavailable` the writes may have been carried out.
        """
        ...


class Watch(Protocol):
    """What changes."""

    def changes(self, prefix: str, *, after: int, timeout_s: float) -> tuple[Change, ...]:
        """Changes of keys with `prefix` later than revision `after`, in order.

        Waits for the first one, at most `timeout_s`. Raises `Compacted` where changes may be missing.
        """
        ...


class Leases(Protocol):
    """Leases: keys bound to one are deleted when it is not kept alive."""

    def grant(self, ttl_s: int) -> int:
        """A new lease that lasts at least so long without `keep_alive`."""
        ...

    def keep_alive(self, lease: int) -> float:
        """Begin the lease's time anew. Returns its seconds, 0 where it has ended."""
        ...

    def revoke(self, lease: int) -> None:
        """End a lease and delete its keys."""
        ...


class KeyValueStore(Entries, Watch, Leases, Protocol):
    """All of it."""

    def close(self) -> None:
        """Release what it holds."""
        ...


MAX_WRITES = 100
"""Writes in one transaction. etcd's own limit is 128 (--max-txn-ops)."""
