"""Follows the files of NCCL Inspector of this node's ranks, where their environment asks for them."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.agent.sources import Batches
from pulsetrain.collectors.machine.nccl_inspector import InspectorFile, Totals
from pulsetrain.collectors.machine.samples import Sample, metrics
from pulsetrain.core.supervisor import LoopStatus, LoopThread
from pulsetrain.records.columns import Columns

ENABLE = "NCCL_INSPECTOR_ENABLE"
FOLDER = "NCCL_INSPECTOR_DUMP_DIR"
PROMETHEUS = "NCCL_INSPECTOR_PROM_DUMP"
PERIOD_S = 5.0
POLL_BYTES = 512 << 10  # of all files of the node, in each period
STAYS_S = 30.0  # a file is read on after its process has ended: some of it comes at the end
STALE_AFTER_S = 60.0


@dataclass
class _Followed:
    file: InspectorFile
    totals: Totals
    seen_s: float


@dataclass(frozen=True)
class _Losses:
    """What was not read of files."""

    skipped_bytes: int = 0
    bad_lines: int = 0
    dropped_operations: int = 0

    @classmethod
    def of(cls, followed: _Followed) -> _Losses:
        return cls(followed.file.skipped_bytes, followed.file.bad_lines, followed.totals.dropped)

    def __add__(self, other: _Losses) -> _Losses:
        return _Losses(
            self.skipped_bytes + other.skipped_bytes,
            self.bad_lines + other.bad_lines,
            self.dropped_operations + other.dropped_operations,
        )


class InspectorSource:
    """A source of `metrics`: sums over the operations of each rank, every `PERIOD_S`.

    Files are read on a thread of their own, because the folder may lie on a file system that hangs. `folder`
    is None where ranks write none: then nothing runs. `ranks` gives process ids by rank.
    """

    def __init__(
        self,
        node: str,
        folder: Path | None,
        ranks: Callable[[], Mapping[int, int]],
        *,
        host: str = "",
        poll_bytes: int = POLL_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._folder, self._ranks = node, folder, ranks
        self._host, self._poll_bytes, self._clock = host or socket.gethostname(), poll_bytes, clock
        self._followed: dict[int, _Followed] = {}
        self._lost_before = _Losses()
        self._batches: queue.SimpleQueue[Columns] = queue.SimpleQueue()
        self._thread = LoopThread("nccl_inspector", self.sample, stale_after_s=STALE_AFTER_S)

    @classmethod
    def of_node(
        cls, node: str, environ: Mapping[str, str], ranks: Callable[[], Mapping[int, int]]
    ) -> InspectorSource:
        """The files that ranks with this environment write."""
        return cls(node, folder_of(environ), ranks)

    @property
    def loops(self) -> tuple[LoopStatus, ...]:
        """How the thread is; none where ranks write no files."""
        return () if self._folder is None else (self._thread.status(),)

    def start(self) -> None:
        """Begin to read, where there is anything to read."""
        if self._folder is not None:
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end. One that a file system holds is left behind."""
        self._thread.stop(timeout_s=0.0)

    def take(self, now_ns: int) -> Batches:
        """See `Source`."""
        return [self._batches.get_nowait() for _ in range(self._batches.qsize())]

    def sample(self) -> float:
        """Read what is new once; the seconds until the next time."""
        if self._folder is not None:
            self._follow(self._folder)
            self._read()
            samples = [s for followed in self._followed.values() for s in followed.totals.samples()]
            if samples:
                self._batches.put(metrics(self._node, [*samples, *self._losses()], time.time_ns()))
        return PERIOD_S

    def _follow(self, folder: Path) -> None:
        """Look for the files of the ranks that live. No folder is listed: it may hold those of many nodes."""
        now_s = self._clock()
        for rank, pid in self._ranks().items():
            followed = self._followed.get(pid)
            if followed is None:
                file = InspectorFile(folder / f"{self._host}-pid{pid}.log")
                followed = self._followed[pid] = _Followed(file, Totals(f"rank {rank}"), now_s)
            followed.seen_s = now_s
        for pid in [p for p, f in self._followed.items() if now_s - f.seen_s > STAYS_S]:
            self._lost_before += _Losses.of(self._followed.pop(pid))

    def _read(self) -> None:
        for followed in self._followed.values():
            for operation in followed.file.poll(self._poll_bytes // len(self._followed)):
                followed.totals.add(operation)

    def _losses(self) -> list[Sample]:
        """What was not read since the agent began, where anything was not."""
        lost = sum((_Losses.of(f) for f in self._followed.values()), self._lost_before)
        return [("", f"nccl_inspector_{name}", float(count)) for name, count in vars(lost).items() if count]


def folder_of(environ: Mapping[str, str]) -> Path | None:
    """Return where ranks with this environment write JSON, None where they write none.

    >>> folder_of({"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": "/tmp/i"})
    PosixPath('/tmp/i')
    """
    on = environ.get(ENABLE, "").strip() not in ("", "0")
    prometheus = environ.get(PROMETHEUS, "").strip() not in ("", "0")
    folder = environ.get(FOLDER, "")
    return Path(folder) if on and folder and not prometheus else None
