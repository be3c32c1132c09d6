"""How a root's tensors come to the replicas that share its device. On the host they share pages.

The root copies what it has computed into one of two buffers in turn. A sharer's tensors lie in one stretch of
memory, the window. To take over is to map the buffer there: one call, whatever the size. A page that the
sharer writes becomes its own copy. So a sharer can always compute an update by itself.

The root's tensors may lie in a window too. While no rank has written a page of its window, all of them show
the buffer itself. Then the root can make an update there, in place, and nothing is copied or mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from pulsetrain.collectors.rank.squash.contents import Contents, Entry
from pulsetrain.collectors.rank.squash.own_pages import any_own
from pulsetrain.collectors.squash_layout import BUFFER_BYTES, BUFFERS_AT, NUMBERS_BYTES, PAGE_BYTES

_MAP_FIXED = 0x10  # of Linux's mmap(2)
_POPULATE_READ = 22  # of madvise(2), from Linux 5.14 on
_SOLE_OWNER = 2  # a tensor, and the object that asks


class Handover(Protocol):
    """Moves tensors and numbers from a root to its sharers. Where ranks compute on GPUs, theirs is another.

    Buffers are numbered 0 and 1. Whoever calls sees to it that a root fills none that a sharer still shows.
    """

    def publish(self, contents: Contents, buffer: int) -> None:
        """As root: fill a buffer with all tensors and numbers. Raises `ValueError` where it is too small."""
        ...

    def take(self, contents: Contents, buffer: int, numbers_bytes: int) -> bytes:
        """As sharer: let the tensors have what a buffer holds. Returns the root's numbers."""
        ...

    def shows_all(self, contents: Contents) -> bool:
        """Whether all tensors lie in the buffer that was taken last."""
        ...

    def is_written(self) -> bool:
        """Whether anybody in this process has written to what it shows. True where nobody can say."""
        ...

    def in_place(self, contents: Contents) -> contextlib.AbstractContextManager[None]:
        """As root: what is written inside is written for all who show the buffer, unless it `is_written`."""
        ...

    def set_numbers(self, numbers: bytes) -> None:
        """As root: put the numbers beside tensors that were written in place."""
        ...

    def numbers(self, numbers_bytes: int) -> bytes:
        """As sharer: the numbers of the buffer that it shows."""
        ...

    def keep(self) -> None:
        """From now on the tensors depend on no buffer."""
        ...

    def close(self) -> None:
        """No update follows. The tensors stay as they are."""
        ...


class SharedPages:
    """The handover of ranks that compute on processors. `fd` is the node's memory, `region_at` the root's."""

    def __init__(self, fd: int, region_at: int) -> None:
        self._fd, self._buffers_at = fd, region_at + BUFFERS_AT
        self._buffers: dict[int, mmap.mmap] = {}
        self._window: mmap.mmap | None = None
        self._address = 0
        self._shown: int | None = None  # the buffer that the window shows

    def publish(self, contents: Contents, buffer: int) -> None:
        """See `Handover`."""
        size = contents.size_bytes
        if size > BUFFER_BYTES:  # state that grew inside this update: the other buffer lies behind this one
            raise ValueError(f"{size:,} bytes of tensors, and a buffer has {BUFFER_BYTES:,}")
        if self._shown == buffer:
            self.keep()
        memory = self._buffer(buffer, size)
        for entry in contents.entries:
            if entry.tensor.numel():
                _view(entry, memory).copy_(entry.tensor.detach())
        at = size - NUMBERS_BYTES
        memory[at : at + len(contents.numbers)] = contents.numbers

    def _buffer(self, buffer: int, size: int) -> mmap.mmap:
        memory = self._buffers.get(buffer)
        if memory is None or len(memory) != size:
            memory = self._buffers[buffer] = mmap.mmap(self._fd, size, offset=self._at(buffer))
        return memory

    def take(self, contents: Contents, buffer: int, numbers_bytes: int) -> bytes:
        """See `Handover`."""
        size = contents.size_bytes
        if self._window is None or len(self._window) != size:
            self._open(size)
        assert self._window is not None
        self._show(buffer)
        for entry in contents.entries:
            if entry.tensor.numel() and entry.tensor.data_ptr() != self._address + entry.at:
                self._move(entry)
        self._populate(contents)
        return self.numbers(numbers_bytes)

    def numbers(self, numbers_bytes: int) -> bytes:
        """See `Handover`."""
        assert self._window is not None
        at = len(self._window) - NUMBERS_BYTES
        return self._window[at : at + numbers_bytes]

    def shows_all(self, contents: Contents) -> bool:
        """See `Handover`."""
        window = self._window
        if window is None or self._shown is None or len(window) != contents.size_bytes:
            return False
        tensors = ((entry.tensor, self._address + entry.at) for entry in contents.entries)
        return all(tensor.data_ptr() == at for tensor, at in tensors if tensor.numel())

    def is_written(self) -> bool:
        """See `Handover`."""
        return self._window is None or any_own(self._address, len(self._window))

    def in_place(self, contents: Contents) -> contextlib.AbstractContextManager[None]:
        """See `Handover`. The window is private. So tensors lie in the buffer itself meanwhile."""
        assert self._window is not None
        assert self._shown is not None
        memory = self._buffer(self._shown, len(self._window))
        tensors = [entry for entry in contents.entries if entry.tensor.numel()]
        return _elsewhere([(e.tensor, e.tensor.detach(), _view(e, memory)) for e in tensors])

    def set_numbers(self, numbers: bytes) -> None:
        """See `Handover`."""
        assert self._window is not None
        assert self._shown is not None
        at = len(self._window) - NUMBERS_BYTES
        self._buffer(self._shown, len(self._window))[at : at + len(numbers)] = numbers

    def _populate(self, contents: Contents) -> None:
        """Have the pages of parameters there at once. The next forward pass reads all of them."""
        assert self._window is not None
        if contents.parameters < len(contents.entries):
            size = contents.entries[contents.parameters].at
        else:
            size = len(self._window) - NUMBERS_BYTES
        if size:
            with contextlib.suppress(OSError):  # an older kernel: each page comes when it is read
                self._window.madvise(_POPULATE_READ, 0, size)

    def _at(self, buffer: int) -> int:
        return self._buffers_at + buffer * BUFFER_BYTES

    def _open(self, size: int) -> None:
        """Make a window. Tensors that lie in an earlier one keep it, with pages of their own."""
        self._leave()
        self._window = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._window))

    def _show(self, buffer: int) -> None:
        assert self._window is not None
        self._map(mmap.MAP_PRIVATE, self._fd, self._at(buffer))
        self._shown = buffer

    def _map(self, how: int, fd: int, offset: int) -> None:
        """Put other pages where the window is."""
        assert self._window is not None
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        size, access = len(self._window), mmap.PROT_READ | mmap.PROT_WRITE
        if libc.mmap(self._address, size, access, how | _MAP_FIXED, fd, offset) != self._address:
            raise OSError(ctypes.get_errno(), "the buffer cannot be mapped")

    def _move(self, entry: Entry) -> None:
        """Let a tensor lie in the window. One whose memory others see stays where it is, and is filled."""
        assert self._window is not None
        shown = _view(entry, self._window)
        if _is_sole_owner(entry.tensor):
            entry.tensor.data = shown
        else:
            entry.tensor.detach().copy_(shown)

    def keep(self) -> None:
        """See `Handover`."""
        if self._shown is not None and self._window is not None:
            first_bytes = np.frombuffer(self._window, np.uint8)[::PAGE_BYTES]
            np.bitwise_or(first_bytes, 0, out=first_bytes)  # a page that is written becomes our own
            self._shown = None

    def close(self) -> None:
        """See `Handover`."""
        self._leave()
        self._buffers = {}

    def _leave(self) -> None:
        if self._window is not None:
            data = self._window[:]
            self._map(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
            self._window[:] = data
        self._window = self._shown = None


@contextlib.contextmanager
def _elsewhere(moves: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Let tensors lie elsewhere. Each is given with one that lies where it does, and one that lies there."""
    try:
        for tensor, _, there in moves:
            tensor.data = there
        yield
    finally:
        try:
            _back(moves)
        except BaseException:
            _back(moves)  # a signal handler of the script raised: what it wrote then would be seen by all
            raise


def _back(moves: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
    for tensor, here, _ in moves:
        tensor.data = here


def _view(entry: Entry, memory: mmap.mmap) -> torch.Tensor:
    """A tensor like the entry's in `memory`, with a storage of its own."""
    tensor = entry.tensor
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=entry.at)
    return flat.view(tensor.shape)


def _is_sole_owner(tensor: torch.Tensor) -> bool:
    """Whether no other tensor sees its memory. Where torch cannot say, it is not."""
    storage = tensor.untyped_storage()
    count = getattr(torch._C, "_storage_Use_Count", None)
    whole = tensor.storage_offset() == 0 and storage.nbytes() == tensor.nbytes
    return count is not None and bool(whole) and count(storage._cdata) <= _SOLE_OWNER
