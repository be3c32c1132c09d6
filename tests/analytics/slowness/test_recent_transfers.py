"""The collectives that are held of a running job are those that a store gives that is read anew."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.analytics.slowness.recent_transfers import RecentTransfers
from pulsetrain.stream.queries.queryable import AttemptSteps

GROUPS = {"dp:0": [0, 1], "dp:1": [2, 3]}


class Store:
    """One collective of each group in each step up to `newest`. `joined` ranks took part in each."""

    def __init__(self):
        self.newest, self.joined, self.asked = 0, 2, []

    def query(self, sql, params=None):
        kind = "members" if "groupUniqArray" in sql else "transfers"
        self.asked.append((kind, params["first"]))
        if kind == "members":
            ranks = [ranks[: self.joined] for ranks in GROUPS.values()]
            return pa.table({"group": list(GROUPS), "ranks": ranks})
        rows = [
            {"step": step, "group": g, "phase": "all_reduce", "transfer_ns": 5, "bytes": 8}
            | {"members": self.joined}
            for step in range(params["first"], min(params["last"], self.newest) + 1)
            for g in GROUPS
        ]
        names = ("step", "group", "phase", "transfer_ns", "bytes", "members")
        return pa.table({name: [row[name] for row in rows] for name in names})


def steps(first, last):
    return AttemptSteps(job="j", attempt=0, first=first, last=last)


def keys(table):
    return sorted((row["step"], row["group"]) for row in table.to_pylist())


def test_settled_steps_are_not_read_again_and_old_ones_leave():
    store, recent = Store(), RecentTransfers()
    for newest, settled in ((9, 8), (11, 10), (14, 12)):
        store.newest, recent.settled_before = newest, settled
        wanted = steps(newest - 6, newest)
        assert keys(recent.rows(store, wanted)) == keys(RecentTransfers().rows(store, wanted))
    assert [first for _, first in store.asked[::2]] == [3, 8, 10]


def test_members_are_asked_for_once_and_again_when_a_group_has_grown():
    store, recent = Store(), RecentTransfers()
    store.newest, store.joined = 4, 1
    recent.rows(store, steps(0, 4))
    assert recent.members(store, steps(3, 4)) == {"dp:0": (0,), "dp:1": (2,)}
    recent.rows(store, steps(0, 4))
    recent.members(store, steps(3, 4))
    assert [kind for kind, _ in store.asked].count("members") == 1
    store.joined = 2
    recent.rows(store, steps(0, 4))
    assert recent.members(store, steps(3, 4)) == {"dp:0": (0, 1), "dp:1": (2, 3)}
