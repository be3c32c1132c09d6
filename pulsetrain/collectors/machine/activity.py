"""How busy a rank is that records nothing: its processor time, bytes, page faults and children, from /proc.

A rank that saves, evaluates, compiles or downloads records nothing for minutes and works. A rank that hangs
uses no processor and moves no byte, or it turns in one place. Only ranks that are silent are read.

Sources: proc_pid_stat(5), proc_pid_io(5), proc_pid_status(5). /proc/PID/syscall is there in kernels with
CONFIG_HAVE_ARCH_TRACEHOOK, and needs the right to trace the process. A file that cannot be read leaves its
fields at zero or "".
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.collectors.machine.tcp import stuck_connections
from pulsetrain.protocol.messages import RankActivity, RankStatus, StuckConnection

SILENT_NS = 1_000_000_000  # a rank that recorded nothing for so long is read
SHORTEST_NS = 500_000_000  # rates over a shorter time say little: the kernel counts in ticks of 10 ms
WORK_CPU = 0.05  # share of one core. Idle threads of torch, gloo and NCCL poll with less
WORK_BYTES_S = 4096.0  # a log line now and then is no work
MOST_CHILDREN = 64

_SLEEP, _POLL, _READ, _LOCK, _CHILD, _OTHER = "sleep", "poll", "read", "lock", "child", "other"
_X86_64 = {
    **dict.fromkeys((34, 35, 128, 130, 230), _SLEEP),
    **dict.fromkeys((7, 23, 232, 270, 271, 281, 441), _POLL),
    **dict.fromkeys((0, 17, 19, 42, 43, 45, 47, 288), _READ),
    **dict.fromkeys((61, 247), _CHILD),
    202: _LOCK,
}
_AARCH64 = {
    **dict.fromkeys((101, 115, 133, 137), _SLEEP),
    **dict.fromkeys((22, 72, 73, 441), _POLL),
    **dict.fromkeys((63, 65, 67, 202, 203, 207, 212, 242), _READ),
    **dict.fromkeys((95, 260), _CHILD),
    98: _LOCK,
}
_CALLS: Mapping[str, Mapping[int, str]] = {"x86_64": _X86_64, "aarch64": _AARCH64}


@dataclass(frozen=True, kw_only=True)
class _Counters:
    """Cumulative counters of a rank at one moment. `helper_s` and part of `io_bytes` are its children's."""

    pid: int
    at_ns: int
    cpu_s: float
    helper_s: float
    io_bytes: int
    faults: int


@dataclass(kw_only=True)
class _Known:
    """What is known of one silent rank: the newest counters, and when it last did something."""

    counters: _Counters
    worked_ns: int
    activity: RankActivity | None = None


class ActivityMeter:
    """Reads the silent ranks of one node. One thread calls it, about once a second."""

    def __init__(self, root: Path = Path("/"), *, machine: str = "") -> None:
        self._proc = root / "proc"
        self._calls = _CALLS.get(machine or platform.machine(), {})
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._known: dict[int, _Known] = {}

    def read(self, statuses: Iterable[RankStatus], now_ns: int) -> tuple[RankActivity, ...]:
        """Return the activity of every silent rank, from its second reading on.

        `now_ns` is of a clock that is never set.
        """
        silent = {s.rank: s.pid for s in statuses if s.progress_age_ns >= SILENT_NS and s.state != "gone"}
        self._known = {rank: known for rank, known in self._known.items() if rank in silent}
        if not silent:
            return ()
        children = self._children()
        stuck = stuck_connections(list(silent.values()), self._proc)
        for rank, pid in silent.items():
            self._note(rank, self._counters(pid, children, now_ns), stuck.get(pid, ()))
        return tuple(known.activity for known in self._known.values() if known.activity is not None)

    def _note(self, rank: int, now: _Counters, stuck: Sequence[StuckConnection]) -> None:
        known = self._known.get(rank)
        if known is None or known.counters.pid != now.pid:
            self._known[rank] = _Known(counters=now, worked_ns=now.at_ns)
            return
        before, seconds = known.counters, (now.at_ns - known.counters.at_ns) / 1e9
        if seconds * 1e9 < SHORTEST_NS:
            return
        cpu, helpers = (now.cpu_s - before.cpu_s) / seconds, (now.helper_s - before.helper_s) / seconds
        io = (now.io_bytes - before.io_bytes) / seconds
        if cpu >= WORK_CPU or helpers >= WORK_CPU or io >= WORK_BYTES_S:
            known.worked_ns = now.at_ns
        known.counters = now
        known.activity = RankActivity(
            rank=rank,
            cpu_ratio=round(max(cpu, 0.0), 3),
            helper_cpu_ratio=round(max(helpers, 0.0), 3),
            io_bytes_s=round(max(io, 0.0)),
            faults_s=round(max(now.faults - before.faults, 0) / seconds),
            still_ns=now.at_ns - known.worked_ns,
            waits_in=self._waits_in(now.pid),
            traced=self._is_traced(now.pid),
            stuck=tuple(stuck),
        )

    def _counters(self, pid: int, children: Mapping[int, list[int]], now_ns: int) -> _Counters:
        own = self._stat(pid)
        helpers = _descendants(pid, children)
        ended_s = (own[13] + own[14]) * self._tick_s if own else 0.0
        alive = [self._stat(child) for child in helpers]
        return _Counters(
            pid=pid,
            at_ns=now_ns,
            cpu_s=self._cpu_s(own),
            helper_s=ended_s + sum(self._cpu_s(fields) for fields in alive),
            io_bytes=sum(self._io_bytes(process) for process in (pid, *helpers)),
            faults=own[7] + own[9] if own else 0,
        )

    def _cpu_s(self, stat: list[int]) -> float:
        return (stat[11] + stat[12]) * self._tick_s if stat else 0.0

    def _stat(self, pid: int) -> list[int]:
        """Return the fields of /proc/PID/stat from the state on, with 0 for that. [] where there are none."""
        text = self._text(pid, "stat")
        fields = text[text.rfind(")") + 1 :].split()[1:15]
        return [0, *(int(f) for f in fields)] if len(fields) == 14 and all(map(_is_number, fields)) else []

    def _io_bytes(self, pid: int) -> int:
        """Return what the process read and wrote: files, pipes, and sockets that are read as files."""
        lines = (line.partition(": ") for line in self._text(pid, "io").splitlines())
        return sum(int(value) for name, _, value in lines if name in ("rchar", "wchar") and value.isdigit())

    def _waits_in(self, pid: int) -> str:
        """Return what the main thread waits in, "other" for a call that is in no list.

        "" where it runs, or where that may not be read. A lock with a time limit counts as a sleep, because
        it ends by itself.
        """
        number, *arguments = self._text(pid, "syscall").split() or [""]
        if not number.isdigit():
            return ""
        call = self._calls.get(int(number), _OTHER) if self._calls else ""
        timed = call == _LOCK and len(arguments) > 3 and arguments[3] != "0x0"
        return _SLEEP if timed else call

    def _is_traced(self, pid: int) -> bool:
        """Return whether a debugger is attached."""
        for line in self._text(pid, "status").splitlines():
            if line.startswith("TracerPid:"):
                return line.split()[-1] not in ("0", "TracerPid:")
        return False

    def _text(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_text(errors="replace")
        except OSError:
            return ""

    def _children(self) -> dict[int, list[int]]:
        """Return the children of every process of the machine."""
        children: dict[int, list[int]] = {}
        for entry in os.listdir(self._proc) if self._proc.is_dir() else ():
            stat = self._stat(int(entry)) if entry.isdigit() else []
            if stat:
                children.setdefault(stat[1], []).append(int(entry))
        return children


def _descendants(pid: int, children: Mapping[int, list[int]]) -> list[int]:
    """Return all processes below `pid`, the nearest first, `MOST_CHILDREN` at most."""
    found = list(children.get(pid, ()))
    for process in found:
        if len(found) >= MOST_CHILDREN:
            break
        found += children.get(process, ())
    return found[:MOST_CHILDREN]


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()
