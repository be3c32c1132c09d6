"""Lines of the kernel's log that tell of trouble, as signs for the heartbeat."""

from __future__ import annotations

from pulsetrain.analytics.machines.hardware import LineReader
from pulsetrain.analytics.machines.policies import Policies, load
from pulsetrain.collectors.machine.signs import SignTracker
from pulsetrain.records.columns import Columns
from pulsetrain.records.kernel_log import KernelLine


class KernelSigns:
    """Reads rows of `logs` and notes in `tracker` what they tell."""

    def __init__(self, tracker: SignTracker, policies: Policies | None = None) -> None:
        self._tracker = tracker
        self._reader = LineReader(policies or load())

    def observe(self, lines: Columns) -> None:
        """Take in lines in the order in which the kernel wrote them."""
        for row in lines.to_rows():
            message, ts_ns = str(row["message"]), int(str(row["ts"]))
            report = self._reader.read(KernelLine(message=message, ts_ns=ts_ns, wall=True))
            if report is not None:
                self._tracker.happened(
                    report.family, report.device, ts_ns, code=report.code, text=report.lines[0]
                )
