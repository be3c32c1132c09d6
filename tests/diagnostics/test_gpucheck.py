"""The checks of GPUs: none where there is no GPU, all right on a healthy one."""

from __future__ import annotations

import pytest
import torch

from pulsetrain.core.errors import Unavailable
from pulsetrain.diagnostics import gpucheck, selfcheck
from pulsetrain.diagnostics.measurement import Limits


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_asking_for_gpus_where_there_are_none_is_a_failed_check():
    with pytest.raises(Unavailable, match="no CUDA device"):
        gpucheck.checks(0.1, Limits())
    report = selfcheck.run(seconds=0.1, device="cuda")
    assert (report["ok"], report["failed"]) == (False, ["cuda"])
    assert "no CUDA device" in report["checks"][-1]["detail"]


@pytest.mark.gpu
def test_a_healthy_gpu_passes_every_check():
    report = selfcheck.run(seconds=2.0, device="cuda")
    names = [row["check"] for row in report["checks"]]
    assert [n for n in names if n.startswith("gpu0_")] == [
        "gpu0_gemm_checksum",
        "gpu0_gemm_speed",
        "gpu0_memory_bandwidth",
        "gpu0_host_link",
    ]
    assert report["ok"], report
