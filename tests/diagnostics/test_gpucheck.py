"""The checks of GPUs: none where there is no GPU, all right on a healthy one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pulsetrain.core.errors import Unavailable
from pulsetrain.diagnostics import gpucheck, selfcheck
from pulsetrain.diagnostics.host_links import HostLink
from pulsetrain.diagnostics.measurement import Check, Limits
from pulsetrain.diagnostics.pcie import PcieLink


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_asking_for_gpus_where_there_are_none_is_a_failed_check():
    with pytest.raises(Unavailable, match="no CUDA device"):
        gpucheck.checks(0.1, Limits())
    report = selfcheck.run(seconds=0.1, device="cuda")
    assert (report["ok"], report["failed"]) == (False, ["cuda"])
    assert "no CUDA device" in report["checks"][-1]["detail"]


def raising(error):
    def measure(*_):
        raise error

    return measure


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_gpu_that_others_use_is_busy_and_has_not_failed(monkeypatch, error):
    monkeypatch.setattr(gpucheck, "cuda_count", lambda: 2)
    monkeypatch.setattr(gpucheck, "_checksum", lambda device: Check(name=str(device), value=0, unit=""))
    monkeypatch.setattr(gpucheck, "_speed", lambda device, *_: Check(name=str(device), value=1, unit=""))
    monkeypatch.setattr(gpucheck, "_memory", raising(error))
    found = gpucheck.checks(0.1, Limits())
    assert [(c.name, c.ok, c.busy) for c in found] == [("gpu0", True, True), ("gpu1", True, True)]
    assert found[0].detail.startswith("not measurable: CUDA")


def test_a_product_that_a_gpu_does_not_have_is_not_measurable_and_has_not_failed(monkeypatch):
    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(handle)`")
    monkeypatch.setattr(gpucheck, "_checksum", raising(error))
    [found] = gpucheck._device_checks(torch.device("cuda", 0), 0.1, Limits())
    assert (found.ok, found.busy) == (True, False)
    assert found.detail.startswith("not measurable: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")


def test_another_error_of_a_gpu_is_a_failed_check(monkeypatch):
    monkeypatch.setattr(gpucheck, "_checksum", raising(RuntimeError("CUDA error: misaligned address")))
    with pytest.raises(RuntimeError, match="misaligned"):
        gpucheck._device_checks(torch.device("cuda", 0), 0.1, Limits())


def test_a_copy_that_another_job_slowed_down_for_a_moment_passes(monkeypatch):
    fast = PcieLink(gt_per_s=32.0, width=16, device_width=16, near=-1)
    asked = []

    def measured(devices, seconds, sys_root):
        asked.append(([device.index for device in devices], seconds))
        rates = {0: 5e10, 1: 4e9 if len(asked) == 1 else 5e10}
        return [
            HostLink(gpu=device.index, uuid="GPU", memory=-1, bytes_per_s=rates[device.index], pcie=fast)
            for device in devices
        ]

    monkeypatch.setattr(gpucheck, "_host_links", measured)
    monkeypatch.setattr(gpucheck.pcie, "encrypts_memory", lambda: False)
    found = gpucheck._link_checks([torch.device("cuda", i) for i in range(2)], 0.03, Path("/sys"))
    assert [check.ok for check in found] == [True, True]
    assert asked == [([0, 1], 0.03), ([1], 1.0)]


@pytest.mark.parametrize(
    ("allowed", "places"),
    [
        ({0, 1, 2, 3}, {0: {0, 1}, 1: {2, 3}}),
        ({3}, {1: {3}}),  # its only memory node is far from the GPUs of the other one
        ({7}, {-1: {7}}),  # the machine says nothing of this processor
    ],
)
def test_a_memory_node_that_is_the_only_usable_one_keeps_its_number(allowed, places):
    assert gpucheck._places({0: (0, 1), 1: (2, 3)}, allowed) == places


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_healthy_gpu_passes_every_check():
    report = selfcheck.run(seconds=2.0, device="cuda")
    names = [row["check"] for row in report["checks"] if row["check"].startswith("gpu0_")]
    assert names[:3] == ["gpu0_gemm_checksum", "gpu0_gemm_speed", "gpu0_memory_bandwidth"]
    assert names[3:]
    assert all(name.startswith("gpu0_host_link") for name in names[3:])
    assert report["ok"], report
