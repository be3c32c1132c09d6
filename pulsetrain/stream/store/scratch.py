"""Files in memory that are used again, for an engine in this process that reads by file name.

An insert into chDB goes through a file. A file on disk would cost 80 bytes of writing for each span row,
beside the 5 that the store keeps. A new file in memory costs its pages each time. A file that is used again
does not.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Iterator
from typing import BinaryIO

_KEPT_BYTES = 64 << 20
"""Pages that a file keeps until its next use. Pages beyond are given back to the system."""
_KEPT_FILES = 4


class ScratchFiles:
    """Files in memory, as many as are in use at one time. Safe to use from many threads."""

    def __init__(self) -> None:
        self._idle: queue.LifoQueue[int] = queue.LifoQueue(_KEPT_FILES)

    @contextlib.contextmanager
    def written(self, write: Callable[[BinaryIO], object]) -> Iterator[str]:
        """The path of a file that holds what `write` wrote. Valid in this process, during the block."""
        file = self._take()
        try:
            with open(file, "wb", closefd=False) as sink:
                sink.seek(0)
                write(sink)
                sink.truncate()
            yield f"/proc/self/fd/{file}"
        finally:
            self._give_back(file)

    def close(self) -> None:
        """Close the files that are not in use."""
        with contextlib.suppress(queue.Empty):
            while True:
                os.close(self._idle.get_nowait())

    def _take(self) -> int:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return os.memfd_create("pulsetrain-insert")

    def _give_back(self, file: int) -> None:
        if os.fstat(file).st_size > _KEPT_BYTES:
            os.ftruncate(file, _KEPT_BYTES)
        try:
            self._idle.put_nowait(file)
        except queue.Full:
            os.close(file)
