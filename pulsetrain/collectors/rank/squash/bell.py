"""A word of shared memory on which processes wait until one of them changes it: Linux's futex."""

from __future__ import annotations

import ctypes
import errno
import mmap
import platform
import time

_SYSCALLS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}  # SYS_futex of Linux
_WAIT, _WAKE = 0, 1
_ALL = (1 << 31) - 1
POLL_S = 0.002  # between two looks, where there is no futex


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Bell:
    """The word at `at` in `memory`, of which four bytes count."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._word = ctypes.c_uint32.from_buffer(memory, at)
        self._number = _SYSCALLS.get(platform.machine())
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall

    @property
    def value(self) -> int:
        """Changes each time that it rings. Read it before you look at what you wait for."""
        return self._word.value

    def ring(self) -> None:
        """Wake all who wait."""
        self._word.value = time.perf_counter_ns() & 0xFFFFFFFF  # never what another one writes meanwhile
        self._futex(_WAKE, _ALL, None)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Return once it has rung since its value was `seen`, or later. A signal may end the wait."""
        if self._futex(_WAIT, seen, _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))) == errno.ENOSYS:
            time.sleep(min(timeout_s, POLL_S))

    def _futex(self, what: int, value: int, timeout: _Timespec | None) -> int:
        """Returns 0 or the number of an error."""
        if self._number is None:
            return errno.ENOSYS
        within = None if timeout is None else ctypes.byref(timeout)
        address = ctypes.c_void_p(ctypes.addressof(self._word))
        said = self._syscall(
            ctypes.c_long(self._number), address, what, ctypes.c_uint32(value), within, None, 0
        )
        return ctypes.get_errno() if said < 0 else 0
