"""Keys with revisions as the text of one ConfigMap: what a commit does to them, and what changed. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from pulsetrain.core.errors import CorruptData, Unavailable
from pulsetrain.kv.store import Change, Committed, Compacted, Compare, Entry, Write
from pulsetrain.kv.table import Table

FORMAT = 1
LARGEST = 1 << 20
"""Bytes that a ConfigMap may hold."""
DELETIONS = 200  # that are remembered for watches


@dataclass
class KeptState:
    """`deletions` are (key, revision), the oldest first. Those up to revision `forgotten` are not known."""

    table: Table
    deletions: list[tuple[str, int]] = field(default_factory=list)
    forgotten: int = 0

    @classmethod
    def empty(cls, revision: int) -> KeptState:
        """No keys. `revision` is above that of every state before."""
        return cls(table=Table(revision=revision), forgotten=revision)

    @classmethod
    def decode(cls, text: str, where: str) -> KeptState:
        """The state in `text`. Raises `CorruptData`."""
        try:
            state = json.loads(text)
            if state["format"] != FORMAT:
                raise CorruptData(f"{where} has format {state['format']!r}; known: {FORMAT}")
            entries = [
                Entry(key=str(k), value=str(v), created=int(c), modified=int(m), lease=int(lease, 16))
                for k, v, c, m, lease in state["entries"]
            ]
            return cls(
                table=Table(entries, int(state["revision"])),
                deletions=[(str(key), int(revision)) for key, revision in state["deletions"]],
                forgotten=int(state["forgotten"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptData(f"{where} is damaged: delete it to start without it") from error

    def encode(self) -> str:
        """The text. Raises `Unavailable` where no ConfigMap can hold it."""
        entries = [
            [e.key, e.value, e.created, e.modified, f"{e.lease:x}"]
            for _, e in sorted(self.table.entries.items())
        ]
        state = {
            "format": FORMAT,
            "revision": self.table.revision,
            "forgotten": self.forgotten,
            "deletions": self.deletions,
            "entries": entries,
        }
        text = json.dumps(state, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
        if size > LARGEST:
            raise Unavailable(
                f"the state has {size} bytes, and a ConfigMap holds {LARGEST}: use --kv etcd://"
            )
        return text

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Committed:
        """See `Entries.commit`."""
        known = set(self.table.entries)
        result = self.table.commit(compares, writes)
        if result.ok:
            gone = [w.key for w in writes if w.value is None and w.key in known]
            self.deletions += [(key, result.revision) for key in gone]
        while len(self.deletions) > DELETIONS:
            self.forgotten = self.deletions.pop(0)[1]
        return result

    def changes(self, prefix: str, after: int) -> tuple[Change, ...]:
        """What became of keys with `prefix` after a revision. Of several writes of a key the last is told."""
        if after < self.forgotten:
            raise Compacted(f"changes after revision {after} are not known, only after {self.forgotten}")
        entries = self.table.entries.values()
        found = [Change(key=e.key, value=e.value, revision=e.modified) for e in entries]
        found += [Change(key=key, value=None, revision=revision) for key, revision in self.deletions]
        found = [c for c in found if c.revision > after and c.key.startswith(prefix)]
        return tuple(sorted(found, key=lambda c: (c.revision, c.key)))

    def leased(self) -> set[int]:
        """Leases that keys are bound to."""
        return {entry.lease for entry in self.table.entries.values() if entry.lease}
