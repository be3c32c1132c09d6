"""What every check of a machine uses: its result, the limits, and operands whose product is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

SEED = 20_231
WIDTH = 192  # of the exact product: float32 holds every sum exactly
_IN_USE = re.compile(
    "out of memory|CUBLAS_STATUS_ALLOC_FAILED|can't allocate memory|Cannot allocate memory|std::bad_alloc"
    "|MemoryError|is/are busy or unavailable|cudaErrorDevicesUnavailable"
)
_UNSUPPORTED = re.compile("CUBLAS_STATUS_NOT_SUPPORTED|CUBLAS_STATUS_ARCH_MISMATCH|not implemented for '")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Rates that every working machine reaches, however many others share its cores."""

    gemm_flops_per_s: float = 2e7
    """Matrix product in float32 on a CPU, one thread."""
    cuda_gemm_flops_per_s: float = 1e12
    """Matrix product on a GPU, in bfloat16 or the fastest format that it has."""
    memory_bytes_per_s: float = 5e7
    """Copy in main memory, read and write counted once."""
    cuda_memory_bytes_per_s: float = 2e10
    """Copy in device memory, read and write counted once."""
    loopback_bytes_per_s: float = 5e6
    """One TCP stream to 127.0.0.1."""


class CheckRow(TypedDict):
    """One check as evidence.

    `limit` is the least value that passes, None if the check is only right or wrong.
    """

    check: str
    ok: bool
    value: float
    unit: str
    limit: float | None
    detail: str


class Report(TypedDict):
    """All checks of one machine. `kind` is what it is, for comparisons with others (`machine_kind`).

    `busy` are checks for which others left no memory or no GPU. They have not failed. `gpus` are the UUIDs
    of the GPUs that CUDA lists.
    """

    ok: bool
    failed: list[str]
    busy: list[str]
    device: str
    kind: str
    gpus: list[str]
    seconds: float
    checks: list[CheckRow]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One measurement. `limit` is the least value that passes, None if the check is only right or wrong.

    `busy`: others use the memory or the GPU that it needs, so it was not measured.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    detail: str = ""
    right: bool = True
    busy: bool = False

    @property
    def ok(self) -> bool:
        """Whether the result is right and not below the limit."""
        return self.right and (self.limit is None or self.value >= self.limit)

    def row(self) -> CheckRow:
        """Return the check as evidence."""
        return {
            "check": self.name,
            "ok": self.ok,
            "value": self.value,
            "unit": self.unit,
            "limit": self.limit,
            "detail": self.detail,
        }


def used_by_others(error: str) -> bool:
    """Whether a GPU or the machine had too little free memory, or a GPU takes one process alone and has one.

    Then others use it, which is no fault. A GPU does so in the mode EXCLUSIVE_PROCESS (`nvidia-smi -c 3`),
    where parked ranks of the job hold it.

    >>> used_by_others("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
    True
    >>> used_by_others("OutOfMemoryError: CUDA out of memory."), used_by_others("misaligned address")
    (True, False)
    """
    return _IN_USE.search(error) is not None


def unsupported(error: str) -> bool:
    """Whether a device cannot do what was asked, by its design. That is no fault.

    >>> unsupported("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`")
    True
    """
    return _UNSUPPORTED.search(error) is not None


def exact_operands(width: int = WIDTH) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two square matrices of small integers, the same everywhere, with an exact float32 product."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    a, b = generator.integers(-8, 9, size=(2, width, width), dtype=np.int64)
    return a, b
