"""The collectives of a running job's newest steps, kept between looks. Each look reads what may be new."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pulsetrain.analytics.slowness.recent_timings import rows_between
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable


class RecentTransfers:
    """Rows of `analysis.group_transfers` and `analysis.group_members` of one attempt.

    A new one holds nothing, so that its first look reads everything.
    """

    def __init__(self) -> None:
        self.settled_before = 0  # nothing new comes to earlier steps any more
        self._rows: pa.Table | None = None
        self._unsettled = 0
        self._members: dict[str, tuple[int, ...]] = {}

    def rows(self, store: Queryable, steps: AttemptSteps) -> pa.Table:
        """`analysis.group_transfers` of these steps. Those settled at the last look are not read again."""
        first = steps.first if self._rows is None else max(steps.first, self._unsettled)
        tail = AttemptSteps(job=steps.job, attempt=steps.attempt, first=first, last=steps.last)
        rows = analysis.group_transfers(store, tail)
        if self._rows is not None:
            rows = pa.concat_tables([rows_between(self._rows, steps.first, first), rows])
        self._rows, self._unsettled = rows, self.settled_before
        return rows

    def members(self, store: Queryable, steps: AttemptSteps) -> Mapping[str, tuple[int, ...]]:
        """The ranks of each group in `rows`. Asks about `steps` only where a group is new or has grown."""
        if self._rows is None or not self._known(self._rows):
            rows = analysis.group_members(store, steps).to_pylist()
            self._members |= {row["group"]: tuple(sorted(row["ranks"])) for row in rows}
        return self._members

    def _known(self, rows: pa.Table) -> bool:
        joined = rows.select(["group", "members"]).to_pylist()
        return all(len(self._members.get(row["group"], ())) >= row["members"] for row in joined)
