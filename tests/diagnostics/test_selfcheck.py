"""The self-check on this machine, and what it says about one that computes wrongly or slowly."""

from __future__ import annotations

import errno
import json
import queue
import socket
import time

import numpy as np
import pytest
import torch

from pulsetrain.core.errors import UsageError
from pulsetrain.diagnostics import selfcheck
from pulsetrain.diagnostics.measurement import Limits

NAMES = ["gemm_checksum", "gemm_speed", "memory_bandwidth", "loopback_bandwidth"]


def test_this_machine_passes_and_the_report_is_json():
    report = selfcheck.run(seconds=0.1, device="cpu")
    assert json.loads(json.dumps(report)) == report
    assert report["ok"], report
    assert (report["failed"], report["busy"]) == ([], [])
    assert [c["check"] for c in report["checks"]] == NAMES
    assert all(c["value"] > c["limit"] for c in report["checks"] if c["limit"] is not None)


def test_a_product_with_one_wrong_element_fails(monkeypatch):
    exact = torch.Tensor.__matmul__

    def broken(self, other):
        product = exact(self, other)
        product[3, 4] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", broken)
    check = selfcheck.gemm_checksum()
    assert not check.ok
    assert check.value == 2  # the element, and the sum of its row
    assert "1 elements, 1 row sums wrong" in check.detail


def test_a_product_that_is_not_repeatable_fails(monkeypatch):
    exact, calls = torch.Tensor.__matmul__, []

    def flaky(self, other):
        calls.append(1)
        product = exact(self, other)
        if len(calls) == 2:
            product[0, 0] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", flaky)
    check = selfcheck.gemm_checksum()
    assert not check.ok
    assert "2 distinct results in 3" in check.detail


def test_the_exact_product_stays_exact_in_float32():
    a, b = selfcheck.exact_operands()
    assert int(np.abs(a).max()) ** 2 * len(a) < 2**24
    assert (a == selfcheck.exact_operands()[0]).all()
    assert len(np.unique(a @ b)) > 100


def test_a_slow_machine_fails_by_name():
    report = selfcheck.run(seconds=0.05, device="cpu", limits=Limits(gemm_flops_per_s=1e18))
    assert report["failed"] == ["gemm_speed"]
    assert not report["ok"]


def test_a_check_that_cannot_run_has_failed(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no sockets here")

    monkeypatch.setattr(socket, "create_server", refuse)
    report = selfcheck.run(seconds=0.05, device="cpu")
    assert report["failed"] == ["loopback_bandwidth"]
    assert "no sockets here" in report["checks"][-1]["detail"]


def test_a_check_for_which_the_machine_has_no_memory_is_busy_and_has_not_failed(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(socket, "create_server", refuse)
    report = selfcheck.run(seconds=0.05, device="cpu")
    assert (report["failed"], report["busy"]) == ([], ["loopback_bandwidth"])


def test_a_busy_gpu_is_told_and_fails_nobody(monkeypatch):
    busy = selfcheck.Check(name="gpu0", value=0.0, unit="", busy=True)
    with_gpus(monkeypatch, ["GPU-a"], [busy])
    report = selfcheck.run(seconds=0.05)
    assert (report["ok"], report["failed"], report["busy"]) == (True, [], ["gpu0"])


def with_gpus(monkeypatch, uuids, checks, model="H100"):
    """CUDA lists these GPUs, and their checks come to this."""
    monkeypatch.setattr(selfcheck.members, "cuda_count", lambda: len(uuids))
    monkeypatch.setattr(selfcheck.members, "visible_gpus", lambda: uuids)
    monkeypatch.setattr(selfcheck, "_gpu_models", lambda: [model] * len(uuids))
    monkeypatch.setattr(selfcheck.gpucheck, "checks", lambda *_: checks)


@pytest.mark.parametrize(
    ("model", "expected", "failed"),
    [
        ("H100", "abc", ["missing_GPU-c"]),
        ("H100", "ab", []),
        ("H100", "", []),
        ("A100 MIG 1g.5gb", "abc", []),
    ],
)
def test_a_gpu_that_the_driver_lists_and_cuda_does_not_fails_by_name(monkeypatch, model, expected, failed):
    with_gpus(monkeypatch, ["GPU-a", "GPU-b"], [], model)
    report = selfcheck.run(seconds=0.05, gpus=[f"GPU-{name}" for name in expected])
    assert (report["failed"], report["gpus"]) == (failed, ["GPU-a", "GPU-b"])


def test_altered_bytes_on_the_loopback_are_seen(monkeypatch):
    fill, calls = selfcheck._fill, []

    def altered(stream, block):
        whole = fill(stream, block)
        if whole and not calls:
            calls.append(1)
            block[7] ^= 1
        return whole

    monkeypatch.setattr(selfcheck, "_fill", altered)
    check = selfcheck.loopback_bandwidth(0.02, 0.0)
    assert not check.ok
    assert "1 altered" in check.detail


def test_a_stream_that_a_busy_processor_lets_wait_is_no_slow_loopback(monkeypatch):
    fill, waits_s = selfcheck._fill, [0.3, 0.0, 0.3]

    def late(stream, block):
        time.sleep(waits_s.pop() if waits_s else 0.0)
        return fill(stream, block)

    monkeypatch.setattr(selfcheck, "_fill", late)
    assert selfcheck.loopback_bandwidth(0.02, 2e7).ok


def test_a_block_that_does_not_arrive_is_a_failed_check(monkeypatch):
    class Lost(queue.SimpleQueue):
        def get(self, timeout):
            raise queue.Empty

    monkeypatch.setattr(selfcheck.queue, "SimpleQueue", Lost)
    check = selfcheck.loopback_bandwidth(0.02, 0.0)
    assert (check.ok, check.detail) == (False, "0 blocks arrived, 0 altered, one was lost")


def test_an_unknown_device_is_named():
    with pytest.raises(UsageError, match="device = 'tpu': allowed auto, cpu, cuda"):
        selfcheck.run(seconds=0.1, device="tpu")
