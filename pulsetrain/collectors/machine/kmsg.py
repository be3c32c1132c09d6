"""Follows the kernel's log (/dev/kmsg) as batches of `logs`.

The device returns one record for each read and never blocks here. If a reader is too slow, the kernel says so
(EPIPE). The overwritten records are counted as lost.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from pulsetrain.collectors.machine.samples import metrics
from pulsetrain.records.columns import Columns
from pulsetrain.records.kernel_log import READABLE, KernelLine, parse

RECORD_BYTES = 8192  # the kernel refuses reads with a smaller buffer than a record
MOST_RECORDS = 2000  # of one poll, so that a storm cannot hold the agent


def boot_time_ns(root: Path = Path("/")) -> int:
    """Return the UTC time of the last boot from /proc/stat, 0 if it is not there.

    The kernel's clock stops while a machine is suspended. After that its stamps are early.
    """
    try:
        lines = (root / "proc" / "stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 10**9 for line in lines if line.startswith("btime ")), 0)


class KmsgReader:
    """Reads the kernel's records from now on, or with `backlog` all that it still has.

    If the device cannot be opened, `blind` says why and `poll` returns nothing.
    """

    def __init__(self, path: Path = Path("/dev/kmsg"), *, node: str = "", backlog: bool = False) -> None:
        self._node = node
        self._boot_ns = boot_time_ns()
        self._fd = -1
        self.blind = ""
        self.lost = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if not backlog:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.blind = f"{path}: {error.strerror}"

    def poll(self) -> Columns | None:
        """Return new records as a batch of `logs` with source `kmsg`, or None."""
        lines = self._read()
        if not lines:
            return None
        columns = {
            "ts": [line.ts_ns for line in lines],
            "node": self._node,
            "job": "",
            "attempt": -1,
            "rank": -1,
            "source": "kmsg",
            "severity": [line.severity for line in lines],
            "message": [line.message for line in lines],
            "rule": "",
        }
        return Columns.from_values("logs", len(lines), columns)

    def sample(self, now_ns: int) -> Columns:
        """Return a batch of `metrics` that says whether the log can be read: a quiet log has no lines."""
        return metrics(self._node, [("", READABLE, float(not self.blind))], now_ns)

    def close(self) -> None:
        """Close the device."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> list[KernelLine]:
        lines: list[KernelLine] = []
        while self._fd >= 0 and len(lines) < MOST_RECORDS:
            try:
                record = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.lost += 1
                    continue
                self.blind = f"read: {error.strerror}"
                self.close()
                break
            if not record:
                break
            texts = record.decode(errors="replace").split("\n")
            lines += [parse(t, boot_ns=self._boot_ns) for t in texts if t and not t.startswith(" ")]
        return lines
