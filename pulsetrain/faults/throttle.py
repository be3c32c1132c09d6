"""Makes processes really slower: a process of its own stops and continues them many times a second.

The throttling process continues its victims when its time is over, when it is told to end, and when the
process that started it goes away, however that happens: it watches the pipe to it. `Throttle` continues them
once more, for the case that the throttling process itself is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType

from pulsetrain.faults import outside
from pulsetrain.stream.errors import UsageError

PERIOD_S = 0.02


def stopped_share(factor: float) -> float:
    """The share of each period to stand still so that work takes `factor` times as long.

    >>> round(stopped_share(1.5), 3)
    0.333
    """
    if not 1 <= factor <= 20:
        raise UsageError(f"factor = {factor}: allowed 1 to 20")
    return 1 - 1 / factor


class Throttle:
    """A context in which `pids` run `factor` times slower; `start` and `end` for use without ``with``.

    A period is far below any threshold of a hang. Raises `UsageError` for a factor outside 1 to 20.
    """

    def __init__(self, pids: Sequence[int], factor: float, *, period_s: float = PERIOD_S) -> None:
        stopped_share(factor)
        self._pids = list(pids)
        self._factor, self._period_s = factor, period_s
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        command = [sys.executable, "-m", __name__, str(self._factor), str(self._period_s)]
        self._child = subprocess.Popen(
            [*command, *map(str, self._pids)], stdin=subprocess.PIPE, start_new_session=True
        )

    def end(self) -> None:
        """Full speed again; every victim is continued. May be called twice."""
        child, self._child = self._child, None
        try:
            if child is not None and child.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()
                child.wait(timeout=5)
        finally:
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
            outside.resume(self._pids)

    def __enter__(self) -> Throttle:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def cycle(pids: Sequence[int], factor: float, period_s: float, until: int) -> None:
    """Stop and continue `pids` until file descriptor `until` is readable or closed, or all are gone."""
    handles = [_handle(pid) for pid in pids]
    stop_s = period_s * stopped_share(factor)
    try:
        while any([_signal(h, signal.SIGSTOP) for h in handles]):  # each of them, not until the first
            time.sleep(stop_s)
            for handle in handles:
                _signal(handle, signal.SIGCONT)
            if select.select([until], [], [], period_s - stop_s)[0]:
                return
    finally:
        for handle in handles:
            _signal(handle, signal.SIGCONT)


def _handle(pid: int) -> int:
    """A descriptor that never means another process with the same number; -1 where it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _signal(handle: int, number: int) -> bool:
    if handle < 0:
        return False
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """``python -m pulsetrain.faults.throttle FACTOR PERIOD_S PID...``, until its standard input closes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))  # through `finally`
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # on a busy machine, so that periods stay short
    cycle([int(p) for p in sys.argv[3:]], float(sys.argv[1]), float(sys.argv[2]), sys.stdin.fileno())


if __name__ == "__main__":
    main()
