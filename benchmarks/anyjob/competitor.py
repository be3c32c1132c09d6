"""A program that computes on a rank's core, for so long that the rank's work takes `factor` times as long.

    python -m anyjob.competitor FACTOR PID PEER,...

A program that merely spins at a fixed priority does not do: a rank that waits now and then for its peers
comes first whenever it wakes up. So this one looks at how long the rank has run and queued, and computes when
the rank has queued for too short a time. It ends when its input closes.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Sequence

from pulsetrain.faults import outside
from pulsetrain.faults.throttle import LEAST_S, LONGEST_S, TICK_S, Work, debt_s, queueing


def compete(pid: int, peers: Sequence[int], factor: float, until: int) -> None:
    """Compute by turns until file descriptor `until` is readable or closed, or `pid` is gone.

    `peers` do the same work at full speed. They show how much such work queues without a competitor.
    """
    work, examples = Work(pid), [Work(peer) for peer in peers]
    while (state := outside.state_of(pid)) not in ("", "Z", "X"):
        ran_s, queued_s = work.since()
        owed_s = debt_s(factor, ran_s=ran_s, queued_s=queued_s, stopped_s=0.0, usual=queueing(examples))
        if owed_s >= LEAST_S and state == "R":
            _spin(min(owed_s, LONGEST_S))
        if select.select([until], [], [], TICK_S)[0]:
            return


def _spin(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(range(1000))


def main() -> None:
    """Begin as the command line says, on the cores that the caller gave this process."""
    with contextlib.suppress(OSError):
        os.nice(-10)
        (outside.PROC / "self" / "autogroup").write_text("-10")  # where sessions share a core first
    peers = [int(peer) for peer in sys.argv[3].split(",") if peer]
    print("begun", flush=True)
    compete(int(sys.argv[2]), peers, float(sys.argv[1]), sys.stdin.fileno())


if __name__ == "__main__":
    main()
