"""Who leads: the candidate whose key, bound to its lease, was created first."""

from __future__ import annotations

import contextlib

from pulsetrain.core.clock import Clock
from pulsetrain.kv.store import Compacted, Compare, Entry, KeyValueStore, Of, Write

LEADER = "leader"


class Election:
    """One candidate. `name` is unique among the candidates and says where the leader is.

    The lease lasts `ttl_s` seconds. `leading` trusts it for no longer than that after the last renewal was
    sent, by this process's own clock, and so ends before the store lets another candidate lead. Only one
    thread may call `campaign`, `renew`, `confirm` and `resign`.
    """

    def __init__(self, store: KeyValueStore, name: str, clock: Clock, *, ttl_s: int = 3) -> None:
        self._store, self._name, self._clock, self.ttl_s = store, name, clock, ttl_s
        self._lease = self._revision = 0
        self._until_s = 0.0

    @property
    def leading(self) -> bool:
        """Whether this candidate leads now."""
        return self._revision > 0 and self._clock.monotonic_s() < self._until_s

    def fence(self) -> Compare:
        """The condition that this candidate still leads. It goes with every write of the leader."""
        return Compare(key=LEADER, of=Of.CREATED, revision=self._revision or -1)

    def leader(self) -> str:
        """The name of who leads, "" for nobody."""
        entry = self._store.get(LEADER)
        return entry.value if entry is not None else ""

    def campaign(self, timeout_s: float) -> bool:
        """Try to lead, or wait at most `timeout_s` until the leader's key changes. Returns `leading`."""
        entry = self._store.get(LEADER)
        if entry is None or entry.value == self._name:
            return self._stand(entry)
        with contextlib.suppress(Compacted):  # the next call reads the key anew
            self._store.changes(LEADER, after=entry.modified, timeout_s=timeout_s)
        return False

    def _stand(self, entry: Entry | None) -> bool:
        """Create the key, or take the one that an unanswered request of ours has created."""
        sent_s = self._clock.monotonic_s()
        if entry is None:
            self._lease = self._store.grant(self.ttl_s)
            absent = Compare(key=LEADER, of=Of.CREATED, revision=0)
            write = Write(key=LEADER, value=self._name, lease=self._lease)
            if not self._store.commit([absent], [write]).ok:
                return False
            entry = self._store.get(LEADER)
        elif not self._store.keep_alive(entry.lease):
            return False
        if entry is None or entry.value != self._name:
            return False
        self._lease, self._revision, self._until_s = entry.lease, entry.created, sent_s + self.ttl_s
        return self.leading

    def renew(self) -> bool:
        """Keep the lease. Returns whether this candidate still leads. Once it does not, it never does again
        without `campaign`."""
        sent_s = self._clock.monotonic_s()
        if self.leading and self._store.keep_alive(self._lease) > 0:
            self._until_s = sent_s + self.ttl_s
        if not self.leading:
            self._revision = 0
        return self.leading

    def confirm(self) -> float:
        """Have the store itself say whether this candidate leads, whatever this process's clock says.

        Returns the seconds for which no other candidate can lead, counted from the call. 0 where another one
        may lead: this one never does again without `campaign`.
        """
        if not self.renew():
            return 0.0
        entry = self._store.get(LEADER)
        if entry is None or entry.created != self._revision:
            self._revision = 0
            return 0.0
        return float(self.ttl_s)

    def resign(self) -> None:
        """Give up the lead, so that another candidate need not wait."""
        lease, self._lease, self._revision = self._lease, 0, 0
        if lease:
            self._store.revoke(lease)
