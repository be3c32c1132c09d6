"""How bytes get from the training device into the arena: a copy on the CPU; pinned, on its own stream, on
CUDA."""

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
    """Local tensors (sources) and their places in the arena (targets), in two parts: of the late ones only
    the optimizer's step changes the source."""

    early: tuple[Tensors, Tensors]
    late: tuple[Tensors, Tensors]


class Copier(Protocol):
    """Copies pairs in two parts, so that the training thread waits only for what cannot wait."""

    immediate: bool
    """`finish` keeps the calling thread's own processor busy, and waits for nothing else."""

    def adopt(self, region: mmap.mmap) -> None:
        """A slot of the arena was mapped; may be called again and from any thread."""

    def begin(self, pairs: Pairs) -> None:
        """On the training thread: what is not late is copied, or safe from change, on return."""

    def finish(self, pairs: Pairs) -> None:
        """On any thread: everything is in its target on return."""


def copier_for(cuda: bool) -> Copier:
    """The one for this process."""
    return CudaCopier() if cuda else HostCopier()


class HostCopier:
    """Memory to memory; torch splits a large tensor over its threads and releases the GIL."""

    immediate = True

    def adopt(self, region: mmap.mmap) -> None:
        """Nothing to do for pageable memory."""

    def begin(self, pairs: Pairs) -> None:
        """Copies what is not late."""
        _copy(*pairs.early)

    def finish(self, pairs: Pairs) -> None:
        """Copies what is late."""
        _copy(*pairs.late)


class CudaCopier:
    """Device to host on a stream of its own, into arena memory that the driver has pinned.

    Device tensors that are not late are cloned on the device first (buffers are small), so that nothing here
    synchronises the training stream; `finish` waits for the copy stream.
    """

    immediate = False

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pinned: list[mmap.mmap] = []
        self._pinning = Lock()

    def adopt(self, region: mmap.mmap) -> None:
        """Pin the slot, once; a refusal costs speed, not correctness."""
        with self._pinning:
            if any(region is known for known in self._pinned):
                return
            self._pinned.append(region)
            self._pin(region)

    def _pin(self, region: mmap.mmap) -> None:
        buffer = (ctypes.c_char * len(region)).from_buffer(region)
        failed = torch.cuda.cudart().cudaHostRegister(ctypes.addressof(buffer), len(region), 0)
        if int(failed):
            log.warning("checkpoint_arena_not_pinned", bytes=len(region), error=str(failed))

    def begin(self, pairs: Pairs) -> None:
        """Copies host tensors that are not late; starts every device copy behind the work queued so far."""
        early = [(source.clone(), target) for source, target in _of(pairs.early, on_device=True)]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), torch.no_grad():
            for source, target in (*early, *_of(pairs.late, on_device=True)):
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)
        _copy_host(pairs.early)

    def finish(self, pairs: Pairs) -> None:
        """Copies late host tensors and waits for the device."""
        _copy_host(pairs.late)
        self._stream.synchronize()


def _of(part: tuple[Tensors, Tensors], *, on_device: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [pair for pair in zip(*part, strict=True) if pair[0].is_cuda is on_device]


def _copy_host(part: tuple[Tensors, Tensors]) -> None:
    pairs = _of(part, on_device=False)
    _copy([source for source, _ in pairs], [target for _, target in pairs])


def _copy(sources: Tensors, targets: Tensors) -> None:
    """One call for all of them, so that the GIL is given up once and not for each tensor."""
    if sources:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)
