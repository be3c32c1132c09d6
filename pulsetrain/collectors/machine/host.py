"""Samples what the node's kernel counts: CPU, memory, pressure, network, disks, and the ranks' processes.

Every reader takes the root of the file system, so that tests bring their own /proc. A file that is missing or
has another form gives no sample: never a zero, never an error. Sources: proc(5),
https://docs.kernel.org/accounting/psi.html, https://docs.kernel.org/admin-guide/iostats.html.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from pulsetrain.collectors.machine.kernel_files import read_text
from pulsetrain.collectors.machine.samples import Sample, metrics
from pulsetrain.core.process_stat import stat_fields
from pulsetrain.protocol.messages import ProcessState
from pulsetrain.records.columns import Columns

_STATES: Mapping[str, ProcessState] = MappingProxyType(
    {
        "R": "running",
        "S": "sleeping",
        "I": "sleeping",
        "D": "disk",
        "T": "stopped",
        "t": "stopped",
        "Z": "zombie",
        "X": "gone",
    }
)
_CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_MEMORY = MappingProxyType(
    {
        "MemTotal": "memory_total_bytes",
        "MemAvailable": "memory_available_bytes",
        "Dirty": "memory_dirty_bytes",
        "Shmem": "memory_shared_bytes",
        "SwapTotal": "swap_total_bytes",
        "SwapFree": "swap_free_bytes",
    }
)
_NET = MappingProxyType(
    {0: "net_receive_bytes", 1: "net_receive_packets", 2: "net_receive_errors", 3: "net_receive_drops"}
    | {8: "net_transmit_bytes", 9: "net_transmit_packets", 10: "net_transmit_errors"}
    | {11: "net_transmit_drops"}
)
_DISK_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the device's own sector size
_WHOLE_DISK = re.compile(r"nvme\d+n\d+|(sd|vd|xvd|hd)[a-z]+|mmcblk\d+|md\d+")


def process_state(pid: int, root: Path = Path("/")) -> ProcessState:
    """Return the state of a process from /proc, "gone" if there is none."""
    fields = stat_fields(pid, root / "proc")
    return _STATES.get(fields[0], "running") if fields else "gone"


class HostSampler:
    """Samples one node as batches of `metrics`. Counters are cumulative since boot."""

    def __init__(self, root: Path = Path("/"), *, node: str = "") -> None:
        self._root = root
        self._node = node
        self._processes: dict[str, int] = {}

    def watch(self, processes: Mapping[str, int]) -> None:
        """From now on sample these processes too. Maps device name (``rank 3``) to pid."""
        self._processes = dict(processes)

    def sample(self, now_ns: int) -> Columns:
        """Return one batch of `metrics`, all stamped `now_ns` (UTC)."""
        return metrics(self._node, list(self._samples()), now_ns)

    def _samples(self) -> Iterator[Sample]:
        proc = self._root / "proc"
        readers: tuple[Callable[[Path], Iterator[Sample]], ...] = (_cpu, _memory, _pressure, _network, _disks)
        for reader in readers:
            yield from _until_malformed(reader(proc))
        for device, pid in self._processes.items():
            yield from _until_malformed(_process(proc / str(pid), device))


def _until_malformed(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Yield the samples before the first line that has another form."""
    try:
        yield from samples
    except (ValueError, IndexError, KeyError):
        return


def _lines(path: Path) -> list[str]:
    try:
        return read_text(path).splitlines()
    except OSError:
        return []


def _cpu(proc: Path) -> Iterator[Sample]:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for line in _lines(proc / "stat"):
        name, *values = line.split()
        if name == "cpu":
            for field, value in zip(_CPU_FIELDS, values, strict=False):
                yield "", f"cpu_{field}_s", int(value) * tick_s
        elif name == "ctxt":
            yield "", "context_switches_total", int(values[0])
        elif name == "procs_running":
            yield "", "processes_running", int(values[0])
    for line in _lines(proc / "loadavg"):
        yield "", "load_1m", float(line.split()[0])


def _memory(proc: Path) -> Iterator[Sample]:
    for line in _lines(proc / "meminfo"):
        key, value = line.split(":")
        if key in _MEMORY:
            yield "", _MEMORY[key], int(value.split()[0]) * 1024


def _pressure(proc: Path) -> Iterator[Sample]:
    """Yield the time in which some or all tasks were stalled for a resource, cumulative."""
    for resource in ("cpu", "memory", "io"):
        for line in _lines(proc / "pressure" / resource):
            share, *pairs = line.split()
            total_us = dict(pair.split("=") for pair in pairs)["total"]
            yield "", f"pressure_{resource}_{share}_s", int(total_us) / 1e6


def _network(proc: Path) -> Iterator[Sample]:
    for line in _lines(proc / "net" / "dev")[2:]:
        device, _, rest = line.partition(":")
        values = rest.split()
        for index, name in _NET.items():
            yield device.strip(), name, int(values[index])


def _disks(proc: Path) -> Iterator[Sample]:
    for line in _lines(proc / "diskstats"):
        fields = line.split()
        if _WHOLE_DISK.fullmatch(fields[2]):
            yield fields[2], "disk_read_bytes", int(fields[5]) * _DISK_SECTOR_BYTES
            yield fields[2], "disk_write_bytes", int(fields[9]) * _DISK_SECTOR_BYTES
            yield fields[2], "disk_busy_s", int(fields[12]) / 1e3


def _process(folder: Path, device: str) -> Iterator[Sample]:
    fields = stat_fields(int(folder.name), folder.parent)
    if not fields:
        return
    yield device, "process_cpu_s", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    yield device, "process_major_faults_total", int(fields[9])
    yield device, "process_resident_bytes", int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    for line in _lines(folder / "schedstat"):
        on_cpu_ns, waiting_ns, _ = (int(value) for value in line.split())
        if on_cpu_ns:  # a kernel without scheduler statistics shows zeros
            yield device, "process_run_delay_s", waiting_ns / 1e9
