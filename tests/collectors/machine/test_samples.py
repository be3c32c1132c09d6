"""Samples as rows of `metrics`."""

from __future__ import annotations

from pulsetrain.collectors.machine.samples import metrics
from pulsetrain.records.arrow import to_table


def test_each_sample_is_a_row_with_the_node_and_one_time_for_all():
    batch = metrics("n1", [("", "load_1m", 0.5), ("mlx5_0/1", "rdma_port_state", 4.0)], 7_000)
    rows = to_table(batch).to_pylist()
    assert [(r["node"], r["device"], r["name"], r["value"]) for r in rows] == [
        ("n1", "", "load_1m", 0.5),
        ("n1", "mlx5_0/1", "rdma_port_state", 4.0),
    ]
    assert {r["ts"].value for r in rows} == {7_000}


def test_samples_may_have_a_time_each():
    batch = metrics("n1", [("", "a", 1.0), ("", "a", 2.0)], [5, 6])
    assert [r["ts"].value for r in to_table(batch).to_pylist()] == [5, 6]


def test_no_sample_is_an_empty_batch():
    assert to_table(metrics("n1", [], 1)).num_rows == 0
