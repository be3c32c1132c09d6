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

    def close(self) -> None:
        """Nothing is copied any more."""


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

    def close(self) -> None:
        """Nothing was taken."""


class CudaCopier:
    """Device to host on a stream of its own for each device, into arena memory that the driver has pinned.

    Volatile tensors are cloned on the device first, since buffers are small. So nothing here synchronises the
    training streams. `finish` waits for the copy streams. Create it on the training thread.
    """

    cpu_bound = False

    def __init__(self) -> None:
        self._device = torch.cuda.current_device()  # a thread begins on device 0, where we may have nothing
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pinned: list[mmap.mmap] = []
        self._registered: list[int] = []
        self._pinning = Lock()

    def adopt(self, region: mmap.mmap) -> None:
        """Pin the slot, once. Where the driver refuses, copies are slower and still correct."""
        with self._pinning:
            if any(region is pinned for pinned in self._pinned):
                return
            self._pinned.append(region)
            self._pin(region)

    def _pin(self, region: mmap.mmap) -> None:
        address = ctypes.addressof((ctypes.c_char * len(region)).from_buffer(region))
        with torch.cuda.device(self._device):
            failed = torch.cuda.cudart().cudaHostRegister(address, len(region), 0)
        if int(failed):
            log.warning("checkpoint_arena_not_pinned", bytes=len(region), error=str(failed))
        else:
            self._registered.append(address)

    def close(self) -> None:
        """Let go of the pinned memory. Else the driver takes what is mapped there next for it."""
        with self._pinning, torch.cuda.device(self._device):
            for address in self._registered:
                torch.cuda.cudart().cudaHostUnregister(address)
            self._registered, self._pinned = [], []

    def begin(self, pairs: Pairs) -> None:
        """Copies volatile host tensors, and queues every device copy after the work queued so far."""
        cloned = [(source.clone(), target) for source, target in _of(pairs.volatile, on_device=True)]
        by_device: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for source, target in (*cloned, *_of(pairs.optimizer_owned, on_device=True)):
            by_device.setdefault(source.device, []).append((source, target))
        for device, copies in by_device.items():
            stream = self._stream_of(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream), torch.no_grad():
                for source, target in copies:
                    target.copy_(source, non_blocking=True)
                    source.record_stream(stream)
        _copy_host(pairs.volatile)

    def _stream_of(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def finish(self, pairs: Pairs) -> None:
        """Copies optimizer-owned host tensors and waits for the devices."""
        _copy_host(pairs.optimizer_owned)
        for stream in list(self._streams.values()):
            stream.synchronize()


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
