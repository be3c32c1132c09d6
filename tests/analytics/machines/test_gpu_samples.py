"""Samples of GPUs as series."""

from __future__ import annotations

import numpy as np

from pulsetrain.analytics.machines.gpu_samples import gpus, values_at
from tests.analytics.machines.gpu_rows import S, rows, table


def counter(values):
    (gpu,) = gpus(table([("n1", "GPU-1", "gpu_x_total", i * S, v) for i, v in enumerate(values)]))
    return gpu


def test_a_counter_that_was_reset_counts_from_zero():
    assert counter([5.0, 7.0, 1.0, 4.0]).increase("gpu_x_total") == 2 + 1 + 3
    assert counter([5.0]).increase("gpu_x_total") == 0
    assert counter([5.0, 6.0]).increase("gpu_other") == 0


def test_samples_are_in_order_of_time_once_and_finite():
    made = [
        ("n1", "GPU-1", "gpu_x", t * S, v) for t, v in ((3, 30.0), (1, 10.0), (3, 30.0), (2, float("nan")))
    ]
    (gpu,) = gpus(table(made))
    assert gpu.values("gpu_x").tolist() == [10.0, 30.0]
    assert gpu.seconds("gpu_x") == 2
    assert gpu.values("gpu_y").size == gpu.seconds("gpu_y") == 0


def test_gpus_are_sorted_and_named_by_node_with_their_model():
    made = gpus(table(rows("GPU-2", 1), rows("GPU-1", 1, node="")), {"GPU-2": "NVIDIA H200"})
    assert [(gpu.name, gpu.model) for gpu in made] == [("GPU-1", ""), ("n1/GPU-2", "NVIDIA H200")]


def test_metrics_of_other_devices_are_no_gpu():
    assert gpus(table([("n1", "eth0", "nic_x", 0, 1.0)])) == []


def test_the_newest_sample_counts_until_the_next():
    series = (np.array([10, 20]), np.array([1.0, 2.0]))
    assert values_at(series, np.array([5, 10, 19, 20, 99])).tolist()[1:] == [1.0, 1.0, 2.0, 2.0]
    assert np.isnan(values_at(series, np.array([5]))).all()
