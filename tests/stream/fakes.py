"""A store in memory, a clock that stands still, and batches of numbered rows."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.core.errors import Refused, SchemaMismatch, Unavailable
from pulsetrain.records.batch import decode, encode
from pulsetrain.records.ddl import OFFSETS, QUARANTINE
from tests.stream.rows import DAY, table


class MemoryStore:
    """Keeps what is inserted, each token once. `rows` are the values of column `step`.

    `fails` makes inserts fail: "before" they happen, "after" they happened (the response is lost),
    or "ranges":
    only those of row ranges, before they happen. Rows of a job named "poison" are refused. More rows than
    `most`, and each of `refused`, are refused with an error that may pass. "full": so are all. "data": so are
    rows of the quarantine with what they hold.
    """

    def __init__(self):
        self.rows = []
        self.inserts = 0
        self.tokens = set()
        self.ranges = []
        self.quarantine = []
        self.fails = ""
        self.most, self.refused, self.view_fails = 10**9, frozenset(), False

    def insert_raw(self, name, columns, stream, *, token, despite_views=False):
        if self.fails == "before" or (self.fails == "ranges" and name == OFFSETS):
            raise Unavailable("away")
        rows = pa.ipc.open_stream(stream).read_all()
        assert list(columns) == rows.column_names
        if "poison" in str(rows.to_pydict().get("job")):
            raise SchemaMismatch("cannot read")
        steps = rows.column("step").to_pylist() if "step" in rows.column_names else []
        if self.fails == "data" and name == QUARANTINE and any(rows.column("data").to_pylist()):
            raise Refused("Code: 241")
        if self.fails == "full" or len(steps) > self.most or self.refused.intersection(steps):
            raise Refused("Code: 241")
        if token is None or token not in self.tokens:
            self.tokens.add(token)
            self._keep(name, rows)
        if self.view_fails and steps and not despite_views:
            raise Refused("Code: 241 in a view")
        if self.fails == "after":
            raise Unavailable("the response got lost")

    def _keep(self, name, rows):
        if name == OFFSETS:
            self.ranges += rows.to_pylist()
        elif name == QUARANTINE:
            self.quarantine += rows.to_pylist()
        else:
            self.inserts += 1
            self.rows += rows.column("step").to_pylist()

    def query(self, sql, params=None):
        names = ["source", "record", "first_row", "next_row"]
        return pa.table({n: [r[n] for r in self.ranges] for n in names})


class StillClock:
    """Stands still until it is set."""

    now_s = 0.0

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return DAY


def batch(first, rows, source="s", **columns):
    """Rows of `steps` whose `step` is their number."""
    sent = table("steps", rows, step=list(range(first, first + rows)), **columns)
    return decode(encode("steps", sent, source=source, first_row=first))
