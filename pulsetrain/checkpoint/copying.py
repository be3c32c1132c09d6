"""Copies tensors from the training device into the arena.

On the CPU that is a copy in memory. On CUDA it is a copy into pinned memory, on a stream of its own.
"""

from __future__ import annotations

import ctypes
import mmap
from threading import Lock
from typing import NamedTuple, Protocol

import structlog
import torch

log = structlog.get_logger(__name__)


Tensors = list[torch.Tensor]


class Pairs(NamedTuple):
    """Local tensors (sources) with their targets in the arena, in two parts.

    Forward and backward may change `volatile` sources. Only the optimizer's step changes `optimizer_owned`
    ones.
    """

    volatile: tuple[Tensors, Tensors]
    optimizer_owned: tuple[Tensors, Tensors]


class Copier(Protocol):
    """Copies pairs in two parts, so that the training thread waits only for the first part."""

    cpu_bound: bool
    """`finish` uses the calling thread's processor all the time, and waits for no device."""

    def adopt(self, region: mmap.mmap) -> None:
        """A slot of the arena was mapped. May be called again, and from any thread."""

    def begin(self, pairs: Pairs) -> None:
        """On the training thread: on return, volatile tensors are copied, or safe from change."""

    def finish(self, pairs: Pairs) -> None:
        """On any thread: on return, everything is in its target."""


def copier_for(cuda: bool) -> Copier:
    """The one for this process."""
    return CudaCopier() if cuda else HostCopier()


class HostCopier:
    """Memory to memory. Torch splits a large tensor over its threads and releases the GIL."""

    cpu_bound = True

    def adopt(self, region: mmap.mmap) -> None:
        """Nothing to do for pageable memory."""

    def begin(self, pairs: Pairs) -> None:
        """Copies volatile tensors."""
        _copy(*pairs.volatile)

    def finish(self, pairs: Pairs) -> None:
        """Copies optimizer-owned tensors."""
        _copy(*pairs.optimizer_owned)


class CudaCopier:
    """Device to host on a stream of its own, into arena memory that the driver has pinned.

    Volatile tensors are cloned on the device first, since buffers are small. So nothing here synchronises the
    training stream. `finish` waits for the copy stream.
    """

    cpu_bound = False

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pinned: list[mmap.mmap] = []
        self._pinning = Lock()

    def adopt(self, region: mmap.mmap) -> None:
        """Pin the slot, once. Where the driver refuses, copies are slower and still correct."""
        with self._pinning:
            if any(region is pinned for pinned in self._pinned):
                return
            self._pinned.append(region)
            self._pin(region)

    def _pin(self, region: mmap.mmap) -> None:
        buffer = (ctypes.c_char * len(region)).from_buffer(region)
        failed = torch.cuda.cudart().cudaHostRegister(ctypes.addressof(buffer), len(region), 0)
        if int(failed):
            log.warning("checkpoint_arena_not_pinned", bytes=len(region), error=str(failed))

    def begin(self, pairs: Pairs) -> None:
        """Copies volatile host tensors, and queues every device copy after the work queued so far."""
        cloned = [(source.clone(), target) for source, target in _of(pairs.volatile, on_device=True)]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), torch.no_grad():
            for source, target in (*cloned, *_of(pairs.optimizer_owned, on_device=True)):
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)
        _copy_host(pairs.volatile)

    def finish(self, pairs: Pairs) -> None:
        """Copies optimizer-owned host tensors and waits for the device."""
        _copy_host(pairs.optimizer_owned)
        self._stream.synchronize()


def _of(part: tuple[Tensors, Tensors], *, on_device: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [pair for pair in zip(*part, strict=True) if pair[0].is_cuda is on_device]


def _copy_host(part: tuple[Tensors, Tensors]) -> None:
    pairs = _of(part, on_device=False)
    _copy([source for source, _ in pairs], [target for _, target in pairs])


def _copy(sources: Tensors, targets: Tensors) -> None:
    """One call for all of them, so that the GIL is released once and not for each tensor."""
    if sources:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)
