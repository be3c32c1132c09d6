"""Bounds what the log files of ranks take on the disk, while ranks write to them.

A file that takes more than that gets a hole: the kernel gives the blocks in the middle back. Its first and
last lines stay, where they are. So ranks, and whoever reads at the end, notice nothing. Nobody renames or
truncates a file that a rank has open, and no rank waits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from pulsetrain.agent.sources import Batches

log = structlog.get_logger()

FIRST_BYTES = 1 << 20
PUNCH_HOLE, KEEP_SIZE = 0x02, 0x01  # of Linux's fallocate(2)
BLOCK_BYTES = 1 << 16
ST_BLOCK_BYTES = 512


class LogBound:
    """A source without rows. Each turn bounds these files to `most_bytes` each, 0: not at all."""

    def __init__(self, files: Callable[[], Iterable[Path]], most_bytes: int) -> None:
        self._files, self._most_bytes = files, most_bytes
        self._told: set[Path] = set()

    def take(self, now_ns: int) -> Batches:
        """See `Source`."""
        if self._most_bytes:
            for path in self._files():
                try:
                    given_back = bound(path, self._most_bytes)
                except OSError as error:
                    self._tell(path, "log_not_bounded", error=error.strerror)
                else:
                    if given_back:
                        self._tell(path, "log_bounded", most_bytes=self._most_bytes)
        return []

    def _tell(self, path: Path, event: str, **more: object) -> None:
        if path not in self._told:
            self._told.add(path)
            log.warning(event, path=str(path), **more)


def bound(path: Path, most_bytes: int) -> int:
    """Give back the middle of a file that takes more, so that it takes about half of `most_bytes`.

    Returns how many bytes were given back. Raises `OSError` where the disk has no holes.
    """
    if not path.is_file():
        return 0
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_blocks * ST_BLOCK_BYTES <= most_bytes:
            return 0
        first = min(FIRST_BYTES, most_bytes // 4) // BLOCK_BYTES * BLOCK_BYTES
        end = (status.st_size - most_bytes // 2) // BLOCK_BYTES * BLOCK_BYTES
        if end <= first:
            return 0
        _punch(fd, first, end - first)
        if os.fstat(fd).st_size < end:
            return 0  # somebody has emptied it meanwhile
        said = f"\n(pulsetrain: up to byte {end:,} the disk's blocks were given back)\n"
        os.pwrite(fd, said.encode(), first)
        os.pwrite(fd, b"\n", end - 1)  # what follows begins a line of its own
        return max(0, (status.st_blocks - os.fstat(fd).st_blocks) * ST_BLOCK_BYTES)
    finally:
        os.close(fd)


def _punch(fd: int, at: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, at, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
