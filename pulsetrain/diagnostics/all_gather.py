"""One member's part of the pairwise check, in a process of its own."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed import PrefixStore

PAYLOAD_BYTES = 1 << 20
REPEATS = 8  # timed all-gathers, after a first one that opens the connections


@dataclass(frozen=True, kw_only=True)
class GatherReport:
    """Result of one member. `seconds` is the sum over the timed all-gathers."""

    ok: bool
    seconds: float
    compute_seconds: float
    busbw_bytes_per_s: float = 0.0
    backend: str = ""
    error: str = ""


def run(
    *, index: int, size: int, store_address: str, store_port: int, prefix: str, timeout_s: float
) -> dict[str, object]:
    """Join the group, multiply, all-gather and compare. Returns the fields of `GatherReport`.

    Uses NCCL if every member has a GPU of its own, else gloo. Never raises: a timeout, a refusal and wrong
    bytes are failed checks.
    """
    try:
        report = _gather(index, size, _store(store_address, store_port, prefix, timeout_s), timeout_s)
    except Exception as error:  # noqa: BLE001 - any failure here is the result of the check
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        report = GatherReport(ok=False, seconds=timeout_s, compute_seconds=0.0, error=reason[:300])
    return asdict(report)


def _store(address: str, port: int, prefix: str, timeout_s: float) -> PrefixStore:
    from torch.distributed import PrefixStore, TCPStore

    limit = timedelta(seconds=timeout_s)
    return PrefixStore(prefix, TCPStore(address, port, is_master=False, timeout=limit))


def _gather(index: int, size: int, store: PrefixStore, timeout_s: float) -> GatherReport:
    import torch
    import torch.distributed as dist

    device = _device(store, index, size)
    backend = "nccl" if device.type == "cuda" else "gloo"
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=index, world_size=size, timeout=limit)
    try:
        compute_s = _multiply(device)
        mine = torch.full((PAYLOAD_BYTES // 4,), index + 1, dtype=torch.int32, device=device)
        parts = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        began = time.perf_counter()
        for _ in range(REPEATS):
            dist.all_gather(parts, mine)
        wrong = [i for i, part in enumerate(parts) if not bool((part == i + 1).all())]
        seconds = time.perf_counter() - began
    finally:
        dist.destroy_process_group()
    return GatherReport(
        ok=not wrong,
        seconds=seconds,
        compute_seconds=compute_s,
        busbw_bytes_per_s=REPEATS * PAYLOAD_BYTES * (size - 1) / seconds,
        backend=backend,
        error=f"wrong bytes from members {wrong}" if wrong else "",
    )


def _device(store: PrefixStore, index: int, size: int) -> torch.device:
    """Return this member's own GPU if every member has one, else the CPU.

    Members compare through the store.
    """
    import torch

    cuda = torch.cuda.is_available()
    mine = str(torch.cuda.get_device_properties(0).uuid) if cuda else ""
    store.set(f"gpu/{index}", mine)
    gpus = {store.get(f"gpu/{i}").decode() for i in range(size)}
    if cuda:
        torch.cuda.set_device(0)
    return torch.device("cuda", 0) if len(gpus) == size and "" not in gpus else torch.device("cpu")


def _multiply(device: torch.device, width: int = 256, repeats: int = 4) -> float:
    """Return the seconds of a few matrix products, which tell a slow processor from a slow network."""
    import torch

    a = torch.ones(width, width, device=device)
    began = time.perf_counter()
    for _ in range(repeats):
        b = a @ a
    float(b[0, 0])
    return time.perf_counter() - began
