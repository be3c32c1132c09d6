"""How a job's ranks are instrumented, as they say themselves: what is explicit, and what is inferred."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from pulsetrain.protocol.late_rows import tells
from pulsetrain.protocol.messages import RankStatus

NONE = "none"
SETTLED = 3  # steps after which nothing more is expected to be found


class Instrumentation:
    """The descriptions of the present attempt's ranks. A rank repeats its own only now and then."""

    def __init__(self) -> None:
        self._attempt = -1
        self._by_rank: dict[int, dict[str, str]] = {}
        self._combined: dict[str, str] | None = None
        self._told = -1

    def note(self, attempt: int, statuses: Sequence[RankStatus]) -> None:
        """Take what ranks of an attempt have reported. What is no JSON object is left out."""
        if attempt > self._attempt:
            self._attempt, self._by_rank, self._combined = attempt, {}, None
        if not tells(statuses, "instrumentation"):
            return
        for status in statuses:
            entries = _parsed(status.instrumentation)
            if entries and attempt == self._attempt and self._by_rank.get(status.rank) != entries:
                self._by_rank[status.rank], self._combined = entries, None

    def combined(self) -> dict[str, str]:
        """Return one description of the job. Where ranks differ, what each says stands beside the others.

        A pipeline's loss is known to its last stage only. So `none` counts only where every rank says it.
        It is asked for many times a second, and ranks repeat themselves.
        """
        if self._combined is None:
            self._combined = self._combine()
        return self._combined

    def _combine(self) -> dict[str, str]:
        values: dict[str, set[str]] = {}
        for entries in self._by_rank.values():
            for name, value in entries.items():
                values.setdefault(name, set()).add(value)
        return {name: " | ".join(sorted(said - {NONE} or said)) for name, said in values.items()}

    @property
    def untold(self) -> bool:
        """Whether `news` may still have something to say of this attempt."""
        return self._told != self._attempt and bool(self._by_rank)

    def news(self, statuses: Iterable[RankStatus]) -> dict[str, str]:
        """Return the description once for each attempt, when its ranks have made some steps. Else nothing.

        A heartbeat that told what was found may have been dropped for a newer one. So where ranks make steps
        and none of them says from what, it is yet to come: they repeat themselves.
        """
        if not self.untold or self.combined().get("steps") == NONE:
            return {}
        if any(status.last_step - status.resumed_step >= SETTLED for status in statuses):
            self._told = self._attempt
            return self.combined()
        return {}


def _parsed(text: str) -> dict[str, str]:
    try:
        entries = json.loads(text) if text else None
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in entries.items()} if isinstance(entries, dict) else {}
