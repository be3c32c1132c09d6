"""Real processes of a test: what a killed one leaves behind, and scripts for ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
import pulsetrain

dist.init_process_group("gloo")
pulse = pulsetrain.init()
print("rank", dist.get_rank(), "attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(int(sys.argv[1])):
    total = torch.ones(1)
    with pulse.phase("forward"):
        dist.all_reduce(total)
        time.sleep(0.02)
    assert total.item() == dist.get_world_size()
    pulse.step()
dist.destroy_process_group()
"""


def until(holds: Callable[[], bool], timeout_s: float = 40.0) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.01)
    return holds()


def alive(pid: int) -> bool:
    """It runs; a zombie does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent(pid: int) -> int:
    """Its parent's pid."""
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def with_environment(key: str, value: str) -> list[int]:
    """Pids of all processes that were started with, or forked from one with, this environment variable."""
    wanted = f"{key}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid() and alive(pid)]
