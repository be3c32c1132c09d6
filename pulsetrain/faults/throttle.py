"""Makes processes really slower: a separate process stops and continues them many times a second.

Only work is stretched, not waiting for others. Work is the time in which a victim's main thread runs or
waits for a processor, from /proc/PID/schedstat. A victim is stopped, while it is runnable, for so long that
its work takes `factor` times as long as undisturbed. Undisturbed work includes some queueing for processors.
How much queueing comes with each second of running is measured on `peers`, which do the same work at full
speed, or on the victims where there are no peers. So a rank that mostly waits for its peers computes `factor`
times longer, and waits less.

The throttling process continues its victims when its time is over, when it gets a signal to end, and when the
process that started it ends in any way: it watches a pipe to it. `Throttle` continues them once more, in case
the throttling process itself was killed.
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

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.core.process_stat import PROC
from pulsetrain.faults import outside

TICK_S = 0.0015
LEAST_S = 0.003  # a shorter stop is not worth two signals
LONGEST_S = 0.03  # far below any threshold of a hang
FACTORS = (1.0, 20.0)


def debt_s(factor: float, *, ran_s: float, queued_s: float, stopped_s: float, usual: float) -> float:
    """How long to stop now, after so many seconds of running, queueing and being stopped.

    `usual` is the queueing for each second of running when nothing interferes.

    >>> debt_s(1.5, ran_s=0.2, queued_s=0.0, stopped_s=0.04, usual=0.0)
    0.06
    >>> debt_s(1.5, ran_s=0.2, queued_s=0.1, stopped_s=0.3, usual=1.0)
    0.0
    """
    return round(factor * ran_s * (1 + usual) - (ran_s + queued_s + stopped_s), 9)


class Throttle:
    """A context in which `pids` compute `factor` times slower. Without ``with``, call `start` and `end`.

    `peers` are processes that do the same work at full speed at the same time, if there are any. Raises
    `UsageError` for a factor outside 1 to 20.
    """

    def __init__(self, pids: Sequence[int], factor: float, *, peers: Sequence[int] = ()) -> None:
        if not FACTORS[0] <= factor <= FACTORS[1]:
            raise UsageError(f"factor = {factor}: allowed {FACTORS[0]:g} to {FACTORS[1]:g}")
        self._pids, self._peers, self._factor = list(pids), list(peers), factor
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, and return once the victims are slowed down. Raises `Unavailable` where that fails."""
        groups = (",".join(map(str, pids)) for pids in (self._pids, self._peers))
        command = [sys.executable, "-m", __name__, str(self._factor), *groups]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._child.stdout is not None, "it was opened as a pipe"
        if not self._child.stdout.readline():
            self.end()
            raise Unavailable(f"the process that was to throttle {self._pids} did not start")

    @property
    def running(self) -> bool:
        """Whether the victims are being slowed down."""
        return self._child is not None and self._child.poll() is None

    def end(self) -> None:
        """Continue every victim at full speed. Idempotent."""
        child, self._child = self._child, None
        try:
            if child is not None and child.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=5)
        finally:
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
            if child is not None and child.stdout is not None:
                child.stdout.close()
            outside.resume(self._pids)

    def __enter__(self) -> Throttle:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Work:
    """How long a process's main thread ran, and queued for a processor, since this was created."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._began = (0.0, 0.0)
        self._began = self.since()

    def since(self) -> tuple[float, float]:
        """Seconds that it ran, and that it queued. (0, 0) for a process that is gone."""
        try:
            ran_ns, queued_ns, _ = (PROC / str(self.pid) / "schedstat").read_text().split()
        except OSError:
            return 0.0, 0.0
        return int(ran_ns) / 1e9 - self._began[0], int(queued_ns) / 1e9 - self._began[1]


def queueing(works: Sequence[Work]) -> float:
    """Queueing for each second of running, over all of them. 0 while nothing ran."""
    times = [work.since() for work in works]
    ran_s, queued_s = sum(t[0] for t in times), sum(t[1] for t in times)
    return max(0.0, queued_s / ran_s) if ran_s > 0 else 0.0


class Victim:
    """One process that is slowed down: how long it was stopped so far, and when it may go on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.work = Work(pid)
        self._handle = _handle(pid)
        self._stopped_s = 0.0
        self._stopped_at_s: float | None = None
        self._until_s = 0.0

    @property
    def alive(self) -> bool:
        """Whether it can still be signalled."""
        return self._handle >= 0

    def update(self, factor: float, usual: float, now_s: float) -> None:
        """Continue it when it was stopped for long enough; stop it when it owes time and is runnable."""
        if self._stopped_at_s is not None:
            if now_s >= self._until_s:
                self.release(now_s)
            return
        ran_s, queued_s = self.work.since()
        owed_s = debt_s(factor, ran_s=ran_s, queued_s=queued_s, stopped_s=self._stopped_s, usual=usual)
        if owed_s >= LEAST_S and outside.state_of(self.pid) == "R":
            self._send(signal.SIGSTOP)
            self._stopped_at_s, self._until_s = now_s, now_s + min(owed_s, LONGEST_S)

    def release(self, now_s: float) -> None:
        """Continue it at once."""
        self._send(signal.SIGCONT)
        if self._stopped_at_s is not None:
            self._stopped_s += now_s - self._stopped_at_s
            self._stopped_at_s = None

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


def slow_down(pids: Sequence[int], peers: Sequence[int], factor: float, until: int) -> None:
    """Stretch the work of `pids` until file descriptor `until` is readable or closed, or all are gone."""
    victims, examples = [Victim(pid) for pid in pids], [Work(pid) for pid in peers]
    print("begun", flush=True)  # noqa: T201 - `Throttle.start` waits for it
    try:
        while any(v.alive for v in victims):
            usual = queueing(examples or [v.work for v in victims])
            for victim in victims:
                victim.update(factor, usual, time.monotonic())
            if select.select([until], [], [], TICK_S)[0]:
                return
    finally:
        for victim in victims:
            victim.release(time.monotonic())


def main() -> None:
    """``python -m pulsetrain.faults.throttle FACTOR PID,... PEER,...``, until its input closes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))  # through `finally`
    with contextlib.suppress(OSError):  # on a busy machine, so that stops stay short
        os.nice(-10)
        (PROC / "self" / "autogroup").write_text("-10")  # where sessions share a core first
    pids, peers = ([int(pid) for pid in group.split(",") if pid] for group in sys.argv[2:4])
    slow_down(pids, peers, float(sys.argv[1]), sys.stdin.fileno())


if __name__ == "__main__":
    main()
