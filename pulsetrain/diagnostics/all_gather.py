"""One member's part of a group's all-gather, in a process of its own.

A repetition multiplies matrices and then gathers, so that both are spread over the whole measurement. What
interferes for a moment then spoils one repetition and not all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from pulsetrain.diagnostics.members import Joined, Member, joined, reason
from pulsetrain.diagnostics.products import fast_format

if TYPE_CHECKING:
    import torch

PAYLOAD_BYTES = 1 << 20
REPEATS = 8  # timed repetitions, after a first one that opens the connections
PRODUCTS = 8  # of each repetition
WIDTHS = {"cpu": 256, "cuda": 4096}


@dataclass(frozen=True, kw_only=True)
class GatherReport:
    """Result of one member, all times in seconds.

    `seconds` is the sum over the timed all-gathers. `compute_s` is the fastest repetition's matrix products,
    on one thread or on the GPU, `compute_mean_s` the mean over the repetitions: what slows a node only now
    and then shows in the mean alone. 0 means unknown. `reduce_busbw_bytes_per_s` is of the all-reduces, as
    nccl-tests define it, 0 where there were none. `gpu` is the UUID of the member's, "" on processors.
    """

    ok: bool
    seconds: float
    compute_s: float = 0.0
    compute_mean_s: float = 0.0
    busbw_bytes_per_s: float = 0.0
    reduce_busbw_bytes_per_s: float = 0.0
    backend: str = ""
    gpu: str = ""
    error: str = ""


def run(
    *,
    index: int,
    size: int,
    store_address: str,
    store_port: int,
    prefix: str,
    timeout_s: float,
    processors_only: bool = False,
    payload_bytes: int = PAYLOAD_BYTES,
    reduce: bool = False,
) -> dict[str, object]:
    """Join the group, multiply, all-gather and compare. Returns the fields of `GatherReport`.

    Each member gives `payload_bytes`. With `reduce` the group does all-reduces of as many bytes as well.
    Uses NCCL if every member has a GPU of its own, else gloo. Never
    raises: a timeout, a refusal and wrong bytes are failed checks.
    """
    me = Member(
        index=index,
        size=size,
        store_address=store_address,
        store_port=store_port,
        prefix=prefix,
        timeout_s=timeout_s,
        processors_only=processors_only,
    )
    try:
        with joined(me) as member:
            report = _gather(me, member, payload_bytes)
            if reduce and report.ok:
                report = _reduced(me, member, payload_bytes, report)
    except Exception as error:  # noqa: BLE001 - any failure here is the result of the check
        report = GatherReport(ok=False, seconds=timeout_s, error=reason(error))
    return asdict(report)


def _gather(me: Member, member: Joined, payload_bytes: int) -> GatherReport:
    import torch
    import torch.distributed as dist

    device = member.device
    mine = torch.full((payload_bytes // 4,), me.index + 1, dtype=torch.int32, device=device)
    parts = [torch.zeros_like(mine) for _ in range(me.size)]
    compute, gather = _repeated(device, lambda: dist.all_gather(parts, mine))
    wrong = [i for i, part in enumerate(parts) if not bool((part == i + 1).all())]
    return GatherReport(
        ok=not wrong,
        seconds=sum(gather),
        compute_s=min(compute),
        compute_mean_s=mean(compute),
        busbw_bytes_per_s=REPEATS * payload_bytes * (me.size - 1) / sum(gather),
        backend=member.backend,
        gpu=member.gpus[me.index] if member.gpus else "",
        error=f"wrong bytes from members {wrong}" if wrong else "",
    )


def _reduced(me: Member, member: Joined, payload_bytes: int, report: GatherReport) -> GatherReport:
    """The report with what all-reduces of whole numbers came to, each of whose sums is known."""
    import torch
    import torch.distributed as dist

    mine = torch.full((payload_bytes // 4,), me.index + 1, dtype=torch.int32, device=member.device)
    times, wrong, total = list[float](), 0, me.size * (me.size + 1) // 2
    for _ in range(REPEATS + 1):
        summed = mine.clone()
        times.append(_timed(member.device, partial(dist.all_reduce, summed)))
        wrong += int((summed != total).sum())
    moved = 2 * (me.size - 1) / me.size * payload_bytes  # nccl-tests, doc/PERFORMANCE.md
    return replace(
        report,
        ok=not wrong,
        reduce_busbw_bytes_per_s=REPEATS * moved / sum(times[1:]),
        error=f"{wrong} wrong sums in all-reduces" if wrong else "",
    )


def _repeated(device: torch.device, gather: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Return the seconds of the matrix products and of the all-gather in each timed repetition.

    The CPU multiplies on one thread: threads of several workers on one machine would wait for each other.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    kind = fast_format(device)
    width = WIDTHS[device.type]
    a = torch.ones(width, width, device=device, dtype=kind)
    compute, gathers = list[float](), list[float]()
    try:
        for _ in range(REPEATS + 1):
            compute.append(_timed(device, lambda: [a @ a for _ in range(PRODUCTS)]))
            gathers.append(_timed(device, gather))
    finally:
        torch.set_num_threads(threads)
    return compute[1:], gathers[1:]


def _timed(device: torch.device, work: Callable[[], object]) -> float:
    import torch

    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
