"""Makes processes really slower: a process of its own stops and continues them many times a second.

What is stretched is work, not waiting for others: the time that a victim's main thread runs or wants to run,
as /proc/PID/schedstat counts it. A victim stands still, while it is runnable, as long as makes its work take
`factor` times as long as it would have taken on this machine, queueing for processors included: how much it
queues for each second that it runs is measured before. So a rank that waits for its peers most of the time
computes `factor` times longer and waits less.

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
LONGEST_S = 0.03  # far below any threshold of a hang
OBSERVE_S = 1.5
FACTORS = (1.0, 20.0)


def debt_s(factor: float, *, ran_s: float, queued_s: float, stood_s: float, usual: float) -> float:
    """How long to stand still now, after having run, queued and stood so long; `usual` is the queueing for
    each second of running when nobody interferes.

    >>> debt_s(1.5, ran_s=0.2, queued_s=0.0, stood_s=0.04, usual=0.0)
    0.06
    >>> debt_s(1.5, ran_s=0.2, queued_s=0.1, stood_s=0.3, usual=1.0)
    0.0
    """
    return round(factor * ran_s * (1 + usual) - (ran_s + queued_s + stood_s), 9)


class Throttle:
    """A context in which `pids` compute `factor` times slower; `start` and `end` for use without ``with``.

    The first `observe_s` seconds only measure. Raises `UsageError` for a factor outside 1 to 20.
    """

    def __init__(self, pids: Sequence[int], factor: float, *, observe_s: float = OBSERVE_S) -> None:
        if not FACTORS[0] <= factor <= FACTORS[1]:
            raise UsageError(f"factor = {factor}: allowed {FACTORS[0]:g} to {FACTORS[1]:g}")
        self._pids, self._factor, self._observe_s = list(pids), factor, observe_s
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        command = [
            sys.executable,
            "-m",
            __name__,
            str(self._factor),
            str(self._observe_s),
            *map(str, self._pids),
        ]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    @property
    def begun(self) -> bool:
        """Whether observing is over and the victims are being slowed down."""
        child = self._child
        if child is None or child.stdout is None:
            return False
        return bool(select.select([child.stdout], [], [], 0)[0])

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


class Victim:
    """One process, its account of work and standing still, and the moment it may go on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = _handle(pid)
        self._began = self._work()
        self._usual = 0.0
        self._stood_s = 0.0
        self._stopped_at_s: float | None = None
        self._until_s = 0.0

    def since(self) -> tuple[float, float]:
        """Seconds that it ran and that it queued since its accounts were opened."""
        ran_s, queued_s = self._work()
        return ran_s - self._began[0], queued_s - self._began[1]

    def begin(self, usual: float) -> None:
        """Open its accounts afresh; `usual` is the queueing for each second of running."""
        self._usual, self._began = usual, self._work()

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
        ran_s, queued_s = self.since()
        owed_s = debt_s(factor, ran_s=ran_s, queued_s=queued_s, stood_s=self._stood_s, usual=self._usual)
        if owed_s >= LEAST_S and outside.state_of(self.pid) == "R":
            self._send(signal.SIGSTOP)
            self._stopped_at_s, self._until_s = now_s, now_s + min(owed_s, LONGEST_S)

    def release(self, now_s: float) -> None:
        """Continue it, whatever it owes."""
        self._send(signal.SIGCONT)
        if self._stopped_at_s is not None:
            self._stood_s += now_s - self._stopped_at_s
            self._stopped_at_s = None

    def _work(self) -> tuple[float, float]:
        """Seconds that its main thread ran, and that it waited for a processor."""
        if self._handle < 0:
            return 0.0, 0.0
        try:
            ran_ns, queued_ns, _ = (outside.PROC / str(self.pid) / "schedstat").read_text().split()
        except OSError:
            self._handle = -1
            return 0.0, 0.0
        return int(ran_ns) / 1e9, int(queued_ns) / 1e9

    def _send(self, number: int) -> None:
        """Signal it through a descriptor that never means another process with the same number."""
        if self._handle < 0:
            return
        try:
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError:
            self._handle = -1


def _usual(victims: Sequence[Victim]) -> float:
    """Queueing for each second of running, over all of them: one node's processes share its processors."""
    accounts = [v.since() for v in victims]
    ran_s, queued_s = sum(a[0] for a in accounts), sum(a[1] for a in accounts)
    return queued_s / ran_s if ran_s > 0 else 0.0


def _handle(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def slow_down(pids: Sequence[int], factor: float, observe_s: float, until: int) -> None:
    """Observe `pids`, then stretch their work until file descriptor `until` is readable or closed, or all are
    gone."""
    victims = [Victim(pid) for pid in pids]
    if select.select([until], [], [], observe_s)[0]:
        return
    usual = _usual(victims)
    for victim in victims:
        victim.begin(usual)
    print("begun", flush=True)  # noqa: T201 - read by `Throttle.begun`
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
    """``python -m pulsetrain.faults.throttle FACTOR OBSERVE_S PID...``, until its standard input closes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))  # through `finally`
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # on a busy machine, so that stops stay short
    slow_down([int(p) for p in sys.argv[3:]], float(sys.argv[1]), float(sys.argv[2]), sys.stdin.fileno())


if __name__ == "__main__":
    main()
