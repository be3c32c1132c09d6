"""Check each visible GPU's arithmetic, speed, memory and link to the host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pulsetrain.core.errors import Unavailable
from pulsetrain.diagnostics import host_links, pcie
from pulsetrain.diagnostics.host_links import HostLink
from pulsetrain.diagnostics.measurement import Check, Limits, exact_operands, unsupported, used_by_others
from pulsetrain.diagnostics.members import cuda_count
from pulsetrain.diagnostics.memory_nodes import MOST_NODES, memory_nodes
from pulsetrain.diagnostics.products import fast_format

if TYPE_CHECKING:
    import torch

HOST_BYTES = 32 << 20
"""of each copy between host and device"""
AGAIN_S = 2.0
"""for all ways that are slow at first, and half of it for each at most"""


def checks(seconds: float, limits: Limits, *, sys_root: Path = Path("/sys")) -> list[Check]:
    """Run four checks on each visible GPU, named ``gpuN_...``, for about `seconds` in all.

    The fourth is one for each memory node of the machine. A GPU without free memory has one check alone,
    which says so. Raises `Unavailable` if there is no GPU.
    """
    import torch

    count = cuda_count()
    if count == 0:
        raise Unavailable("no CUDA device")
    devices = [torch.device("cuda", index) for index in range(count)]
    found: list[Check] = []
    free: list[torch.device] = []
    for device in devices:
        own = _device_checks(device, seconds / count / 3, limits)
        found += own
        free += [] if any(check.busy for check in own) else [device]
    if free:
        found += _unless_busy("gpu_host_links", lambda: _link_checks(free, seconds / 3, sys_root))
    return found


def _device_checks(device: torch.device, seconds: float, limits: Limits) -> list[Check]:
    def measured() -> list[Check]:
        return [
            _checksum(device),
            _speed(device, seconds, limits.cuda_gemm_flops_per_s),
            _memory(device, seconds, limits.cuda_memory_bytes_per_s),
        ]

    return _unless_busy(f"gpu{device.index}", measured)


def _link_checks(devices: Sequence[torch.device], seconds: float, sys_root: Path) -> list[Check]:
    links, encrypted = _host_links(devices, seconds, sys_root), pcie.encrypts_memory()
    gpus = {link.gpu for link in host_links.slow(links, encrypted=encrypted)}
    if gpus:
        slow = [device for device in devices if device.index in gpus]
        again_s = min(AGAIN_S, AGAIN_S / 2 * len(slow))
        links = host_links.better(links, _host_links(slow, max(seconds, again_s), sys_root))
    return host_links.checks(links, encrypted=encrypted)


def _unless_busy(name: str, measure: Callable[[], list[Check]]) -> list[Check]:
    """What `measure` says. Where others use the memory of a GPU, it is busy and has not failed.

    Nor has one that cannot do what was asked, by its design.
    """
    try:
        return measure()
    except RuntimeError as error:  # torch.OutOfMemoryError is one, and what CUDA says of it another
        busy = used_by_others(str(error))
        if not busy and not unsupported(str(error)):
            raise
        why = " ".join(str(error).split())[:200]
        return [Check(name=name, value=0.0, unit="", detail=f"not measurable: {why}", busy=busy)]


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

    x = torch.ones(width, width, device=device, dtype=fast_format(device))
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


def _host_links(devices: Sequence[torch.device], seconds: float, sys_root: Path) -> list[HostLink]:
    """Copy between pinned memory of each memory node and each GPU.

    Pinned memory is placed near the processor that asks for it (numa(7)). All of it is kept until the end, or
    torch would use memory of one node again for the next. Memory nodes whose
    processors this process may not use are left out.
    """
    allowed = os.sched_getaffinity(0)
    places = _places(memory_nodes(sys_root), allowed)
    share = seconds / len(devices) / len(places) / 2
    kept: list[torch.Tensor] = []
    links: list[HostLink] = []
    try:
        for memory, cpus in places.items():
            os.sched_setaffinity(0, cpus)
            host, back = _pinned(), _pinned()
            kept += [host, back]
            links += [_host_link(device, memory, host, back, share, sys_root) for device in devices]
    finally:
        os.sched_setaffinity(0, allowed)
    return sorted(links, key=lambda link: link.gpu)


def _places(nodes: Mapping[int, Sequence[int]], allowed: set[int]) -> dict[int, set[int]]:
    """The usable processors of each memory node, of -1 where the machine has one alone.

    Where this process may use those of one node alone, GPUs next to the others are still far from it.

    >>> _places({0: (0, 1), 1: (2, 3)}, {2, 3}), _places({0: (0, 1)}, {0, 1})
    ({1: {2, 3}}, {-1: {0, 1}})
    """
    usable = {number: mine for number, cpus in nodes.items() if (mine := allowed & set(cpus))}
    return dict(list(usable.items())[:MOST_NODES]) if usable and len(nodes) > 1 else {-1: allowed}


def _pinned() -> torch.Tensor:
    import torch

    return torch.empty(HOST_BYTES // 8, dtype=torch.int64, pin_memory=True).zero_()


def _host_link(
    device: torch.device,
    memory: int,
    host: torch.Tensor,
    back: torch.Tensor,
    seconds: float,
    sys_root: Path,
) -> HostLink:
    """Copy to the device and back. The bytes must survive."""
    import torch

    torch.arange(len(host), out=host)
    back.zero_()
    target = torch.zeros(len(host), dtype=torch.int64, device=device)
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    best = _best(device, lambda: target.copy_(host, non_blocking=True), seconds)
    link = pcie.link_of(pcie.address_of_gpu(uuid), sys_root)  # at once, before it is idle again
    best = max(best, _best(device, lambda: back.copy_(target, non_blocking=True), seconds))
    return HostLink(
        gpu=device.index,
        uuid=uuid,
        memory=memory,
        bytes_per_s=HOST_BYTES / best,
        pcie=link,
        right=bool(torch.equal(host, back)),
    )


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
