"""How far the load of a launch's checkpoint is: what tells a long load from one that hangs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping

from pulsetrain.protocol.messages import LOAD_CPU_S


class Loading:
    """The thread that loads. All that arrives passes through it: it copies each byte and verifies it.

    A thread that waits for a peer or a storage that does not answer uses next to no processor time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clock: int | None = None
        self._done_s = 0.0

    @contextlib.contextmanager
    def runs(self) -> Iterator[None]:
        """The calling thread loads meanwhile. One at a time."""
        began_s = time.thread_time()
        with self._lock:
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            self._done_s -= began_s
        try:
            yield
        finally:
            with self._lock:
                self._clock = None
                self._done_s += time.thread_time()

    def gauges(self) -> Mapping[str, float]:
        """The processor time that all loads have used."""
        with self._lock:  # the thread cannot end meanwhile, and its clock with it
            running_s = 0.0 if self._clock is None else time.clock_gettime(self._clock)
            return {LOAD_CPU_S: self._done_s + running_s}
