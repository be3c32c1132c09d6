"""Where a step's time went, out of real spans in a real store."""

from __future__ import annotations

import pytest

from pulsetrain.stream.queries import analysis, demo
from tests.stream.rows import DAY, table

pytestmark = pytest.mark.integration

SPANS = [
    # phase, category, parent, duration_ns
    ("data", "data", "", 5),
    ("forward", "compute", "", 100),
    ("all_reduce", "communication", "forward", 60),
    ("backward", "compute", "", 200),
    ("all_reduce", "communication", "backward", 90),
    ("block", "compute", "backward", 50),
    ("recv", "communication", "", 30),
    ("optimizer", "compute", "", 40),
    ("all_reduce", "communication", "optimizer", 10),
    ("send", "communication", "recv", 20),
]


def test_compute_is_net_of_the_communication_inside_it(chdb_store):
    columns = {
        "job": "parts",
        "attempt": [0] * len(SPANS),
        "step": [3] * len(SPANS),
        "rank": [1] * len(SPANS),
        "open": [False] * len(SPANS),
        "phase": [s[0] for s in SPANS],
        "category": [s[1] for s in SPANS],
        "parent": [s[2] for s in SPANS],
        "duration_ns": [s[3] for s in SPANS],
    }
    chdb_store.insert("spans", table("spans", len(SPANS), **columns), token="parts")
    found = analysis.step_parts(
        chdb_store,
        "parts",
        0,
        0,
        10,
        compute=["forward", "backward", "optimizer", "block"],
        communication=["all_reduce", "send", "recv"],
    ).to_pylist()
    assert len(found) == 1
    row = found[0]
    assert row["compute"] == (100 - 60) + (200 - 90) + (40 - 10)
    assert row["wait"] == 60 + 90 + 30 + 10
    assert (row["forward"], row["backward"], row["optimizer"]) == (40, 110, 30)
    assert row["data"] == 5


def test_what_the_demo_asks_for(chdb_store):
    store, job = chdb_store, "demo-queries"
    columns = {
        "job": job,
        "attempt": [0, 0, 0, 0],
        "rank": [0, 1, 0, 1],
        "step": [5, 5, 6, 6],
        "duration_ns": [100, 300, 200, 500],
        "loss": [None, 2.0, None, 1.5],
    }
    store.insert("steps", table("steps", 4, **columns), token=job)
    assert demo.median_step_ns(store, job, first=5, last=6) == 400
    assert demo.median_step_ns(store, job, first=50, last=60) == 0
    assert (demo.last_step(store, job, 0), demo.last_step(store, job, 1)) == (6, -1)
    assert (demo.loss(store, job, 6), demo.loss(store, job, 5)) == (1.5, 2.0)
    assert demo.loss(store, job, 400) is None
    store.insert("events", table("events", 2, job=job), token=f"{job}-events")
    store.insert("findings", table("findings", 2, job=job), token=f"{job}-findings")
    for query in (demo.events_since, demo.findings_since):
        assert query(store, job, DAY).num_rows == 2
        assert query(store, job, DAY + 1).num_rows == 1
