"""Makes processes really slower: a process of its own stops and continues them many times a second.

What is stretched is work, not waiting: for the time that a victim's main thread runs or wants to run, as
/proc/PID/schedstat counts it, it is made to stand still `factor - 1` times as long, while it is runnable. So
a rank that waits for its peers most of the time computes `factor` times longer and waits less.

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

TICK_S = 0.0015
LEAST_S = 0.003  # a shorter stop is not worth its two signals
LONGEST_S = 0.02  # far below any threshold of a hang
FACTORS = (1.0, 20.0)


def debt_s(factor: float, worked_s: float, stood_s: float) -> float:
    """How long to stand still for having worked so long, less what was stood already.

    >>> debt_s(1.5, worked_s=0.2, stood_s=0.04)
    0.06
    """
    return round((factor - 1) * worked_s - stood_s, 9)


class Throttle:
    """A context in which `pids` compute `factor` times slower; `start` and `end` for use without ``with``.

    Raises `UsageError` for a factor outside 1 to 20.
    """

    def __init__(self, pids: Sequence[int], factor: float) -> None:
        if not FACTORS[0] <= factor <= FACTORS[1]:
            raise UsageError(f"factor = {factor}: allowed {FACTORS[0]:g} to {FACTORS[1]:g}")
        self._pids, self._factor = list(pids), factor
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        command = [sys.executable, "-m", __name__, str(self._factor), *map(str, self._pids)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

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


class Victim:
    """One process, its account of work and standing still, and the moment it may go on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = _handle(pid)
        self._began_s = self._worked_before() if self._handle >= 0 else 0.0
        self._stood_s = 0.0
        self._stopped_at_s: float | None = None
        self._until_s = 0.0

    @property
    def alive(self) -> bool:
        """Whether it can still be signalled."""
        return self._handle >= 0

    def tend(self, factor: float, now_s: float) -> None:
        """Let it go on when it has stood long enough; stop it when it owes and is about to work."""
        if self._stopped_at_s is not None:
            if now_s >= self._until_s:
                self.release(now_s)
            return
        owed_s = debt_s(factor, self._worked_before() - self._began_s, self._stood_s)
        if owed_s >= LEAST_S and outside.state_of(self.pid) == "R":
            self._send(signal.SIGSTOP)
            self._stopped_at_s, self._until_s = now_s, now_s + min(owed_s, LONGEST_S)

    def release(self, now_s: float) -> None:
        """Continue it, whatever it owes."""
        self._send(signal.SIGCONT)
        if self._stopped_at_s is not None:
            self._stood_s += now_s - self._stopped_at_s
            self._stopped_at_s = None

    def _worked_before(self) -> float:
        """Seconds that its main thread ran or waited for a processor."""
        try:
            ran_ns, queued_ns, _ = (outside.PROC / str(self.pid) / "schedstat").read_text().split()
        except OSError:
            self._handle = -1
            return 0.0
        return (int(ran_ns) + int(queued_ns)) / 1e9

    def _send(self, number: int) -> None:
        """Signal it through a descriptor that never means another process with the same number."""
        if self._handle < 0:
            return
        try:
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError:
            self._handle = -1


def _handle(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def slow_down(pids: Sequence[int], factor: float, until: int) -> None:
    """Stretch the work of `pids` until file descriptor `until` is readable or closed, or all are gone."""
    victims = [Victim(pid) for pid in pids]
    try:
        while any(v.alive for v in victims):
            for victim in victims:
                victim.tend(factor, time.monotonic())
            if select.select([until], [], [], TICK_S)[0]:
                return
    finally:
        for victim in victims:
            victim.release(time.monotonic())


def main() -> None:
    """``python -m pulsetrain.faults.throttle FACTOR PID...``, until its standard input closes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))  # through `finally`
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # on a busy machine, so that stops stay short
    slow_down([int(p) for p in sys.argv[2:]], float(sys.argv[1]), sys.stdin.fileno())


if __name__ == "__main__":
    main()
