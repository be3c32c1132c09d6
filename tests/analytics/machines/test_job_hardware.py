"""What a job runs on, from the lists of GPUs that agents sent."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from pulsetrain.analytics.analyze import AnalyzerInput, Recent
from pulsetrain.analytics.machines.job_hardware import JobHardware, models_in, peak_of
from pulsetrain.analytics.slowness.device_peaks import peaks
from pulsetrain.stream.queries.queryable import AttemptSteps
from tests.analytics.fleet import fleet, timings

STEPS = AttemptSteps(job="j", attempt=0, first=0, last=9)


class Store:
    """Lists of GPUs by node, and whether a lane of a GPU was recorded."""

    def __init__(self, models, *, cuda=True):
        self.models, self.cuda = models, cuda

    def query(self, sql, params=None):
        if "FROM spans" in sql:
            return pa.table({"one": [1] if self.cuda else []})
        lists = [
            json.dumps({"gpus": [{"uuid": u, "model": m} for u, m in gpus.items()]})
            for gpus in self.models.values()
        ]
        return pa.table({"node": list(self.models), "detail": lists})  # fmt: skip


def test_models_and_peak_come_from_what_the_nodes_agents_said():
    hardware = JobHardware.read(Store({"a": {"GPU-1": "NVIDIA H200"}, "b": {"GPU-2": "NVIDIA H200"}}), STEPS)
    assert hardware.by_uuid == {"GPU-1": "NVIDIA H200", "GPU-2": "NVIDIA H200"}
    assert hardware.peak(["a", "b"]).flops_per_s == peaks()["H200", "bf16"].flops_per_s
    assert not hardware.calibrated


def test_nodes_of_different_models_have_their_mean():
    hardware = JobHardware.read(
        Store({"a": {"1": "NVIDIA H200"}, "b": {"2": "NVIDIA A100-SXM4-80GB"}}), STEPS
    )
    peak = hardware.peak(["a", "a", "b", "b"])
    assert peak.device == "A100+H200"
    assert peak.flops_per_s == pytest.approx((989.4e12 + 312e12) / 2)


def test_a_job_on_processors_of_a_machine_with_gpus_has_no_peak_and_no_calibration():
    hardware = JobHardware.read(Store({"a": {"1": "NVIDIA H200"}}, cuda=False), STEPS)
    assert hardware.peak(["a"]) is None
    assert not hardware.calibrated


def test_a_machine_without_gpus_is_what_the_table_was_counted_on():
    hardware = JobHardware.read(Store({}), STEPS)
    assert hardware.calibrated
    assert hardware.peak(["a"]) is None


def test_an_unknown_model_or_another_form_is_no_peak():
    hardware = JobHardware.read(Store({"a": {"1": "Quadro P1000"}}), STEPS)
    assert hardware.peak(["a"]) is None
    assert models_in("[]") == models_in("no") == models_in("{}") == {}


@pytest.mark.parametrize(
    ("model", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_names_of_drivers_are_devices_of_the_table(model, device):
    assert peak_of(model).device == device


def test_analyzers_know_the_gpu_models_of_a_job_that_has_several():
    def models_in(**of_nodes):
        models = {node: {f"GPU-{node}": model} for node, model in of_nodes.items()}
        hardware = JobHardware(models=models, uses_gpus=True)
        recent = Recent(timings=timings(fleet(steps=20, per_node=4)), transfers=None, hardware=hardware)
        source = AnalyzerInput(
            store=None, job="j", attempt=0, since=0, until=19, first_step=0, now_ns=1, recent=recent
        )
        return source.timings.models.tolist()

    assert models_in(n0="A100", n1="H100") == ["A100"] * 4 + ["H100"] * 4
    assert models_in(n0="H100", n1="H100") == []
