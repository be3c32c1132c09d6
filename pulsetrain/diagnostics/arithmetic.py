"""Does this machine multiply correctly: products with a known answer, again and again, on every core and GPU.

The self-check before each launch multiplies three times. Silent data corruption may be rarer than that. So
this check repeats for seconds, with rows and columns in another order each time, on one core after the other.
No test finds all of it: ByteRobust (arXiv 2509.16293) reports about 70 % for a vendor's own.

All sums are whole numbers that the format holds exactly. So any order of adding gives the same bits, and one
element that differs is a wrong answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pulsetrain.diagnostics.measurement import SEED
from pulsetrain.diagnostics.products import fast_format

if TYPE_CHECKING:
    import torch

WIDTH = 192
LARGEST = {"float32": 8, "bfloat16": 1, "float16": 1}
"""Operands go from minus this to this. bfloat16 holds whole numbers up to 256 exactly, float16 to 2,048."""
LEAST_PRODUCTS = 4
"""of each core, however short the time"""
MOST_CORES = 512

Operands = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(kw_only=True)
class _Place:
    """A core or GPU, what it multiplied and how many elements of it were wrong."""

    name: str
    products: int = 0
    wrong: int = 0


def run(*, seconds: float) -> dict[str, object]:
    """Multiply for about `seconds` in all.

    {"ok", "wrong": {place: elements}, "products", "places", "seconds"}. Places are "core 3" and "gpu 0".
    """
    began_s = time.perf_counter()
    gpus = _gpus()
    share_s = seconds / 2 if gpus else seconds
    places = list(_cores(share_s))
    places += [_gpu(index, share_s / gpus) for index in range(gpus)]
    wrong = {place.name: place.wrong for place in places if place.wrong}
    return {
        "ok": not wrong,
        "wrong": wrong,
        "products": sum(place.products for place in places),
        "places": len(places),
        "seconds": time.perf_counter() - began_s,
    }


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def operands(kind: str) -> Operands:
    """Two matrices of whole numbers and their product, the same everywhere."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    most = LARGEST[kind]
    a, b = generator.integers(-most, most + 1, size=(2, WIDTH, WIDTH), dtype=np.int64)
    return a, b, a @ b


def _cores(seconds: float) -> Iterator[_Place]:
    """Multiply on each core that this process may use, on one thread that is pinned to it."""
    import torch

    threads, allowed = torch.get_num_threads(), os.sched_getaffinity(0)
    cores = sorted(allowed)[:MOST_CORES]
    torch.set_num_threads(1)
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})
            yield _multiplied(f"core {core}", torch.device("cpu"), seconds / len(cores))
    finally:
        os.sched_setaffinity(0, allowed)
        torch.set_num_threads(threads)


def _gpu(index: int, seconds: float) -> _Place:
    import torch

    return _multiplied(f"gpu {index}", torch.device("cuda", index), seconds)


def _formats(device: torch.device) -> tuple[str, ...]:
    """Those of the products: processors and new GPUs have bfloat16, older GPUs float16 or float32 alone."""
    fast = str(fast_format(device)).removeprefix("torch.") if device.type == "cuda" else "bfloat16"
    return ("float32", fast) if fast != "float32" else ("float32",)


def _multiplied(name: str, device: torch.device, seconds: float) -> _Place:
    """Multiply in one place, with rows and columns in another order each time."""
    import torch

    place = _Place(name=name)
    generator = torch.Generator().manual_seed(SEED)
    sets = []
    for kind in _formats(device):
        dtype = getattr(torch, kind)
        sets.append(tuple(torch.from_numpy(m).to(device=device, dtype=dtype) for m in operands(kind)))
    end_s = time.perf_counter() + seconds
    while place.products < LEAST_PRODUCTS or time.perf_counter() < end_s:
        a, b, known = sets[place.products % len(sets)]
        rows, columns = (torch.randperm(WIDTH, generator=generator).to(device) for _ in range(2))
        product = a[rows] @ b[:, columns]
        place.wrong += int((product != known[rows][:, columns]).sum())
        place.products += 1
    return place
