"""The queries behind the analyzers of machines, on real rows in a real store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.stream.queries import machines
from pulsetrain.stream.queries.queryable import AttemptSteps
from tests.stream.rows import DAY, table

pytestmark = pytest.mark.integration
S = 10**9
JOB = "machines"
DURING = machines.AttemptTime(job=JOB, attempt=0, from_ns=DAY, to_ns=DAY + 10 * S)


@pytest.fixture(scope="module")
def store(chdb_store):
    """Steps 0..2 of two ranks on nodes m0 and m1, with samples and lines in, before and after their time."""
    step, rank = [0, 0, 1, 1, 2, 2], [0, 1] * 3
    starts = [DAY + s * 3 * S + r for s, r in zip(step, rank, strict=True)]
    columns = {"job": JOB, "attempt": [0] * 6, "step": step, "rank": rank, "start": starts}
    columns |= {"node": [f"m{r}" for r in rank], "duration_ns": [2 * S] * 6}
    chdb_store.insert("steps", table("steps", 6, **columns), token=JOB)
    times = [DAY - 1, DAY, DAY + 10 * S, DAY + 10 * S + 1, DAY + 5]
    nodes = ["m0", "m0", "m1", "m1", "elsewhere"]
    samples = {"node": nodes, "ts": times, "name": ["rdma_x"] * 4 + ["rdma_x"], "device": "d"}
    chdb_store.insert("metrics", table("metrics", 5, **samples), token=f"{JOB}-metrics")
    lines = {"node": nodes, "ts": times, "job": JOB, "attempt": [0] * 5, "rank": [0] * 5}
    kernel = {"source": "kmsg", "message": [f"k{i}" for i in range(5)]}
    chdb_store.insert("logs", table("logs", 5, **lines, **kernel), token=f"{JOB}-kernel")
    output = {"source": "stderr", "severity": ["info", "info", "error", "error", "warning"]}
    chdb_store.insert("logs", table("logs", 5, **lines, **output), token=f"{JOB}-output")
    return chdb_store


def test_the_time_of_steps_is_from_the_first_start_to_the_last_end(store):
    assert machines.extent(store, AttemptSteps(job=JOB, attempt=0, first=0, last=2)) == (DAY, DAY + 8 * S + 1)
    assert machines.extent(store, AttemptSteps(job=JOB, attempt=3, first=0, last=2)) == (0, 0)


def test_a_step_begins_when_its_first_rank_does(store):
    assert machines.step_starts(store, AttemptSteps(job=JOB, attempt=0, first=1, last=2)) == [
        DAY + 3 * S,
        DAY + 6 * S,
    ]


def test_samples_are_those_of_the_jobs_nodes_in_its_time_with_the_prefix(store):
    rows = machines.metrics(store, DURING, "rdma_").to_pylist()
    assert sorted(row["node"] for row in rows) == ["m0", "m1"]
    assert machines.metrics(store, DURING, "gpu_").num_rows == 0


class Sparing:
    """A store that refuses to read many rows."""

    def __init__(self, store):
        self._store = store

    def query(self, sql, params=None):
        return self._store.query(f"{sql.rstrip()} SETTINGS max_rows_to_read = 5000", params)


def test_nodes_are_those_of_the_topology_and_no_steps_are_read_for_them(store):
    job, count = "machines-told", 20_000
    columns = {"job": [job] * count, "attempt": [0] * count, "step": list(range(count))}
    columns |= {"rank": [0] * count, "start": [DAY] * count, "node": ["m0"] * count}
    store.insert("steps", table("steps", count, **columns), token=job)
    during = replace(DURING, job=job)
    with pytest.raises(PulsetrainError, match="Limit for rows"):
        machines.metrics(Sparing(store), during, "rdma_")
    told = {"job": [job] * 2, "attempt": [0] * 2, "rank": [0, 1], "node": ["m0", "m1"], "ts": [DAY] * 2}
    store.insert("topology", table("topology", 2, **told), token=job)
    rows = machines.metrics(Sparing(store), during, "rdma_").to_pylist()
    assert sorted(row["node"] for row in rows) == ["m0", "m1"]


def test_kernel_lines_come_oldest_first(store):
    rows = machines.kernel_log(store, DURING).to_pylist()
    assert [row["message"] for row in rows] == ["k1", "k2"]


def test_lines_of_ranks_are_the_newest_and_on_request_only_warnings(store):
    every = machines.rank_logs(store, DURING, warnings_only=False, limit=10).to_pylist()
    assert [row["severity"] for row in every] == ["error", "warning", "info"]
    severe = machines.rank_logs(store, DURING, warnings_only=True, limit=10).to_pylist()
    assert [row["severity"] for row in severe] == ["error", "warning"]
    assert machines.rank_logs(store, DURING, warnings_only=False, limit=1).num_rows == 1


@pytest.fixture(scope="module")
def ports(store):
    """Ten samples of two series: one that never changes and one that rises."""
    at = [DAY + second * S for second in range(10)]
    for name, value in (("nic_still", [4.0] * 10), ("nic_rises", [float(second) for second in range(10)])):
        columns = {"node": "m0", "device": "d", "name": name, "ts": at, "value": value}
        store.insert("metrics", table("metrics", 10, **columns), token=f"{JOB}-{name}")
    return store


def samples(store, **options):
    found = {}
    for row in machines.changing_metrics(store, DURING, ("rdma_", "nic_"), **options).to_pylist():
        second = (row["ts"].value - DAY) // S if hasattr(row["ts"], "value") else None
        found.setdefault(row["name"], []).append((second, row["value"]))
    return {name: sorted(rows) for name, rows in found.items()}


def test_a_series_that_never_changes_has_two_samples_and_one_that_does_has_all(ports):
    found = samples(ports)
    assert [value for _, value in found["nic_still"]] == [4.0, 4.0]
    assert [value for _, value in found["nic_rises"]] == [float(n) for n in range(10)]
    assert "rdma_x" in found


def test_of_very_many_samples_each_series_keeps_some_with_its_last(ports):
    rises = [value for _, value in samples(ports, most_rows=4)["nic_rises"]]
    assert 2 <= len(rises) <= 6
    assert max(rises) == 9.0


def test_samples_by_name_are_those_of_the_jobs_nodes_in_its_time(store):
    names = sorted({row["name"] for row in machines.metrics(store, DURING, "").to_pylist()})
    rows = machines.metrics_named(store, DURING, names[:1]).to_pylist()
    assert {row["name"] for row in rows} == set(names[:1])
    assert len(machines.metrics_named(store, DURING, names)) == len(machines.metrics(store, DURING, ""))
    assert machines.metrics_named(store, DURING, ("no_such",)).num_rows == 0
