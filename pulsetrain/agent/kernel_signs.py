"""Lines of the kernel's log that tell of trouble, as signs for the heartbeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from pulsetrain.analytics.machines.hardware import FaultReport, LineReader, address
from pulsetrain.analytics.machines.policies import Policies, load
from pulsetrain.collectors.machine.signs import SignTracker
from pulsetrain.collectors.machine.used_disks import Use, UsedDisks
from pulsetrain.records.columns import Columns
from pulsetrain.records.kernel_log import KernelLine

_MORE_OF_AN_SXID = ("Severity ", "Data {")
"""How lines begin that follow the first one of an SXid. Source: Fabric Manager user guide DU-09883-001."""

_OF_THE_BUS = ("pcie_uncorrected", "pcie_nonfatal")
"""Rules on any card of the PCIe bus."""

_OF_DISKS = frozenset(
    {"block_io_error", "nvme_timeout", "nvme_reset", "file_system_error", "read_only_file_system"}
    | {"raid_disk_failure"}
)
_UNUSED_DISK = "unused_disk"


class KernelSigns:
    """Reads rows of `logs` and notes in `tracker` what they tell, but of `unused` ports.

    Where the machine has GPUs of other jobs too, a line that names no GPU may be of those. What the bus tells
    of a card that is no GPU of the job may be nothing to it. Trouble of a disk that the job does not use is
    a sign of its own, which asks for nothing.
    """

    def __init__(
        self,
        tracker: SignTracker,
        policies: Policies | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        unused: Collection[str] = (),
        disks: UsedDisks | None = None,
    ) -> None:
        self._disks = disks
        self._tracker, self._now_ns, self._unused = tracker, now_ns, frozenset(unused)
        policies = policies or load()
        self._reader = LineReader(policies)
        self._of_gpus = {"xid", "sxid", *(rule.name for rule in policies.rules if rule.kind == "gpu_fault")}

    def observe(self, lines: Columns) -> None:
        """Take in lines in the order in which the kernel wrote them.

        They are of now: the kernel's own stamps go wrong where the machine slept or its clock was set.
        """
        now_ns = self._now_ns()
        for row in lines.to_rows():
            report = self._reader.read(KernelLine(message=str(row["message"]), ts_ns=now_ns, wall=True))
            if report is None or (report.family == "sxid" and report.rest.startswith(_MORE_OF_AN_SXID)):
                continue
            if report.device in self._unused:  # the counters of the port tell of it
                continue
            if self._tracker.owners.none and report.family in self._of_gpus:
                continue
            if self._use(report) == "unused":
                self._tracker.happened(_UNUSED_DISK, report.device, now_ns)
                continue
            self._tracker.happened(
                report.family,
                report.device,
                now_ns,
                code=report.code,
                text=report.lines[0],
                grave=report.severity == "critical",
                shared=self._may_be_of_others(report),
            )

    def _use(self, report: FaultReport) -> Use:
        return self._disks.use(report.device) if self._disks and report.family in _OF_DISKS else "used"

    def _may_be_of_others(self, report: FaultReport) -> bool:
        owners, family, device = self._tracker.owners, report.family, report.device
        if family in _OF_THE_BUS:
            return not device or address(device) not in owners.own
        return self._use(report) == "maybe" or (not device and owners.others and family in self._of_gpus)
