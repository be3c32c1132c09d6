"""Three ways to make a rank slower from outside: stops, a competitor on its core, a quota.

Each is a context. While it lasts the work of the struck ranks takes about `factor` times as long.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pulsetrain.core.errors import Unavailable
from pulsetrain.faults import outside
from pulsetrain.faults.throttle import LEAST_S, Throttle, Work, debt_s, queueing

WAYS = ("stops", "competitor", "quota")
CPU = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000
LOOK_S = 0.5
STEER_S, LESS, MORE, LEAST_SHARE = 0.1, 0.93, 1.05, 0.1
BENCHMARKS = Path(__file__).parent.parent


def pin(pids: Mapping[int, int], cores: Sequence[int]) -> dict[int, int]:
    """Pin the ranks to cores in blocks of equal size. Return rank -> core.

    >>> pin({}, [0, 1])
    {}
    """
    places = {rank: cores[i * len(cores) // len(pids)] for i, rank in enumerate(sorted(pids))}
    for rank, core in places.items():
        for thread in threads(pids[rank]):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, {core})
    return places


def threads(pid: int) -> list[int]:
    """Return the ids of a process's threads."""
    try:
        return [int(entry.name) for entry in (outside.PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []


@contextlib.contextmanager
def competitor(core: int, pid: int, factor: float, peers: Sequence[int]) -> Iterator[None]:
    """Another program computes on `core` while `pid` wants to, so that its work takes `factor` times as long.

    `peers` do the same work at full speed.
    """
    command = [sys.executable, "-m", "anyjob.competitor", str(factor), str(pid), ",".join(map(str, peers))]
    process = subprocess.Popen(
        command, cwd=BENCHMARKS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None, "it was opened as a pipe"
    assert process.stdout is not None, "it was opened as a pipe"
    try:
        os.sched_setaffinity(process.pid, {core})
        if not process.stdout.readline():
            raise Unavailable(f"the program that was to compete with {pid} did not start")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def quota(pid: int, factor: float, peers: Sequence[int]) -> Iterator[None]:
    """The kernel gives process `pid` so little processor time that its work takes `factor` times as long.

    `peers` do the same work. They show what share of a core such work gets. Where ranks queue for processors,
    a rank that is held back queues less, so the quota is adjusted while it lasts. Raises `Unavailable` where
    control groups cannot be made.
    """
    works = [Work(peer) for peer in peers]
    time.sleep(LOOK_S)
    share = 1 / (factor * (1 + queueing(works)))
    group = CPU / f"any-job-{os.getpid()}-{pid}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        _set_quota(group, share)
        before = CPU / _group_of(pid).lstrip("/")
    except OSError as error:
        raise Unavailable(f"no control group in {CPU}: {error}") from error
    ended = threading.Event()
    steering = threading.Thread(target=_steer, args=(group, pid, peers, factor, share, ended), daemon=True)
    try:
        (group / "cgroup.procs").write_text(str(pid))
        steering.start()
        yield
    finally:
        ended.set()
        steering.join()
        with contextlib.suppress(OSError):
            (before / "cgroup.procs").write_text(str(pid))
        remove(group)


def _steer(
    group: Path, pid: int, peers: Sequence[int], factor: float, share: float, ended: threading.Event
) -> None:
    """Give less while the work takes too little time, and more while it takes too much.

    The kernel counts the time in which a quota holds a process back as queueing.
    """
    work, examples = Work(pid), [Work(peer) for peer in peers]
    while not ended.wait(STEER_S):
        ran_s, queued_s = work.since()
        owed_s = debt_s(factor, ran_s=ran_s, queued_s=queued_s, stopped_s=0.0, usual=queueing(examples))
        if abs(owed_s) >= LEAST_S:
            share = min(1.0, max(LEAST_SHARE, share * (LESS if owed_s > 0 else MORE)))
            with contextlib.suppress(OSError):
                _set_quota(group, share)


def _set_quota(group: Path, share: float) -> None:
    (group / "cpu.cfs_quota_us").write_text(str(max(1000, round(share * PERIOD_US))))


def _group_of(pid: int) -> str:
    """Return the control group of a process in the hierarchy of the processors."""
    for line in (outside.PROC / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path
    return "/"


def remove(group: Path) -> None:
    """Remove a control group, once its processes have left."""
    for _ in range(20):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


def quota_allowed() -> bool:
    """Whether control groups of processors can be made here."""
    probe = CPU / f"any-job-probe-{os.getpid()}"
    try:
        probe.mkdir()
        (probe / "cpu.cfs_quota_us").write_text("-1")
        probe.rmdir()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def slowed(
    way: str, factor: float, struck: Sequence[int], pids: Mapping[int, int], cores: Mapping[int, int]
) -> Iterator[None]:
    """The `struck` ranks are slower in one of `WAYS` while the block lasts.

    A competitor needs the core of the first of them, and slows down that one.
    """
    peers = [pid for rank, pid in pids.items() if rank not in struck]
    with contextlib.ExitStack() as stack:
        if way == "stops":
            stack.enter_context(Throttle([pids[r] for r in struck], factor, peers=peers))
        elif way == "competitor":
            stack.enter_context(competitor(cores[struck[0]], pids[struck[0]], factor, peers))
        else:
            for rank in struck:
                stack.enter_context(quota(pids[rank], factor, peers))
        yield
