"""What every query needs: something that answers a SELECT, and the steps it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

Params = Mapping[str, object]


class Queryable(Protocol):
    """A store, or a client of one."""

    def query(self, sql: str, params: Params | None = None) -> pa.Table:
        """Return the result of `sql`. ``{name:Type}`` takes its value from `params`."""
        ...


@dataclass(frozen=True)
class OneThread:
    """A store that answers each query on one thread. Small queries cost a third less so.

    Queries may not have settings of their own.
    """

    store: Queryable

    def query(self, sql: str, params: Params | None = None) -> pa.Table:
        """Return the result of `sql`."""
        return self.store.query(f"{sql.rstrip()} SETTINGS max_threads = 1", params)


@dataclass(frozen=True, kw_only=True)
class AttemptSteps:
    """Steps `first`..`last` of one attempt of one job, both included.

    >>> [(part.first, part.last) for part in AttemptSteps(job="j", attempt=0, first=5, last=9).parts(3)]
    [(5, 7), (8, 9)]
    """

    job: str
    attempt: int
    first: int
    last: int

    @property
    def params(self) -> dict[str, object]:
        """Values for the placeholders of `IN_RANGE`."""
        return {"job": self.job, "attempt": self.attempt, "first": self.first, "last": self.last}

    def parts(self, size: int) -> list[AttemptSteps]:
        """The same steps as ranges of at most `size` steps, in order."""
        return [
            replace(self, first=first, last=min(self.last, first + size - 1))
            for first in range(self.first, self.last + 1, size)
        ]


IN_RANGE = "job = {job:String} AND attempt = {attempt:Int32} AND step BETWEEN {first:Int64} AND {last:Int64}"
"""The condition for rows of a `AttemptSteps`."""
