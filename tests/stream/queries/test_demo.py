"""The demo's queries, on real rows in a real store."""

from __future__ import annotations

import pytest

from pulsetrain.stream.queries import demo
from tests.stream.rows import DAY, table

pytestmark = pytest.mark.integration


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
