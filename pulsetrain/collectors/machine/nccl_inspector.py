"""Reads what NCCL Inspector writes of each collective and transfer, and sums it up as samples.

The Inspector is a profiler plugin that comes with NCCL's sources (2.28 and later). Each process writes one
file, ``HOST-pidPID.log``, with one JSON object on each line: ``header`` (communicator, rank in it, size),
``metadata`` (host, process, time of the dump) and ``coll_perf`` or ``p2p_perf`` (operation, size, duration,
bandwidth). Source: NVIDIA/nccl, plugins/profiler/inspector/README.md and inspector_json.cc, output format
v4.0.

An operation is worth a line there and no row here: there may be thousands in a second. Rows are sums over
some seconds for each process, communicator and kind of operation.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pulsetrain.collectors.machine.samples import Sample, metrics
from pulsetrain.records.columns import Columns

LINE_BYTES = 1 << 16  # a verbose line has two events for each of 64 channels: 16 KiB
BEHIND_BYTES = 1 << 20
SERIES = 64  # of one process: kinds of operation of its communicators
IMPORT_SERIES = 1024
NAME_CHARS = 64
IMPORT_WINDOW_NS = 5_000_000_000
_US = 1_000
_GB = 1e9  # the plugin computes with 1e9, as nccl-tests do
_MARK = '"inspector_output_format_version"'


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One collective or transfer as one rank saw it.

    `communicator` is its name where it has one, else its hash. `seq` numbers the operations of the
    communicator. `bus_bytes_per_s` is the bus bandwidth as nccl-tests define it, 0 where NCCL tells none.
    """

    communicator: str
    rank: int
    size: int
    kind: str
    seq: int
    message_bytes: int
    duration_ns: int
    bus_bytes_per_s: float
    dumped_ns: int
    host: str
    pid: int


def parse(line: str | bytes) -> Operation | None:
    """Return the operation on one line of a file, None where the line is none.

    >>> head = '{"header":{"id":"0x7f","rank":2,"n_ranks":8},"metadata":{"dump_timestamp_us":17,"pid":4},'
    >>> parse(head + '"coll_perf":{"coll":"AllReduce","coll_sn":7,"coll_msg_size_bytes":1024,'
    ...       '"coll_exec_time_us":20,"coll_busbw_gbs":0.5}}').duration_ns
    20000
    """
    try:
        raw = json.loads(line)
        header, metadata = raw["header"], raw["metadata"]
        prefix = "coll" if "coll_perf" in raw else "p2p"
        perf = raw[f"{prefix}_perf"]
        name = header.get("comm_name")
        return Operation(
            communicator=str(name if name and name != "unknown" else header["id"])[:NAME_CHARS],
            rank=int(header["rank"]),
            size=int(header["n_ranks"]),
            kind=str(perf[prefix])[:NAME_CHARS],
            seq=int(perf[f"{prefix}_sn"]),
            message_bytes=_count(perf[f"{prefix}_msg_size_bytes"]),
            duration_ns=_count(perf[f"{prefix}_exec_time_us"]) * _US,
            bus_bytes_per_s=_bandwidth(perf.get(f"{prefix}_busbw_gbs")),
            dumped_ns=_count(metadata.get("dump_timestamp_us", 0)) * _US,
            host=str(metadata.get("hostname", "")),
            pid=int(metadata.get("pid", -1)),
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _count(raw: object) -> int:
    """Return a size or time. Raises `ValueError` for what is none, such as a negative one."""
    number = int(raw) if isinstance(raw, int | float | str) else -1
    if not 0 <= number < 1 << 62:
        raise ValueError(f"not a count: {raw!r}")
    return number


def _bandwidth(raw: object) -> float:
    """Return GB/s as bytes a second. 0 where it is not known: the plugin writes "nan" as a text."""
    if not isinstance(raw, int | float):
        return 0.0
    value = float(raw) * _GB
    return value if math.isfinite(value) and value >= 0 else 0.0


@dataclass
class _Series:
    """One kind of operation of one communicator of one process. Totals are since the file began."""

    operations: int = 0
    message_bytes: int = 0
    duration_ns: int = 0
    longest_ns: int = 0  # of the window, as those that follow
    timed_s: float = 0.0
    bus_bytes: float = 0.0
    touched: bool = False

    def add(self, operation: Operation) -> None:
        self.operations += 1
        self.message_bytes += operation.message_bytes
        self.duration_ns += operation.duration_ns
        self.longest_ns = max(self.longest_ns, operation.duration_ns)
        if operation.bus_bytes_per_s > 0:
            self.timed_s += operation.duration_ns / 1e9
            self.bus_bytes += operation.bus_bytes_per_s * operation.duration_ns / 1e9
        self.touched = True

    def samples(self, device: str) -> Iterator[Sample]:
        """The totals, and the gauges of the window, which ends with this."""
        yield device, "nccl_operations", float(self.operations)
        yield device, "nccl_message_bytes", float(self.message_bytes)
        yield device, "nccl_duration_ns", float(self.duration_ns)
        yield device, "nccl_longest_ns", float(self.longest_ns)
        if self.timed_s > 0:
            yield device, "nccl_busbw_bytes_per_s", self.bus_bytes / self.timed_s
        self.longest_ns, self.timed_s, self.bus_bytes, self.touched = 0, 0.0, 0.0, False


class Totals:
    """Sums of operations of one process, by communicator and kind. It keeps `series` of them, and counts in
    `dropped` the operations of others. `process` names it, such as "rank 3"."""

    def __init__(self, process: str, series: int = SERIES) -> None:
        self._process, self._most = process, series
        self._series: dict[str, _Series] = {}
        self.dropped = 0

    def add(self, operation: Operation) -> None:
        """Count one operation."""
        device = f"{self._process}, {operation.communicator} of {operation.size}, {operation.kind}"
        series = self._series.get(device)
        if series is None:
            if len(self._series) >= self._most:
                self.dropped += 1
                return
            series = self._series[device] = _Series()
        series.add(operation)

    def samples(self) -> list[Sample]:
        """The samples of what was counted since the last call."""
        touched = [(device, series) for device, series in self._series.items() if series.touched]
        return [sample for device, series in touched for sample in series.samples(device)]


@dataclass
class InspectorFile:
    """The file of one process. `skipped_bytes` and `bad_lines` count what was not read.

    One that grows faster than it is read is skipped forward. A line that has no end yet waits for the rest.
    """

    path: Path
    skipped_bytes: int = 0
    bad_lines: int = 0
    _offset: int = 0
    _partial: bytes = b""
    _cut: bool = False  # the line that goes on here is thrown away

    def poll(self, most_bytes: int) -> Iterable[Operation]:
        """Return the operations on new lines, reading `most_bytes` at most. A missing file has none yet."""
        data = self._read(most_bytes)  # first: it may begin the file again
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines and self._cut:
            lines, self._cut = lines[1:], False
        if len(self._partial) > LINE_BYTES:
            self.bad_lines += not self._cut
            self._partial, self._cut = b"", True
        found = []
        for line in lines:
            operation = parse(line) if len(line) <= LINE_BYTES else None
            if operation is not None:
                found.append(operation)
            elif line.strip():
                self.bad_lines += 1
        return found

    def _read(self, most_bytes: int) -> bytes:
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._offset:  # another process of this number began it again
                self._offset, self._partial, self._cut = 0, b"", False
            if size - self._offset > BEHIND_BYTES + most_bytes:
                self.skipped_bytes += size - most_bytes - self._offset
                self._offset, self._partial, self._cut = size - most_bytes, b"", True
            file.seek(self._offset)
            data = file.read(most_bytes)
            self._offset += len(data)
            return data
        return b""


# -- files that were recorded -----------------------------------------------------------------------------


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder that the Inspector wrote, by name. None without a folder."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.glob("*-pid*.log")) if _is_inspector(path)]


def _is_inspector(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _MARK.encode() in file.read(4096)
    return False


def batches(
    path: Path, *, node: str = "", now_ns: int, progress: Callable[[int], object] = lambda operations: None
) -> Iterator[Columns]:
    """Return what one file says as batches of `metrics`, one for each `IMPORT_WINDOW_NS` of its dumps.

    The node is the host that the file names, unless `node` is given. A line without a time counts as
    `now_ns`. `progress` is called with the operations so far.
    """
    totals: Totals | None = None
    window, host, read = -1, node, 0
    with path.open("rb") as file:
        for line in _lines(file.readline):
            operation = parse(line)
            if operation is None:
                continue
            at = (operation.dumped_ns or now_ns) // IMPORT_WINDOW_NS
            if totals is None:
                totals = Totals(f"pid {operation.pid}", IMPORT_SERIES)
            elif window != at:
                yield metrics(host, totals.samples(), (window + 1) * IMPORT_WINDOW_NS)
                progress(read)
            window, host, read = at, node or operation.host, read + 1
            totals.add(operation)
    if totals is not None:
        yield metrics(host, totals.samples(), (window + 1) * IMPORT_WINDOW_NS)
        progress(read)


def _lines(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    """Return lines of at most `LINE_BYTES`. Longer ones come in parts, which are no operations."""
    while line := readline(LINE_BYTES):
        yield line
