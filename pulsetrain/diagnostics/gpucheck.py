"""Check each visible GPU's arithmetic, speed, memory and link to the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pulsetrain.core.errors import Unavailable
from pulsetrain.diagnostics.measurement import Check, Limits, exact_operands

if TYPE_CHECKING:
    import torch


def checks(seconds: float, limits: Limits) -> list[Check]:
    """Run four checks on each visible GPU, named ``gpuN_...``, for about `seconds` in all.

    Raises `Unavailable` if there is no GPU.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise Unavailable("no CUDA device")
    found: list[Check] = []
    for index in range(count):
        found += _device_checks(torch.device("cuda", index), seconds / count / 3, limits)
    return found


def _device_checks(device: torch.device, seconds: float, limits: Limits) -> list[Check]:
    return [
        _checksum(device),
        _speed(device, seconds, limits.cuda_gemm_flops_per_s),
        _memory(device, seconds, limits.cuda_memory_bytes_per_s),
        _host_link(device, seconds),
    ]


def _checksum(device: torch.device) -> Check:
    """Count wrong elements of a float32 product on the device against the product in integers on the host."""
    import torch

    a, b = exact_operands()
    x, y = (torch.from_numpy(m).float().to(device) for m in (a, b))
    products = [(x @ y).cpu().numpy() for _ in range(3)]
    wrong = int((products[0].astype(np.int64) != a @ b).sum())
    bad = wrong + sum(not np.array_equal(products[0], p) for p in products[1:])
    return Check(
        name=f"gpu{device.index}_gemm_checksum",
        value=bad,
        unit="errors",
        right=bad == 0,
        detail=_name(device),
    )


def _speed(device: torch.device, seconds: float, limit: float, width: int = 4096) -> Check:
    import torch

    x = torch.ones(width, width, device=device, dtype=torch.bfloat16)
    best = _best(device, lambda: x @ x, seconds)
    return Check(name=f"gpu{device.index}_gemm_speed", value=2 * width**3 / best, unit="FLOP/s", limit=limit)


def _memory(device: torch.device, seconds: float, limit: float, size: int = 256 << 20) -> Check:
    import torch

    source = torch.arange(size // 8, device=device)
    target = torch.zeros_like(source)
    best = _best(device, lambda: target.copy_(source), seconds)
    same = bool(torch.equal(source, target))
    name = f"gpu{device.index}_memory_bandwidth"
    return Check(name=name, value=size / best, unit="B/s", limit=limit, right=same)


def _host_link(device: torch.device, seconds: float, size: int = 64 << 20) -> Check:
    """Copy pinned host memory to the device and back.

    The bytes must survive. The speed is compared with peers.
    """
    import torch

    host = torch.arange(size // 8).pin_memory()
    back = torch.zeros_like(host).pin_memory()
    target = torch.zeros(size // 8, dtype=torch.int64, device=device)
    best = _best(device, lambda: target.copy_(host, non_blocking=True), seconds)
    back.copy_(target)
    name = f"gpu{device.index}_host_link"
    return Check(name=name, value=size / best, unit="B/s", limit=0.0, right=bool(torch.equal(host, back)))


def _best(device: torch.device, work: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of `work` on the device in seconds.

    The first two runs warm up and do not count.
    """
    import torch

    best, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < 5 or time.perf_counter() < end:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(device):
            start.record()
            work()
            stop.record()
        stop.synchronize()
        runs += 1
        if runs > 2:
            best = min(best, start.elapsed_time(stop) / 1e3)
    return best


def _name(device: torch.device) -> str:
    """Model and UUID."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name}, GPU-{properties.uuid}"
