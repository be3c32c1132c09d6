"""Check this machine's arithmetic, processor, memory and loopback. Takes about a second.

A wrong result is always a fault. A slow result is a fault only far below any working machine (`Limits`),
because only its peers tell how fast a machine should be (`diagnostics.compare`).
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.diagnostics import (
    all_to_all,
    gpu_pairs,
    gpucheck,
    local_group,
    machine_kind,
    members,
    own_ports,
    own_rdma,
)
from pulsetrain.diagnostics.measurement import SEED, Check, Limits, Report, exact_operands, used_by_others

DEVICES = ("auto", "cpu", "cuda")
LEAST_BLOCKS = 4  # over the loopback


def run(
    *,
    seconds: float,
    device: str = "auto",
    limits: Limits | None = None,
    whole_node: bool = False,
    timeout_s: float = 30.0,
    rdma: Sequence[JsonObject] = (),
    gpus: Sequence[str] = (),
) -> Report:
    """Check this machine for about `seconds`. A check that cannot run has failed.

    `device` is "cpu", "cuda" (GPUs too) or "auto" (GPUs too if there are some). Raises `UsageError` for
    another. With `whole_node` all GPUs send to each other first, which takes up to `timeout_s` more and needs
    a process without a CUDA context. So do network ports (`own_ports`) and the ports of `rdma` (`own_rdma`).
    `gpus` are UUIDs of the GPUs that CUDA should list, empty where that is not known.
    """
    refuse_unknown(device)
    began = time.perf_counter()
    limits = limits or Limits()
    checks = _together(device, timeout_s) if whole_node else []
    cuda = device == "cuda" or (device == "auto" and _cuda_devices() > 0)
    checks += _cpu_checks(seconds / (2 if cuda else 1), limits)
    if whole_node:
        checks += guarded("own_ports", lambda: own_ports.checks(seconds))
        checks += guarded("own_rdma", lambda: own_rdma.checks(rdma, seconds))
    if cuda:
        checks += guarded("cuda", lambda: gpucheck.checks(seconds / 2, limits))
    listed, models = (members.visible_gpus(), _gpu_models()) if cuda else ([], [])
    checks += missing_gpus(gpus, listed, models)
    return Report(
        ok=all(c.ok for c in checks),
        failed=[c.name for c in checks if not c.ok],
        busy=[c.name for c in checks if c.busy],
        device="cuda" if cuda else "cpu",
        kind=machine_kind.describe(models),
        gpus=listed,
        seconds=time.perf_counter() - began,
        checks=[c.row() for c in checks],
    )


def refuse_unknown(device: str) -> None:
    """Raise `UsageError` for a device that is none of `DEVICES`."""
    if device not in DEVICES:
        raise UsageError(f"device = {device!r}: allowed {', '.join(DEVICES)}")


def _together(device: str, timeout_s: float) -> list[Check]:
    """Let all GPUs send to each other. No check where there are fewer than two."""
    size = 0 if device == "cpu" else local_group.gpu_count()
    if size < local_group.LEAST_MEMBERS:
        return []
    return guarded(
        "all_to_all",
        lambda: gpu_pairs.checks(local_group.run(all_to_all.run, size=size, timeout_s=timeout_s)),
    )


def _cpu_checks(seconds: float, limits: Limits) -> Iterator[Check]:
    share = seconds / 4
    yield from guarded("gemm_checksum", lambda: [gemm_checksum()])
    yield from guarded("gemm_speed", lambda: [gemm_speed(share, limits.gemm_flops_per_s)])
    yield from guarded("memory_bandwidth", lambda: [memory_bandwidth(share, limits.memory_bytes_per_s)])
    yield from guarded("loopback_bandwidth", lambda: [loopback_bandwidth(share, limits.loopback_bytes_per_s)])


def guarded(name: str, measure: Callable[[], list[Check]]) -> list[Check]:
    """What `measure` says. A check that cannot run has failed, or is busy if there is no memory for it."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - a check that cannot run is a failed check
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        busy = used_by_others(reason)
        detail = f"not measurable: {reason}" if busy else reason
        return [Check(name=name, value=0.0, unit="", right=busy, detail=detail[:300], busy=busy)]


def missing_gpus(expected: Sequence[str], listed: Sequence[str], models: Sequence[str] = ()) -> list[Check]:
    """A failed check for each GPU that the driver lists and CUDA does not.

    None where CUDA lists nothing, which its other checks are about, and where the two cannot be compared: it
    has GPUs that the driver does not name, or parts of one (MIG).

    >>> [check.name for check in missing_gpus(["GPU-a", "GPU-b"], ["GPU-a"])]
    ['missing_GPU-b']
    >>> missing_gpus(["GPU-a", "GPU-b"], []), missing_gpus(["GPU-a"], ["GPU-a", "GPU-c"])
    ([], [])
    """
    parts = any(" MIG " in f"{model} " for model in models)
    if not listed or not set(listed) <= set(expected) or parts:
        return []
    detail = f"the driver lists it among {len(expected)} GPUs, and CUDA lists {len(listed)} without it"
    missing = [uuid for uuid in expected if uuid not in listed]
    return [Check(name=f"missing_{uuid}", value=0.0, unit="", right=False, detail=detail) for uuid in missing]


def _cuda_devices() -> int:
    return members.cuda_count()


def _gpu_models() -> list[str]:
    import torch

    return [str(torch.cuda.get_device_name(index)) for index in range(_cuda_devices())]


def gemm_checksum() -> Check:
    """Count wrong elements of a float32 product against the same product in integers.

    The sums of its rows are compared too, as a checksum carried through the product. The product is repeated
    and must not change.
    """
    import torch

    a, b = exact_operands()
    x, y = torch.from_numpy(a).float(), torch.from_numpy(b).float()
    products = [(x @ y).numpy() for _ in range(3)]
    wrong = int((products[0].astype(np.int64) != a @ b).sum())
    sums = int((products[0].astype(np.int64).sum(axis=1) != a @ b.sum(axis=1)).sum())
    digests = {hashlib.sha256(p.tobytes()).hexdigest() for p in products}
    bad = wrong + sums + len(digests) - 1
    detail = f"{wrong} elements, {sums} row sums wrong; {len(digests)} distinct results in {len(products)}"
    return Check(name="gemm_checksum", value=bad, unit="errors", right=bad == 0, detail=detail)


def gemm_speed(seconds: float, limit: float, width: int = 256) -> Check:
    """Measure floating-point operations a second of one thread's float32 product, best of the repetitions."""
    import torch

    x = torch.ones(width, width)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        best = _best(lambda: x @ x, seconds)
    finally:
        torch.set_num_threads(threads)
    return Check(name="gemm_speed", value=2 * width**3 / best, unit="FLOP/s", limit=limit)


def memory_bandwidth(seconds: float, limit: float, size: int = 16 << 20) -> Check:
    """Measure bytes a second of a copy larger than the caches, best of the repetitions.

    It must equal its source.
    """
    source = np.arange(size // 8, dtype=np.uint64)
    target = np.zeros_like(source)
    best = _best(lambda: np.copyto(target, source), seconds)
    same = bool(np.array_equal(source, target))
    return Check(
        name="memory_bandwidth",
        value=size / best,
        unit="B/s",
        limit=limit,
        right=same,
        detail="" if same else "the copy differs from its source",
    )


def loopback_bandwidth(seconds: float, limit: float, chunk: int = 1 << 20) -> Check:
    """Measure bytes a second of one TCP stream to this machine, best of the blocks sent in about `seconds`.

    Every byte is compared. A mean would be that of a busy machine, which lets a stream wait.
    """
    data = np.random.Generator(np.random.PCG64(SEED)).bytes(chunk)
    equal: list[bool] = []
    times_s: list[float] = []
    lost = ""
    arrived: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        threading.Thread(target=_compare, args=(server, data, arrived), daemon=True).start()
        end = time.perf_counter() + seconds
        with socket.create_connection(server.getsockname(), timeout=10) as stream:
            while len(times_s) < LEAST_BLOCKS or time.perf_counter() < end:
                began = time.perf_counter()
                stream.sendall(data)
                try:
                    equal.append(arrived.get(timeout=10))
                except queue.Empty:
                    lost = ", one was lost"
                    break
                times_s.append(time.perf_counter() - began)
    right = not lost and all(equal)
    detail = f"{len(equal)} blocks arrived, {equal.count(False)} altered{lost}"
    return Check(
        name="loopback_bandwidth",
        value=chunk / min(times_s, default=float("inf")),
        unit="B/s",
        limit=limit,
        right=right,
        detail="" if right else detail,
    )


def _compare(server: socket.socket, data: bytes, arrived: queue.SimpleQueue[bool]) -> None:
    """Receive blocks until the stream ends. Tell of each whether it equals `data`."""
    block = bytearray(len(data))
    with contextlib.suppress(OSError), server.accept()[0] as stream:
        stream.settimeout(10)
        while _fill(stream, memoryview(block)):
            arrived.put(block == data)


def _fill(stream: socket.socket, block: memoryview) -> bool:
    """Return whether a whole block arrived before the stream ended."""
    have = 0
    while have < len(block):
        got = stream.recv_into(block[have:])
        if not got:
            return False
        have += got
    return True


def _best(work: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of `work` in seconds. Repeats it for about `seconds`, at least twice."""
    best, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < 2 or time.perf_counter() < end:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
        runs += 1
    return best
