"""The parts of `make gpu-check`. Each prints one JSON object with `ok` as its last line."""

from __future__ import annotations

import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
TIMER_TOLERANCE = 0.02
"""Phases may differ by so much from the profiler's sum of kernels: launches leave small gaps."""
STALL_RATIO = 1.1
"""A checkpoint's copy may take so many times as long as one pinned copy of the same bytes."""
STEP_RATIO = 1.001
"""A watched step may take so many times as long as a step that is not watched."""
STATE_BYTES = 2 << 30

Answer = dict[str, object]


def timers() -> Answer:
    """Phases that CUDA events timed, beside the times of the same kernels by torch's profiler (CUPTI)."""
    from pulsetrain.collectors.rank.handle import Handle
    from pulsetrain.collectors.rank.ring import RingWriter, create_ring
    from pulsetrain.collectors.reading.ring_reader import RingReader

    fd = create_ring(4096)
    handle, reader = Handle(RingWriter(fd)), RingReader(fd)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        matrix @ matrix
    torch.cuda.synchronize()
    handle.start_clock()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(20):
            with handle.phase("forward"):
                for _ in range(4):
                    matrix @ matrix
            torch.cuda.synchronize()
            handle.step()
    handle.step()
    spans, _ = reader.drain()
    ours_us = float((spans["end"] - spans["start"]).sum()) / 1e3
    on_device = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels_us = float(sum(e.time_range.elapsed_us() for e in on_device))
    ratio = ours_us / kernels_us if kernels_us else float("nan")
    return {
        "ok": len(spans) == 20 and abs(ratio - 1) <= TIMER_TOLERANCE,
        "phases": len(spans),
        "kernels": len(on_device),
        "phases_us": round(ours_us, 1),
        "kernels_us": round(kernels_us, 1),
        "ratio": round(ratio, 4),
        "ring_errors": reader.status().errors,
    }


def collectives() -> Answer:
    """Hooks on a real NCCL group: an all-reduce behind a long kernel is in flight, and then complete."""
    from pulsetrain.collectors.rank.collectives import Tracker
    from pulsetrain.collectors.rank.handle import Handle
    from pulsetrain.collectors.rank.ring import RingWriter, create_ring
    from pulsetrain.collectors.reading.ring_reader import RingReader

    fd = create_ring(4096)
    handle, reader = Handle(RingWriter(fd)), RingReader(fd)
    assert handle.state is not None
    join_nccl()
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)  # makes the communicator
    torch.cuda.synchronize()
    tracker = Tracker(handle.state)
    group = dist.group.WORLD
    assert group is not None
    tracker.attach(group, "world", lambda: (0,))
    torch.cuda._sleep(2_000_000_000)  # about a second
    work = dist.all_reduce(tensor, async_op=True)
    (during,) = reader.status().groups
    work.wait()
    torch.cuda.synchronize()
    for _ in range(100):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    handle.state.poll()
    (after,) = reader.status().groups
    spans, _ = reader.drain()
    dist.destroy_process_group()
    return {
        "ok": during.enqueued - during.completed == 1 and after.enqueued == after.completed == 101,
        "in_flight": during.enqueued - during.completed,
        "enqueued": after.enqueued,
        "completed": after.completed,
        "spans": len(spans),
    }


def join_nccl() -> None:
    """A process group of this process alone."""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))


def checkpoint() -> Answer:
    """The stall of a checkpoint's copy beside one pinned copy of the same bytes, which is its limit."""
    from pulsetrain.checkpoint.copying import CudaCopier, Pairs

    count = STATE_BYTES // 4 // 16
    sources = [torch.randn(count, device="cuda") for _ in range(16)]
    pinned = torch.empty(count, pin_memory=True)

    def limit() -> None:
        for source in sources:
            pinned.copy_(source, non_blocking=True)

    limit_s = best_s(limit)
    region = mmap.mmap(-1, STATE_BYTES)
    whole = torch.frombuffer(region, dtype=torch.float32)
    targets = list(whole.split(count))
    copier = CudaCopier()
    copier.adopt(region)
    stalls, totals = [], []
    for _ in range(6):
        pairs = Pairs(volatile=(sources[:4], targets[:4]), optimizer_owned=(sources[4:], targets[4:]))
        torch.cuda.synchronize()
        began = time.perf_counter()
        copier.begin(pairs)
        stalls.append(time.perf_counter() - began)
        copier.finish(pairs)
        torch.cuda.synchronize()
        totals.append(time.perf_counter() - began)
    same = all(torch.equal(s.cpu(), t) for s, t in zip(sources, targets, strict=True))
    total_s = min(totals[1:])
    return {
        "ok": same and total_s <= STALL_RATIO * limit_s,
        "bytes": STATE_BYTES,
        "pinned_copy_s": round(limit_s, 4),
        "copy_s": round(total_s, 4),
        "stall_s": round(statistics.median(stalls[1:]), 6),
        "copy_ratio": round(total_s / limit_s, 3),
        "bytes_per_s": round(STATE_BYTES / total_s),
        "equal": same,
    }


def best_s(work: Callable[[], None], *, times: int = 6) -> float:
    """Shortest time of `work` on the device."""
    took = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return min(took[1:])


def gpucheck() -> Answer:
    """What `pulsetrain diagnose --device cuda` measures."""
    from pulsetrain.diagnostics import suite

    report = suite.run(seconds=6.0, device="cuda")
    return {"ok": bool(report["ok"]), "checks": report["checks"]}


def nvml() -> Answer:
    """What the agent reads of the GPU through the driver's own library, and how long a reading takes."""
    from pulsetrain.collectors.machine.gpu import GpuSampler

    sampler = GpuSampler(node="n0")
    took, batch = [], None
    for _ in range(5):
        began = time.perf_counter()
        batch = sampler.sample(time.time_ns())
        took.append(time.perf_counter() - began)
    assert batch is not None
    rows = {str(row["name"]): row["value"] for row in batch.to_rows()}
    return {
        "ok": not sampler.blind and "gpu_memory_total_bytes" in rows,
        "blind": sampler.blind,
        "sample_s": round(statistics.median(took), 5),
        "metrics": rows,
    }


def overhead() -> Answer:
    """A watched step beside one that is not, on this device."""
    command = [sys.executable, str(ROOT / "benchmarks" / "overhead.py"), "--device", "cuda"]
    command += ["--blocks", "60", "--steps", "10", "--dim", "1024", "--batch", "64"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    within = found["step_ratio"] <= STEP_RATIO and found["auto_step_ratio"] <= STEP_RATIO
    return {"ok": within and not found["errors"], "target": STEP_RATIO, **found}


def hang() -> Answer:
    """The flight recorder's dump of a real NCCL operation that does not end, read by `pulsetrain hang`."""
    from pulsetrain.analytics.hangs.flight_recorder import verdict

    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "nccl_trace_rank_")
        environ = {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
            "TORCH_FR_DUMP_TEMP_FILE": prefix,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }
        ended = hanging_process(environ)
        dumps = sorted(path.name for path in Path(folder).iterdir())
        answer = verdict(Path(folder)) if dumps else None
    groups = answer["groups"] if answer else []
    return {
        "ok": bool(answer and groups),
        "ended": ended,
        "dumps": dumps,
        "verdict": answer["verdict"] if answer else "",
        "reason": answer["reason"] if answer else "no dump was written",
        "groups": groups,
    }


def hanging_process(environ: Mapping[str, str], *, limit_s: float = 60.0) -> str:
    """Run a rank whose all-reduce is stuck behind a kernel of half a minute. Says how it ended."""
    command = [sys.executable, "-m", "benchmarks.gpucheck.parts", "stuck"]
    process = subprocess.Popen(
        command, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        return f"status {process.wait(limit_s)}"
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"killed after {limit_s:g} s"


def stuck() -> Answer:
    """The rank that hangs: NCCL's watchdog writes its dump after 8 s and ends it."""
    from datetime import timedelta

    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group(
        "nccl",
        store=store,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=8),
        device_id=torch.device("cuda", 0),
    )
    tensor = torch.ones(1 << 20, device="cuda")
    for _ in range(3):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    torch.cuda._sleep(60_000_000_000)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return {"ok": False, "error": "the watchdog did not end it"}


def tests() -> Answer:
    """The tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu"]
    command += ["tests/collectors", "tests/checkpoint/test_copying.py", "tests/diagnostics"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return {"ok": done.returncode == 0, "summary": lines[-1] if lines else ""}


PARTS: Mapping[str, Callable[[], Answer]] = {
    part.__name__: part
    for part in (timers, collectives, checkpoint, gpucheck, nvml, overhead, hang, stuck, tests)
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](), default=str))
